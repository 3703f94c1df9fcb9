use std::sync::LazyLock;

/// Positive limits between buckets, `f64::MAX` included.
const NUM_POSITIVE: usize = 775;
/// The positive limits, 0, and the positive ones mirrored.
const NUM_LIMITS: usize = 2 * NUM_POSITIVE + 1;
/// Where the limit 0 stands among all.
const ZERO: usize = NUM_POSITIVE;

/// How many values lie in which range, in TensorBoard's buckets.
///
/// Their limits are `1e-12 * 1.1^k` up to 1e20, the same below 0, and 0: a bucket holds the values
/// from the limit before up to, but without, its own. Values that are infinite or not a number are
/// counted apart. Histograms of parts of a tensor merge into that of the whole.
///
/// # Reference
/// `tensorflow/core/lib/histogram/histogram.cc`: same limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// Values a bucket; [`NUM_LIMITS`] of them.
    counts: Vec<u64>,
    num: u64,
    non_finite: u64,
    min: f32,
    max: f32,
    sum: f64,
    sum_squares: f64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; NUM_LIMITS],
            num: 0,
            non_finite: 0,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            sum: 0.0,
            sum_squares: 0.0,
        }
    }
}

impl Histogram {
    /// Counts values; none are legal.
    pub fn of(values: impl IntoIterator<Item = f32>) -> Self {
        let limits = &*LIMITS;
        let mut histogram = Self::default();
        for value in values {
            if !value.is_finite() {
                histogram.non_finite += 1;
                continue;
            }
            histogram.counts[limits.bucket(value)] += 1;
            histogram.num += 1;
            histogram.min = histogram.min.min(value);
            histogram.max = histogram.max.max(value);
            let value = f64::from(value);
            histogram.sum += value;
            histogram.sum_squares += value * value;
        }
        histogram
    }

    /// Adds the values of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, others) in self.counts.iter_mut().zip(&other.counts) {
            *count += others;
        }
        self.num += other.num;
        self.non_finite += other.non_finite;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
        self.sum_squares += other.sum_squares;
    }

    /// Encodes it for the way to another process: what [`from_bytes`](Self::from_bytes) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for word in [self.num, self.non_finite, self.sum.to_bits(), self.sum_squares.to_bits()] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.min.to_le_bytes());
        bytes.extend(self.max.to_le_bytes());
        let buckets = (0u32..).zip(&self.counts).filter(|(_, count)| **count > 0);
        for (bucket, count) in buckets {
            bytes.extend(bucket.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        bytes
    }

    /// Decodes what [`to_bytes`](Self::to_bytes) gives; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (head, buckets) = bytes.split_first_chunk::<40>()?;
        let word = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let float = |at: usize| Some(f32::from_le_bytes(*head.get(at..)?.first_chunk()?));
        let mut histogram = Self {
            counts: vec![0; NUM_LIMITS],
            num: word(0)?,
            non_finite: word(8)?,
            sum: f64::from_bits(word(16)?),
            sum_squares: f64::from_bits(word(24)?),
            min: float(32)?,
            max: float(36)?,
        };
        let (buckets, rest) = buckets.as_chunks::<12>();
        for bucket in buckets {
            let index = u32::from_le_bytes(*bucket.first_chunk()?);
            let count = histogram.counts.get_mut(usize::try_from(index).ok()?)?;
            *count = u64::from_le_bytes(*bucket.last_chunk()?);
        }
        let counted = histogram.counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        (rest.is_empty() && counted == Some(histogram.num)).then_some(histogram)
    }

    /// Returns how many finite values there are.
    pub fn num(&self) -> u64 {
        self.num
    }

    /// Returns how many values are infinite or not a number.
    pub fn non_finite(&self) -> u64 {
        self.non_finite
    }

    /// Returns the least and the greatest finite value, unless there is none.
    pub fn range(&self) -> Option<(f32, f32)> {
        (self.num > 0).then_some((self.min, self.max))
    }

    /// Returns the sum of the finite values.
    pub fn sum(&self) -> f64 {
        self.sum
    }

    /// Returns the sum of the squares of the finite values.
    pub fn sum_squares(&self) -> f64 {
        self.sum_squares
    }

    /// Returns upper limits of buckets with the number of values in them, ascending, from the first
    /// bucket that has values to the last. Empty ones that follow each other are one; without
    /// values there is one empty bucket.
    ///
    /// TensorBoard takes the least value for the lower limit of the first bucket, and the greatest
    /// for the upper limit of the last, which empty ones at the ends would turn around.
    pub fn buckets(&self) -> Vec<(f64, f64)> {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for (limit, &count) in LIMITS.all().zip(&self.counts) {
            match buckets.last_mut() {
                None if count == 0 => {}
                Some(last) if count == 0 && last.1 == 0.0 => last.0 = limit,
                _ => buckets.push((limit, count as f64)),
            }
        }
        if buckets.last().is_some_and(|last| last.1 == 0.0) {
            buckets.pop();
        }
        if buckets.is_empty() { vec![(f64::MAX, 0.0)] } else { buckets }
    }
}

static LIMITS: LazyLock<Limits> = LazyLock::new(Limits::new);

/// The bits that are dropped from a float for its cell: what stays is the exponent, a logarithm,
/// and four bits of the mantissa.
const DROPPED_BITS: u32 = f32::MANTISSA_DIGITS - 1 - 4;
/// Cells of positive floats.
const NUM_CELLS: usize = 1 << (31 - DROPPED_BITS);

