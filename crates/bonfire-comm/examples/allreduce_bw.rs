//! Measures `all_reduce` of `f32` between processes of this machine (engine `host`), or between
//! threads (`local`), as nccl-tests does: `algbw` = bytes / time, `busbw` = algbw * 2(n-1)/n.
//!
//! `cargo run --release -p bonfire-comm --example allreduce_bw -- [ranks] [host|local]`

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use bonfire_comm::{
    CommError, InitOptions, ProcessGroup, RankEnv, ReduceOp, init_process_group, local,
};

const SIZES: [usize; 8] = [8, 1024, 4096, 16 << 10, 128 << 10, 814_000, 4 << 20, 25 << 20];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(env) = RankEnv::detect()? {
        measure(&init_process_group(&env, InitOptions::default())?)?;
        return Ok(());
    }
    let mut args = std::env::args().skip(1);
    let ranks: usize = args.next().map_or(Ok(2), |text| text.parse())?;
    if args.next().as_deref() == Some("local") {
        let results = local::spawn(ranks, |group| measure(&group));
        return Ok(results.into_iter().collect::<Result<(), CommError>>()?);
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: usize| {
        Command::new(std::env::current_exe()?)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", ranks.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .spawn()
    };
    let children: Vec<Child> = (0..ranks).map(start).collect::<Result<_, _>>()?;
    for mut child in children {
        child.wait()?;
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "a benchmark prints its table")]
fn measure(group: &ProcessGroup) -> Result<(), CommError> {
    let ranks = group.world_size() as f64;
    if group.rank() == 0 {
        println!("engine {}, {ranks} ranks, all_reduce(sum) of f32", group.engine_name());
        println!(
            "{:>10} {:>10} {:>10} {:>12} {:>12}",
            "bytes", "min us", "mean us", "algbw GB/s", "busbw GB/s"
        );
    }
    for bytes in SIZES {
        let mut data = vec![1f32; bytes / 4];
        let rounds = (200_000_000 / bytes.max(20_000)).clamp(20, 2000);
        for _ in 0..5 {
            group.all_reduce(&mut data, ReduceOp::Sum)?;
        }
        group.barrier()?;
        let mut fastest = Duration::MAX;
        let start = Instant::now();
        for _ in 0..rounds {
            let start = Instant::now();
            group.all_reduce(&mut data, ReduceOp::Max)?;
            fastest = fastest.min(start.elapsed());
        }
        let mean = start.elapsed().as_secs_f64() / rounds as f64;
        let algbw = bytes as f64 / mean / 1e9;
        let busbw = algbw * 2.0 * (ranks - 1.0) / ranks;
        if group.rank() == 0 {
            let fastest = fastest.as_secs_f64() * 1e6;
            println!(
                "{bytes:>10} {fastest:>10.1} {:>10.1} {algbw:>12.3} {busbw:>12.3}",
                mean * 1e6
            );
        }
    }
    Ok(())
}
