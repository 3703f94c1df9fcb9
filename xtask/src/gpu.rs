//! `cargo xtask gpu`: everything that a machine with a GPU needs to check Bonfire, in one folder.
//!
//! Such a machine may have neither a network nor Rust, and be at hand for minutes: the program is built
//! here, stripped and compressed, with a script that runs it. `docs/gpu.md` says how.

use crate::cargo::{cargo, command, release_folder, root, run};
use crate::{Result, record};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// What may travel to such a machine.
const MOST_BYTES: u64 = 64 << 20;
const PEER: &str = "resnet50_cuda.py";

/// Builds the folder, or records what a run of it has found.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder to make.
    #[arg(long, default_value = ".gpu")]
    out: PathBuf,
    /// Writes the record of a run under benches/runs, from the folder that it has left; builds
    /// nothing.
    #[arg(long, value_name = "DIR", conflicts_with = "out")]
    record: Option<PathBuf>,
}

pub(crate) fn start(args: &Args) -> Result<()> {
    match &args.record {
        Some(found) => keep(found),
        None => build(&root().join(&args.out)),
    }
}

fn build(folder: &Path) -> Result<()> {
    run(cargo().args([
        "build",
        "--release",
        "--package",
        "bonfire-gpu-check",
        "--features",
        "cuda",
    ]))?;
    std::fs::create_dir_all(folder)?;
    let program = folder.join("gpu_check");
    std::fs::copy(release_folder()?.join("gpu_check"), &program)?;
    run(command("strip").arg(&program))?;
    let compressed = output_bytes(command("gzip").args(["--best", "--stdout"]).arg(&program))?;
    std::fs::remove_file(&program)?;
    std::fs::write(folder.join("gpu_check.gz"), compressed)?;
    std::fs::copy(root().join("benches/peers").join(PEER), folder.join(PEER))?;
    std::fs::write(folder.join("run.sh"), RUN)?;
    let bytes: u64 = std::fs::read_dir(folder)?
        .map(|entry| Ok(entry?.metadata()?.len()))
        .sum::<std::io::Result<u64>>()?;
    println!("{} holds {:.1} MB", folder.display(), bytes as f64 / 1e6);
    if bytes > MOST_BYTES {
        return Err(format!("that is more than {} MB", MOST_BYTES >> 20).into());
    }
    println!("on the machine with the GPU: bash {}/run.sh OUT", folder.display());
    println!("then, with what it leaves:   cargo xtask gpu --record OUT");
    Ok(())
}

fn keep(found: &Path) -> Result<()> {
    let table = std::fs::read_to_string(found.join("record.md"))?;
    let details = std::fs::read_to_string(found.join("record.json"))?;
    // What Python and the profiler say may be long; the table is for people, this for programs.
    let details = format!(
        "\n<details><summary>record.json</summary>\n\n```json\n{details}\n```\n\n</details>\n"
    );
    record::write("gpu", &format!("{table}{details}"))?;
    Ok(())
}

fn output_bytes(command: &mut std::process::Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            // The words of the tool stand above.
            std::io::stderr().flush()?;
            Err(format!("gzip: {}", output.status).into())
        }
    }
}

/// Finds what CUDA needs, and runs the check.
const RUN: &str = r#"#!/usr/bin/env bash
# Checks Bonfire on a machine with an NVIDIA GPU; needs neither a network nor Rust.
#
#   bash run.sh OUT [options of `gpu_check all`]
#
# leaves record.json and record.md in OUT. Needs the driver, and CUDA's run-time compiler, its headers and
# NCCL, from a toolkit or from the Python packages beside PyTorch. CUDA_PATH, LD_LIBRARY_PATH and
# BONFIRE_NCCL_PATH are respected.
set -u
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?a folder for the record}
shift
mkdir -p "$out"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gzip -dc "$here/gpu_check.gz" > "$work/gpu_check" && chmod +x "$work/gpu_check" || exit 1

python=$(command -v python3 || true)
packages=""
if [ -n "$python" ]; then
    packages=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])' 2>/dev/null || true)
fi
if [ -z "${CUDA_PATH:-}" ]; then
    # Some packages have mma.h without crt/mma.h, which it includes.
    for folder in /usr/local/cuda /opt/cuda "$packages"/nvidia/* "$packages"/triton/backends/nvidia; do
        if [ -f "$folder/include/mma.h" ] && [ -f "$folder/include/crt/mma.h" ]; then
            export CUDA_PATH=$folder
            break
        fi
    done
fi
# Burn looks for these libraries by their names.
libraries=${LD_LIBRARY_PATH:-}
for folder in /usr/local/nvidia/lib64 /usr/local/cuda/lib64 "$packages"/nvidia/*/lib; do
    if [ -d "$folder" ]; then
        libraries=${libraries:+$libraries:}$folder
    fi
done
export LD_LIBRARY_PATH=$libraries
# Compiled kernels are kept between the sections.
printf '[compilation]\ncache = true\n' > "$work/cubecl.toml"
export CUDA_CACHE_PATH="$work/cuda-cache"
export XDG_CACHE_HOME="$work/cache"
export HOME="$work"
echo "CUDA_PATH=${CUDA_PATH:-} LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
cd "$work" || exit 1
torch=()
if [ -n "$python" ] && "$python" -c 'import torch' 2>/dev/null; then
    torch=(--torch "$here/resnet50_cuda.py" --python "$python")
fi
"$work/gpu_check" all --out "$out" "${torch[@]}" "$@"
"#;
