//! Which parameter lies where in which bucket.

use bonfire_comm::DType;
use bonfire_tensor::parameters::ParameterSpec;
use std::ops::Range;

const MIB: f64 = 1024.0 * 1024.0;
/// A parameter of so many bytes has a bucket of its own: its gradient is then reduced in the memory
/// that the backward pass left it in, which saves more than a collective costs.
const ALONE: usize = 512 * 1024;

/// How the parameters in a bucket are aligned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grain {
    /// One directly behind the other, and large ones in buckets of their own.
    #[default]
    Host,
    /// At multiples of 256 elements, with zeros between them: Burn's views of GPU memory begin and end
    /// at multiples of 512 bytes, and anything else is a copy. So parameters of such sizes are views of
    /// their buckets, and small ones copies.
    Device,
}

impl Grain {
    /// Elements between two places at which a parameter may begin.
    pub(crate) fn elements(self) -> usize {
        match self {
            Self::Host => 1,
            Self::Device => 256,
        }
    }
}

/// One parameter's place in a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Module path of the parameter.
    pub path: String,
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Its elements in the bucket.
    pub range: Range<usize>,
    /// Its position among the trainable parameters in visiting order.
    pub parameter: usize,
}

/// A flat run of parameters of one element type that is reduced at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Element type.
    pub dtype: DType,
    /// The parameters, one behind the other.
    pub segments: Vec<Segment>,
}

impl Bucket {
    /// Bytes of all parameters.
    pub fn num_bytes(&self) -> usize {
        self.num_elements() * self.dtype.size_bytes()
    }

    /// Number of elements of all parameters.
    pub fn num_elements(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.range.end)
    }
}

/// All buckets in the order in which they are reduced, the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketLayout {
    buckets: Vec<Bucket>,
    /// Bucket and segment of each trainable parameter.
    places: Vec<(usize, usize)>,
}

impl BucketLayout {
    /// Fills buckets with the trainable parameters in the order in which their gradients arrive.
    ///
    /// `arrival` holds every index into `trainable` once. A bucket is closed once it holds `cap_mb`
    /// MiB or more; the first one at `first_cap_mb`. Parameters of different element types never
    /// share a bucket, and one of 512 KiB or more is alone in its own.
    pub fn new(
        trainable: &[ParameterSpec],
        arrival: &[usize],
        first_cap_mb: f64,
        cap_mb: f64,
    ) -> Self {
        Self::with_grain(trainable, arrival, first_cap_mb, cap_mb, Grain::Host)
    }

    /// As [`new`](Self::new), for memory of a kind.
    pub fn with_grain(
        trainable: &[ParameterSpec],
        arrival: &[usize],
        first_cap_mb: f64,
        cap_mb: f64,
        grain: Grain,
    ) -> Self {
        let mut open: Vec<Bucket> = Vec::new();
        let mut closed: Vec<Bucket> = Vec::new();
        let mut position = vec![0; trainable.len()];
        let mut first = true;
        for (place, &parameter) in arrival.iter().enumerate() {
            let Some(spec) = trainable.get(parameter) else { continue };
            position[parameter] = place;
            let large = spec.num_elements() * spec.dtype.size_bytes() >= ALONE;
            let alone = large && grain == Grain::Host;
            let same_type = open.iter().position(|bucket| bucket.dtype == spec.dtype);
            let mut bucket = match same_type {
                Some(index) if !alone => open.remove(index),
                _ => Bucket { dtype: spec.dtype, segments: Vec::new() },
            };
            let start = bucket.num_elements().next_multiple_of(grain.elements());
            bucket.segments.push(Segment {
                path: spec.path.clone(),
                shape: spec.shape.clone(),
                range: start..start + spec.num_elements(),
                parameter,
            });
            let cap = if first { first_cap_mb } else { cap_mb };
            if alone || bucket.num_bytes() as f64 >= cap * MIB {
                first &= alone;
                closed.push(bucket);
            } else {
                open.push(bucket);
            }
        }
        closed.extend(open);
        // A bucket can leave when its last gradient is there: order by that.
        closed.sort_by_key(|bucket| {
            bucket.segments.last().map_or(0, |segment| position[segment.parameter])
        });
        let mut places = vec![(0, 0); trainable.len()];
        for (b, bucket) in closed.iter().enumerate() {
            for (s, segment) in bucket.segments.iter().enumerate() {
                places[segment.parameter] = (b, s);
            }
        }
        Self { buckets: closed, places }
    }

