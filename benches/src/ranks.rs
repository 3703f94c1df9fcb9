//! Several ranks, each a process of this program.

use crate::{Options, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command};

/// Starts the ranks and waits for them; rank 0 prints the figure.
pub(crate) fn run(ranks: usize, options: &Options) -> Result<()> {
    let mut children = Children::default();
    let port = free_port()?;
    for rank in 0..ranks {
        children.0.push(start(rank, ranks, port, options)?);
    }
    for (rank, child) in children.0.iter_mut().enumerate() {
        let status = child.wait()?;
        if !status.success() {
            return Err(format!("rank {rank} ended with {status}").into());
        }
    }
    Ok(())
}

fn start(rank: usize, ranks: usize, port: u16, options: &Options) -> Result<Child> {
    let child = Command::new(std::env::current_exe()?)
        .args(["trainer", "--seconds", &options.seconds.to_string()])
        .args(["--workers", &options.workers.to_string()])
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
