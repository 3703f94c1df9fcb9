//! Which part of the data one rank takes.

use crate::DataError;

/// Names one of `count` equal parts of a data set.
///
/// A rank usually takes the shard with its own index in the data-parallel group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shard {
    /// Which part, from 0 to `count - 1`.
    pub index: usize,
    /// How many parts there are, at least 1.
    pub count: usize,
}

impl Shard {
    /// Names part `index` of `count`.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidShard`] when `count` is 0 or `index` is not below it.
    pub fn new(index: usize, count: usize) -> Result<Self, DataError> {
        Self { index, count }.validated()
    }

    /// Names the whole data set: part 0 of 1.
    pub fn whole() -> Self {
        Self { index: 0, count: 1 }
    }

    /// The fields are public, so whoever takes a shard checks it once.
    pub(crate) fn validated(self) -> Result<Self, DataError> {
        if self.index < self.count {
            Ok(self)
        } else {
            Err(DataError::InvalidShard { index: self.index, count: self.count })
        }
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self::whole()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_must_be_below_the_count() {
        assert_eq!(Shard::new(0, 1).unwrap(), Shard::whole());
        for (index, count) in [(0, 0), (1, 1), (5, 3)] {
            let error = Shard::new(index, count).unwrap_err();
            assert!(matches!(error, DataError::InvalidShard { .. }), "{error}");
        }
    }
}
