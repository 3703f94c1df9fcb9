//! What a hook keeps for each bucket.

use crate::bucket::Segment;
use std::collections::BTreeMap;

/// A value for each bucket, valid as long as the bucket has the same parameters in the same places.
pub(super) struct PerBucket<T> {
    kept: BTreeMap<usize, Kept<T>>,
}

/// A bucket's value and the parameters that it is for.
pub(super) struct Kept<T> {
    pub(super) segments: Vec<Segment>,
    pub(super) value: T,
}

impl<T> PerBucket<T> {
    pub(super) fn new() -> Self {
        Self { kept: BTreeMap::new() }
    }

    /// Gives the values of *all* buckets up if one of them is for parameters that now lie elsewhere in
    /// bucket `index`: then buckets have been laid out anew.
    ///
    /// INVARIANT: no two values are for the same parameter.
    pub(super) fn outdated(
        &mut self,
        index: usize,
        segments: &[Segment],
    ) -> impl Iterator<Item = Kept<T>> + use<T> {
        let changed = match self.kept.get(&index) {
            Some(kept) => kept.segments != segments,
            None => self.kept.values().any(|kept| shares_path(&kept.segments, segments)),
        };
        let outdated = if changed { std::mem::take(&mut self.kept) } else { BTreeMap::new() };
        outdated.into_values()
    }

    /// The value of a bucket, made by `make` if it has none.
    pub(super) fn get_or_make<Error>(
        &mut self,
        index: usize,
        segments: &[Segment],
        make: impl FnOnce() -> Result<T, Error>,
    ) -> Result<&mut T, Error> {
        use std::collections::btree_map::Entry;
        match self.kept.entry(index) {
            Entry::Occupied(kept) => Ok(&mut kept.into_mut().value),
            Entry::Vacant(vacant) => {
                let kept = Kept { segments: segments.to_vec(), value: make()? };
                Ok(&mut vacant.insert(kept).value)
            }
        }
    }

    /// All values, in the order of the buckets.
    pub(super) fn values(&self) -> impl Iterator<Item = &Kept<T>> {
        self.kept.values()
    }

    /// The same, to be changed.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.kept.values_mut().map(|kept| &mut kept.value)
    }

    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}

fn shares_path(a: &[Segment], b: &[Segment]) -> bool {
    a.iter().any(|a| b.iter().any(|b| a.path == b.path))
}

/// The first `len` elements of a scratch vector that only ever grows; their values do not matter.
pub(super) fn grown<T: Clone + Default>(scratch: &mut Vec<T>, len: usize) -> &mut [T] {
    if scratch.len() < len {
        scratch.resize(len, T::default());
    }
    &mut scratch[..len]
}
