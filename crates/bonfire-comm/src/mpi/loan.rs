//! The caller's memory, as the communication thread sees it.
//!
//! MPI itself never does: what it sends and receives goes through memory of the engine's own, a
//! span at a time. So a call that is given up at its deadline, which MPI may still carry out
//! years later, leaves no pointer to a slice that its owner has taken back.

#![allow(unsafe_code, reason = "a slice that is borrowed by one thread and copied by another")]

use std::ops::Range;
use std::sync::{Arc, Mutex};

use crate::sync::lock;
use crate::{CommError, DType, HostBuffer, HostView, Result};

/// Memory of an operation.
pub(super) enum Target {
    /// That of a started operation.
    Owned(HostBuffer),
    /// That of a caller who waits.
    Lent(Arc<Loan>),
}

impl Target {
    pub(super) fn dtype(&self) -> DType {
        match self {
            Self::Owned(buffer) => buffer.dtype(),
            Self::Lent(loan) => loan.dtype,
        }
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Owned(buffer) => buffer.as_bytes().len(),
            Self::Lent(loan) => loan.len,
        }
    }

    /// Copies the bytes of `span` out.
    pub(super) fn load(&self, span: Range<usize>, into: &mut [u8]) -> Result<()> {
        match self {
            Self::Owned(buffer) => {
                into.copy_from_slice(&buffer.as_bytes()[span]);
                Ok(())
            }
            Self::Lent(loan) => loan.load(span, into),
        }
    }

    /// Copies bytes in, from `start` on.
    pub(super) fn store(&mut self, start: usize, from: &[u8]) -> Result<()> {
        match self {
            Self::Owned(buffer) => {
                buffer.as_bytes_mut()[start..start + from.len()].copy_from_slice(from);
                Ok(())
            }
            Self::Lent(loan) => loan.store(start, from),
        }
    }
}

/// A slice that its owner has lent until [`lend`] returns.
pub(super) struct Loan {
    dtype: DType,
    len: usize,
    writable: bool,
    /// INVARIANT: `None` when the owner's borrow has ended. The lock is held during a copy.
    start: Mutex<Option<Start>>,
}

/// The first byte of the slice.
struct Start(*mut u8);

// SAFETY: it is used under the lock of its loan only, while the owner, who holds the exclusive
// borrow or a shared one of memory that is only read, is inside `lend`.
unsafe impl Send for Start {}

/// Lends memory to `f`, which may give it to other threads: at the end its owners have it back,
/// whoever still holds the loans.
pub(super) fn lend<'a, R>(
    views: impl IntoIterator<Item = HostView<'a>>,
    f: impl FnOnce(Vec<Target>) -> R,
) -> R {
    /// Ends the loans, also when `f` panics.
    struct Return(Vec<Arc<Loan>>);
    impl Drop for Return {
        fn drop(&mut self) {
            self.0.iter().for_each(|loan| *lock(&loan.start) = None);
        }
    }
    let loans = Return(views.into_iter().map(Loan::of).map(Arc::new).collect());
    f(loans.0.iter().cloned().map(Target::Lent).collect())
}

impl Loan {
    /// Lends a slice; for [`lend`], which ends the loan before the borrow ends.
    fn of(view: HostView<'_>) -> Self {
        let (dtype, len) = (view.dtype(), view.bytes().len());
        let (start, writable) = match view {
            HostView::Shared { bytes, .. } => (bytes.as_ptr().cast_mut(), false),
            HostView::Exclusive { bytes, .. } => (bytes.as_mut_ptr(), true),
        };
        Self { dtype, len, writable, start: Mutex::new(Some(Start(start))) }
    }

    fn load(&self, span: Range<usize>, into: &mut [u8]) -> Result<()> {
        self.expect(span.start, into.len())?;
        if span.len() != into.len() {
            return Err(self.broken(span.start, into.len()));
        }
        let start = lock(&self.start);
        let Some(Start(first)) = &*start else { return Err(returned()) };
        // SAFETY: the span is inside the slice, which is borrowed while the lock is held, and
        // `into` is other memory.
        unsafe { first.add(span.start).copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    fn store(&self, at: usize, from: &[u8]) -> Result<()> {
        self.expect(at, from.len())?;
        if !self.writable {
            let detail = "an operation writes to memory that was lent to be read".into();
            return Err(CommError::Internal { detail });
        }
        let start = lock(&self.start);
        let Some(Start(first)) = &*start else { return Err(returned()) };
        // SAFETY: the span is inside the slice, which is exclusively borrowed while the lock is
        // held, and `from` is other memory.
        unsafe { first.add(at).copy_from_nonoverlapping(from.as_ptr(), from.len()) };
        Ok(())
    }

    fn expect(&self, start: usize, len: usize) -> Result<()> {
        if start.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        Err(self.broken(start, len))
    }

    fn broken(&self, start: usize, len: usize) -> CommError {
        let detail = format!("{len} bytes at {start} of a slice of {}", self.len);
        CommError::Internal { detail }
    }
}

fn returned() -> CommError {
    CommError::Internal { detail: "the caller has taken its memory back".into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(bytes: &mut [u8]) -> HostView<'_> {
        HostView::Exclusive { bytes, dtype: DType::U8 }
    }

    #[test]
    fn lent_memory_is_read_and_written_until_it_is_returned() {
        let mut data = [1u8, 2, 3, 4];
        let mut kept = lend([view(&mut data)], |mut targets| {
            let mut target = targets.pop().unwrap();
            let mut out = [0; 2];
            target.load(1..3, &mut out).unwrap();
            assert_eq!(out, [2, 3]);
            target.store(2, &[9, 9]).unwrap();
            assert!(target.store(3, &[0, 0]).is_err());
            target
        });
        assert_eq!(data, [1, 2, 9, 9]);
        assert!(kept.load(0..1, &mut [0]).is_err());
        assert!(kept.store(0, &[5]).is_err());
    }

    #[test]
    fn memory_lent_to_be_read_is_not_written() {
        let data = [7u8; 3];
        lend([HostView::Shared { bytes: &data, dtype: DType::U8 }], |mut targets| {
            let target = &mut targets[0];
            assert!(target.store(0, &[1]).is_err());
            assert_eq!((target.len(), target.dtype()), (3, DType::U8));
        });
    }
}