    /// The buckets.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// Every segment with the index of its bucket.
    pub fn segments(&self) -> impl Iterator<Item = (usize, &Segment)> {
        let buckets = self.buckets.iter().enumerate();
        buckets.flat_map(|(index, bucket)| bucket.segments.iter().map(move |part| (index, part)))
    }

    /// Bucket and segment of a trainable parameter.
    pub fn place(&self, parameter: usize) -> Option<(usize, usize)> {
        self.places.get(parameter).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_tensor::parameters::Role;
    use burn::module::ParamId;

    fn spec(path: &str, len: usize, dtype: DType) -> ParameterSpec {
        ParameterSpec {
            path: path.into(),
            shape: vec![len],
            dtype,
            role: Role::Trainable,
            id: ParamId::new(),
        }
    }

    #[test]
    fn buckets_fill_in_order_of_arrival_and_close_at_their_capacity() {
        let quarter = 64 * 1024; // elements of f32 in 0.25 MiB
        let specs: Vec<_> = (0..6).map(|k| spec(&format!("p{k}"), quarter, DType::F32)).collect();
        let layout = BucketLayout::new(&specs, &[5, 4, 3, 2, 1, 0], 0.5, 0.75);
        let paths: Vec<Vec<&str>> = layout
            .buckets()
            .iter()
            .map(|bucket| bucket.segments.iter().map(|s| s.path.as_str()).collect())
            .collect();
        assert_eq!(paths, [vec!["p5", "p4"], vec!["p3", "p2", "p1"], vec!["p0"]]);
        assert_eq!(layout.place(3), Some((1, 0)));
        assert_eq!(layout.buckets()[1].segments[1].range, quarter..2 * quarter);
    }

    #[test]
    fn on_a_device_parameters_begin_where_memory_can_be_cut() {
        let specs: Vec<_> = [3, 256, 1 << 20, 1]
            .iter()
            .enumerate()
            .map(|(k, len)| spec(&format!("p{k}"), *len, DType::F32))
            .collect();
        let layout = BucketLayout::with_grain(&specs, &[0, 1, 2, 3], 25.0, 25.0, Grain::Device);
        let [bucket] = layout.buckets() else { panic!("{layout:?}") };
        let ranges: Vec<Range<usize>> = bucket.segments.iter().map(|s| s.range.clone()).collect();
        let end = 512 + (1 << 20);
        assert_eq!(ranges, [0..3, 256..512, 512..end, end..end + 1]);
    }

    #[test]
    fn the_order_of_arrival_decides_whatever_the_order_of_fields() {
        let specs: Vec<_> = (0..4).map(|k| spec(&format!("p{k}"), 1 << 16, DType::F32)).collect();
        let layout = BucketLayout::new(&specs, &[1, 3, 0, 2], 0.25, 0.5);
        let parameters: Vec<Vec<usize>> = layout
            .buckets()
            .iter()
            .map(|bucket| bucket.segments.iter().map(|segment| segment.parameter).collect())
            .collect();
        assert_eq!(parameters, [vec![1], vec![3, 0], vec![2]]);
        assert_eq!(layout.place(0), Some((1, 1)));
    }

    #[test]
    fn element_types_do_not_mix_and_a_large_parameter_stands_alone() {
        let specs = [
            spec("a", 10, DType::F32),
            spec("b", 10, DType::F64),
            spec("c", 1 << 17, DType::F32),
            spec("d", 10, DType::F64),
        ];
        let layout = BucketLayout::new(&specs, &[3, 2, 1, 0], 1.0, 25.0);
        for bucket in layout.buckets() {
            assert!(bucket.segments.iter().all(|s| specs[s.parameter].dtype == bucket.dtype));
        }
        let total: usize = layout.buckets().iter().map(Bucket::num_elements).sum();
        assert_eq!(total, 30 + (1 << 17));
        let paths = |bucket: &Bucket| bucket.segments.iter().map(|s| s.path.clone()).collect();
        let paths: Vec<Vec<String>> = layout.buckets().iter().map(paths).collect();
        assert_eq!(paths, [vec!["c"], vec!["d", "b"], vec!["a"]]);
    }
}
