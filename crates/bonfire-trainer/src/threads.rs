//! How many threads a rank computes with.

/// Threads for each of `local_ranks` ranks on this machine.
fn threads_per_rank(local_ranks: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / local_ranks.max(1)).max(1)
}

/// Sets the size of the global thread pool to this machine's cores divided by its ranks, unless
/// `RAYON_NUM_THREADS` is set, and returns it.
///
/// Call it before anything computes: a pool that stands already stays as it is.
pub fn limit_threads(local_ranks: usize) -> usize {
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let threads = threads_per_rank(local_ranks);
        // Fails when a program that embeds this one has a pool already: then that counts.
        drop(rayon::ThreadPoolBuilder::new().num_threads(threads).build_global());
    }
    rayon::current_num_threads()
}