/// The positive limits, and a table that finds the place of a value among them.
struct Limits {
    positive: [f64; NUM_POSITIVE],
    /// How many limits lie below the least float of each cell.
    ///
    /// INVARIANT: at most one limit lies within a cell, as the floats of a cell differ by at most a
    /// sixteenth and limits by a tenth. So a value needs one comparison more than this table.
    /// (Cells of subnormal floats are wider, but lie far below the first limit.)
    below: [u16; NUM_CELLS],
}

impl Limits {
    fn new() -> Self {
        let mut positive = [f64::MAX; NUM_POSITIVE];
        // Multiplied up instead of raised to a power, as TensorFlow does, for the same roundings.
        let mut limit = 1e-12;
        for place in &mut positive {
            if limit < 1e20 {
                *place = limit;
            }
            limit *= 1.1;
        }
        let mut below = [0; NUM_CELLS];
        for (cell, below) in below.iter_mut().enumerate() {
            let least = f64::from(f32::from_bits((cell as u32) << DROPPED_BITS));
            *below = positive.partition_point(|limit| *limit < least) as u16;
        }
        Self { positive, below }
    }

    /// Returns the bucket of a finite value: the number of limits that are not above it.
    fn bucket(&self, value: f32) -> usize {
        let size = value.abs();
        let below = usize::from(self.below[(size.to_bits() >> DROPPED_BITS) as usize]);
        let (size, next) = (f64::from(size), self.positive[below]);
        if value < 0.0 {
            // Mirrored: the negative limits that are not above it have at least its size.
            ZERO - below - usize::from(next < size)
        } else {
            ZERO + 1 + below + usize::from(next <= size)
        }
    }

    fn all(&self) -> impl Iterator<Item = f64> {
        let negative = self.positive.iter().rev().map(|limit| -limit);
        negative.chain([0.0]).chain(self.positive)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By search through all limits.
    fn searched(value: f32) -> usize {
        let all: Vec<f64> = LIMITS.all().collect();
        all.partition_point(|limit| *limit <= f64::from(value))
    }

    #[test]
    fn limits_are_those_of_tensorflow() {
        let all: Vec<f64> = LIMITS.all().collect();
        assert_eq!((all.len(), all[0], all[1550]), (NUM_LIMITS, f64::MIN, f64::MAX));
        assert_eq!(all[ZERO..ZERO + 3], [0.0, 1e-12, 1e-12 * 1.1]);
        assert!(all.is_sorted());
        assert!(all[1549] < 1e20 && all[1549] * 1.1 >= 1e20, "{}", all[1549]);
    }

    #[test]
    fn the_table_finds_what_a_search_finds() {
        let near_limits = LIMITS.all().map(|limit| limit as f32).filter(|limit| limit.is_finite());
        let spread = (0..1 << 16).map(|high| f32::from_bits(high << 16)).filter(|v| v.is_finite());
        let edges = [0.0, -0.0, f32::MIN_POSITIVE, f32::MAX, f32::MIN, f32::from_bits(1), 1e20];
        for value in near_limits.chain(spread).chain(edges) {
            for value in [value.next_down(), value, value.next_up()] {
                if value.is_finite() {
                    assert_eq!(LIMITS.bucket(value), searched(value), "{value:e}");
                }
            }
        }
    }

    #[test]
    fn values_are_counted_and_the_others_apart() {
        let values = [1.0, -2.0, f32::NAN, 0.0, f32::INFINITY, 1.0, f32::NEG_INFINITY];
        let histogram = Histogram::of(values);
        assert_eq!((histogram.num(), histogram.non_finite()), (4, 3));
        assert_eq!(histogram.range(), Some((-2.0, 1.0)));
        assert_eq!((histogram.sum(), histogram.sum_squares()), (0.0, 6.0));
        let buckets = histogram.buckets();
        let counts: Vec<f64> = buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1.0, 0.0, 1.0, 0.0, 2.0], "{buckets:?}");
        let limits: Vec<f64> = buckets.iter().map(|(limit, _)| *limit).collect();
        assert!(-2.0 < limits[0] && limits[0] < -1.8, "{buckets:?}");
        assert_eq!((limits[1], limits[2]), (0.0, 1e-12));
        assert!(limits[3] <= 1.0 && 1.0 < limits[4] && limits[4] < 1.11, "{buckets:?}");
    }

    #[test]
    fn merged_parts_are_the_whole() {
        let values: Vec<f32> = (-500..500).map(|index| index as f32 * 0.25).collect();
        let mut merged = Histogram::default();
        for part in values.chunks(333) {
            merged.merge(&Histogram::of(part.iter().copied()));
        }
        assert_eq!(merged, Histogram::of(values));
        let before = merged.clone();
        merged.merge(&Histogram::of([]));
        assert_eq!(merged, before);
    }

    #[test]
    fn it_comes_back_from_its_bytes_and_nothing_else_does() {
        for values in [vec![], vec![f32::NAN, 1.0, -3.5e-4, 0.0, 7e18]] {
            let histogram = Histogram::of(values);
            let bytes = histogram.to_bytes();
            assert_eq!(Histogram::from_bytes(&bytes), Some(histogram));
            for end in 0..bytes.len() {
                assert_eq!(Histogram::from_bytes(&bytes[..end]), None, "{end}");
            }
        }
        let mut wrong = Histogram::of([1.0]).to_bytes();
        wrong[40] = 0xff;
        wrong[41] = 0xff;
        assert_eq!(Histogram::from_bytes(&wrong), None);
    }

    #[test]
    fn an_empty_one_has_one_empty_bucket() {
        let empty = Histogram::of([f32::NAN]);
        assert_eq!((empty.num(), empty.non_finite(), empty.range()), (0, 1, None));
        assert_eq!(empty.buckets(), [(f64::MAX, 0.0)]);
    }
}
