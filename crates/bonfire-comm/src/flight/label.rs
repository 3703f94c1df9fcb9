//! What the caller calls the work that a collective belongs to.

use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    static LABEL: RefCell<Option<Arc<str>>> = const { RefCell::new(None) };
}

/// Runs `f`; the collectives that this thread calls in it carry `label` in the flight recorder.
/// The innermost label counts. An `Arc<str>` made once saves the allocation per call.
pub fn label<R>(label: impl Into<Arc<str>>, f: impl FnOnce() -> R) -> R {
    let _outer = Restore(LABEL.replace(Some(label.into())));
    f()
}

/// Returns the label of this thread.
pub(super) fn current() -> Option<Arc<str>> {
    // A thread that is being torn down has no label.
    LABEL.try_with(|label| label.try_borrow().ok().and_then(|label| label.clone())).ok().flatten()
}

/// Puts the outer label back, also when the labelled work panics.
struct Restore(Option<Arc<str>>);

impl Drop for Restore {
    fn drop(&mut self) {
        let outer = self.0.take();
        let _ = LABEL.try_with(|label| label.replace(outer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_label_counts_until_its_end() {
        assert_eq!(current(), None);
        label("outer", || {
            assert_eq!(label("inner", current).as_deref(), Some("inner"));
            let panicked = std::panic::catch_unwind(|| label("lost", || panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(current().as_deref(), Some("outer"));
        });
        assert_eq!(current(), None);
    }
}
