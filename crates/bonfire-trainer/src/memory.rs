//! Freed memory stays with the process.

#![allow(unsafe_code, reason = "the C library's settings have no other door")]

/// Asks the C library not to give freed memory back to the system between training steps.
///
/// A training step allocates and frees the same large tensors over and over. By default glibc may
/// return their pages to the system and take them again at every step, depending on how the heap
/// happens to lie: the same perceptron then ran at 29,000 to 50,000 images/s from start to start,
/// with 450,000 page faults in the slow runs and 14,000 in the fast ones; with this call it is always
/// fast. Call it first thing in `main`; `bonfire` does. Up to 512 MiB of freed memory are kept.
///
/// Does nothing where the C library is not glibc, or when the user has set
/// `MALLOC_TRIM_THRESHOLD_` or `MALLOC_MMAP_THRESHOLD_`.
pub fn keep_freed_memory() {
    let set_by_user = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    if !set_by_user {
        configure();
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn configure() {
    const KEPT_BYTES: libc::c_int = 512 << 20;
    /// The largest that glibc accepts.
    const FROM_HEAP_BYTES: libc::c_int = 32 << 20;
    // SAFETY: mallopt takes numbers only, may be called at any time, and refuses what it does not
    // know; a refusal leaves the default.
    unsafe {
        libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT_BYTES);
        libc::mallopt(libc::M_MMAP_THRESHOLD, FROM_HEAP_BYTES);
    }
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn configure() {}
