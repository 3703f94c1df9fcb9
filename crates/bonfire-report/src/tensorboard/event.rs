//! The events that a file holds, by the field numbers of TensorFlow's messages.
//!
//! # Reference
//! `event.proto`, `summary.proto`, `histogram.proto` and `tensor.proto` of
//! `tensorboard/compat/proto`.

use super::Histogram;
use super::message::Message;
use std::time::{SystemTime, UNIX_EPOCH};

/// `DT_STRING` of `DataType`.
const STRINGS: u64 = 7;
/// `DATA_CLASS_TENSOR` of `DataClass`.
const TENSOR_CLASS: u64 = 2;
/// `START` of `SessionLog.SessionStatus`.
const START: u64 = 1;

/// The first event of every file: which rules it follows.
pub(super) fn version(wall_time: SystemTime) -> Message {
    event(wall_time, 0).text(3, "brain.Event:2")
}

/// Says that a run begins at `step`, so that what was written of it and later steps is void.
pub(super) fn start(wall_time: SystemTime, step: u64) -> Message {
    event(wall_time, step).message(7, &Message::default().integer(1, START))
}

pub(super) fn scalar(tag: &str, wall_time: SystemTime, step: u64, value: f64) -> Message {
    summary(wall_time, step, &Message::default().text(1, tag).float(2, value as f32))
}

pub(super) fn histogram(
    tag: &str,
    wall_time: SystemTime,
    step: u64,
    histogram: &Histogram,
) -> Message {
    let (limits, counts): (Vec<f64>, Vec<f64>) = histogram.buckets().into_iter().unzip();
    // Without values TensorFlow writes 0 for both, too.
    let (min, max) = histogram.range().unwrap_or_default();
    let message = Message::default()
        .double(1, min.into())
        .double(2, max.into())
        .double(3, histogram.num() as f64)
        .double(4, histogram.sum())
        .double(5, histogram.sum_squares())
        .doubles(6, limits.into_iter())
        .doubles(7, counts.into_iter());
    summary(wall_time, step, &Message::default().text(1, tag).message(5, &message))
}

/// A tensor of one string without dimensions. Its metadata name the plugin that shows it.
pub(super) fn text(tag: &str, wall_time: SystemTime, step: u64, text: &str) -> Message {
    let no_dimensions = Message::default();
    let tensor = Message::default().integer(1, STRINGS).message(2, &no_dimensions).text(8, text);
    let plugin = Message::default().text(1, "text");
    let metadata = Message::default().message(1, &plugin).integer(4, TENSOR_CLASS);
    let value = Message::default().text(1, tag).message(8, &tensor).message(9, &metadata);
    summary(wall_time, step, &value)
}

fn summary(wall_time: SystemTime, step: u64, value: &Message) -> Message {
    event(wall_time, step).message(5, &Message::default().message(1, value))
}

fn event(wall_time: SystemTime, step: u64) -> Message {
    let seconds = match wall_time.duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_secs_f64(),
        Err(before) => -before.duration().as_secs_f64(),
    };
    Message::default().double(1, seconds).integer(2, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Wall time 1.0 as the first field.
    const AT_ONE: &[u8] = &[0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f];

    fn one() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1)
    }

    #[test]
    fn events_have_the_bytes_of_their_messages() {
        assert_eq!(version(one()).bytes(), [AT_ONE, b"\x1a\x0dbrain.Event:2"].concat());
        assert_eq!(start(one(), 300).bytes(), [AT_ONE, &[0x10, 0xac, 2, 0x3a, 2, 8, 1]].concat());
        let value = [0x0a, 1, b'a', 0x15, 0, 0, 0, 0x3f];
        let summary = [&[0x10, 7, 0x2a, 10, 0x0a, 8], &value[..]].concat();
        assert_eq!(scalar("a", one(), 7, 0.5).bytes(), [AT_ONE, &summary].concat());
    }

    #[test]
    fn values_beyond_f32_and_times_before_1970_are_written() {
        assert!(scalar("a", one(), 0, 1e300).bytes().ends_with(&f32::INFINITY.to_le_bytes()));
        let early = UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(event(early, 0).bytes()[1..], (-1f64).to_le_bytes());
    }
}
