//! Several ranks, each a process of this program.

use crate::Result;
use bonfire::comm::{InitOptions, ProcessGroup, RankEnv, init_process_group};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(120);

/// Whether this process was started as a rank.
pub(crate) fn is_rank() -> bool {
    std::env::var_os("RANK").is_some()
}

/// The ranks that were started together; this process alone if it was not started as a rank.
pub(crate) fn world() -> Result<ProcessGroup> {
    Ok(match RankEnv::detect()? {
        Some(env) => init_process_group(&env, InitOptions::default().with_timeout(TIMEOUT))?,
        None => ProcessGroup::single(),
    })
}

/// Hears a figure from every rank, in their order.
pub(crate) fn gather<T: Serialize + DeserializeOwned>(
    group: &ProcessGroup,
    figure: &T,
) -> Result<Vec<T>> {
    let all = group.all_gather_bytes(&serde_json::to_vec(figure)?)?;
    all.iter().map(|bytes| Ok(serde_json::from_slice(bytes)?)).collect()
}

/// Starts this program again as each of the ranks, and waits for them; rank 0 prints the figures.
pub(crate) fn start(ranks: usize) -> Result<()> {
    let mut children = Children::default();
    let port = free_port()?;
    for rank in 0..ranks {
        children.0.push(start_rank(rank, ranks, port)?);
    }
    for (rank, child) in children.0.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} ended with {status}").into());
        }
    }
    Ok(())
}

fn start_rank(rank: usize, ranks: usize, port: u16) -> Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", ranks.to_string())
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .spawn()?;
    Ok(child)
}

/// A port that nobody uses now.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// Processes that do not outlive this value.
#[derive(Default)]
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Both fail for a process that has ended already.
            drop(child.kill());
            drop(child.wait());
        }
    }
}
