//! The tensors of a bucket's parameters as one flat tensor.

use crate::bucket::Segment;
use burn::tensor::{DType, Device, Tensor};

/// Lays flat tensors out as the segments are, in `len` elements; `None` and what lies between the
/// segments and behind them becomes zeros. The memory is fresh, unless one part is the whole.
pub(crate) fn joined(
    segments: &[Segment],
    parts: impl IntoIterator<Item = Option<Tensor<1>>>,
    len: usize,
    (device, dtype): (&Device, DType),
) -> Tensor<1> {
    let zeros = |len: usize| Tensor::<1>::zeros([len], (device, dtype));
    let (mut all, mut end) = (Vec::with_capacity(2 * segments.len() + 1), 0);
    for (segment, part) in segments.iter().zip(parts) {
        if segment.range.start > end {
            all.push(zeros(segment.range.start - end));
        }
        all.push(part.unwrap_or_else(|| zeros(segment.range.len())));
        end = segment.range.end;
    }
    if len > end {
        all.push(zeros(len - end));
    }
    match all.len() {
        1 => all.swap_remove(0),
        _ => Tensor::cat(all, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_where_their_segments_do() {
        let segment = |range: std::ops::Range<usize>| Segment {
            path: String::new(),
            shape: vec![range.len()],
            range,
            parameter: 0,
        };
        let segments = [segment(1..3), segment(3..4), segment(6..7)];
        let device = Device::flex();
        let part =
            |value: f32, len: usize| Some(Tensor::<1>::full([len], value, (&device, DType::F32)));
        let parts = [part(1.0, 2), None, part(3.0, 1)];
        let flat = joined(&segments, parts, 9, (&device, DType::F32));
        let values = flat.try_into_vec_as::<f32>().unwrap();
        assert_eq!(values, [0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0]);
    }
}
