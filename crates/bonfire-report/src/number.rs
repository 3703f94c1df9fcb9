//! Numbers as people like to read them.

/// A number with at most three significant digits, such as `1.2k`, `0.025` or `3e-4`.
pub fn short(value: f64) -> String {
    significant(value, 3)
}

/// A number with at most so many significant digits.
pub fn significant(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return value.to_string();
    }
    // Seventeen digits tell every number from its neighbours.
    let digits = digits.clamp(1, 17);
    let rounded = format!("{value:.*e}", digits - 1);
    let Some((mantissa, exponent)) = rounded.split_once('e') else { return rounded };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    match exponent {
        _ if value == 0.0 => "0".to_string(),
        -3..3 => plain(value, digits as i32 - 1 - exponent),
        3..12 => {
            let thousands = exponent / 3;
            let unit = ["", "k", "M", "G"][thousands as usize];
            let scaled = value / 1000f64.powi(thousands);
            plain(scaled, digits as i32 - 1 - exponent % 3) + unit
        }
        _ => format!("{}e{exponent}", without_zeros(mantissa)),
    }
}

/// A number with at most so many decimals.
pub fn plain(value: f64, decimals: i32) -> String {
    let text = format!("{value:.*}", decimals.max(0) as usize);
    match without_zeros(&text) {
        "-0" => "0".to_string(),
        text => text.to_string(),
    }
}

/// Bytes with their unit, such as `1.5 MiB`.
pub fn bytes(count: f64) -> String {
    let mut scaled = count;
    let mut units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    while scaled.abs() >= 1024.0 {
        let Some(next) = units.next() else { break };
        (scaled, unit) = (scaled / 1024.0, next);
    }
    // 1023 bytes have four digits before the next unit begins.
    format!("{} {unit}", plain(scaled, if scaled.abs() >= 100.0 { 0 } else { 1 }))
}

/// A time such as `1 h 02 min`, `3 min 20 s` or `4.2 s`.
pub fn duration(seconds: f64) -> String {
    if !(0.0..1e12).contains(&seconds) {
        return format!("{} s", short(seconds));
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{} s", significant(seconds, 2)),
        60..3600 => format!("{} min {:02} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {:02} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Digits without the zeros that end their fraction.
fn without_zeros(digits: &str) -> &str {
    match digits.contains('.') {
        true => digits.trim_end_matches('0').trim_end_matches('.'),
        false => digits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (0.1 + 0.2, "0.3"),
            (0.025, "0.025"),
            (3e-4, "3e-4"),
            (-0.001, "-0.001"),
            (1234.0, "1.23k"),
            (999.9, "1k"),
            (1e6, "1M"),
            (2.5e9, "2.5G"),
            (1e300, "1e300"),
            (-1.25e-300, "-1.25e-300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text, "{value:e}");
        }
        assert_eq!(significant(0.9902, 4), "0.9902");
        assert_eq!(significant(1_000_001.0, 7), "1.000001M");
    }

    #[test]
    fn bytes_and_times_have_units() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(1536.0), "1.5 KiB");
        assert_eq!(bytes(44_700_000.0), "42.6 MiB");
        assert_eq!(duration(4.23), "4.2 s");
        assert_eq!(duration(200.0), "3 min 20 s");
        assert_eq!(duration(3720.0), "1 h 02 min");
        assert_eq!(duration(100_000.0), "1 d 03 h");
        assert_eq!(duration(f64::NAN), "NaN s");
    }
}
