//! Numbers as people read them.

/// Tells a part of a whole without decimals: `37 %`.
pub(super) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Tells a time in the unit that suits it.
pub(super) fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 => format!("{value:.1} s"),
        value if value >= 1e-3 => format!("{:.1} ms", value * 1e3),
        value if value >= 5e-8 => format!("{:.1} us", value * 1e6),
        _ => "none".to_owned(),
    }
}

/// Tells bytes in the unit that suits them, of which each is 1000 of the one before.
pub(super) fn bytes(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.1} GB", value / 1e9),
        value if value >= 1e6 => format!("{:.1} MB", value / 1e6),
        value if value >= 1e3 => format!("{:.1} kB", value / 1e3),
        _ => format!("{value:.0} B"),
    }
}

/// Lists possibilities: `a, b or c`.
pub(super) fn any_of(possibilities: &[String]) -> String {
    match possibilities {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => possibilities.concat(),
    }
}
