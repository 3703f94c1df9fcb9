//! Two ranks on one machine, which share its GPU.

use crate::{Result, Section, SectionArgs};
use bonfire::comm::{ProcessGroup, RankEnv, init_process_group};
use serde_json::Value;
use std::process::{Command, Stdio};

const RANKS: usize = 2;

/// Starts this program again as both ranks, and returns what rank 0 found; in a rank, does the work.
pub(crate) fn run(
    args: &SectionArgs,
    work: fn(&SectionArgs, &ProcessGroup) -> Result<Value>,
) -> Result<Option<Value>> {
    if let Some(env) = RankEnv::detect()? {
        let mut options = args.device.options();
        if args.name == Section::EqualityStaged {
            options.engine = bonfire::comm::EngineKind::Host;
        }
        let group = init_process_group(&env, options)?;
        let found = work(args, &group).inspect_err(|error| group.abort(&error.to_string()))?;
        // Unless it was to find out how a session ends.
        if group.failure().is_none() {
            group.barrier()?;
        }
        return Ok((env.rank == 0).then_some(found));
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(std::env::args_os().skip(1))
            .env("RANK", rank.to_string())
            .env("LOCAL_RANK", rank.to_string())
            .env("WORLD_SIZE", RANKS.to_string())
            .env("LOCAL_WORLD_SIZE", RANKS.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("BONFIRE_RUN_ID", format!("gpu-check-{}", std::process::id()))
            // Shared memory may be refused in a sandbox.
            .env("BONFIRE_TRANSPORT", "tcp")
            // NCCL refuses two ranks on one GPU, unless they seem to be on two machines. Its
            // transports within a machine have to be off then.
            .env("NCCL_HOSTID", format!("rank-{rank}"))
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_IB_DISABLE", "1")
            .env("NCCL_P2P_DISABLE", "1")
            .env("NCCL_SHM_DISABLE", "1")
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() });
        command.spawn()
    };
    let ranks: Vec<_> = (0..RANKS).map(start).collect::<std::io::Result<_>>()?;
    let mut found = None;
    let mut failed = None;
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output()?;
        if !output.status.success() {
            failed.get_or_insert(format!("rank {rank}: {}", output.status));
        }
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        found =
            found.or_else(|| text.lines().last().and_then(|line| serde_json::from_str(line).ok()));
    }
    match failed {
        Some(failed) => Err(failed.into()),
        None => found.map(Some).ok_or_else(|| "rank 0 found nothing".into()),
    }
}
