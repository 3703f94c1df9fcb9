use super::args::InspectArgs;
use crate::CliError;
use crate::exit::Outcome;
use crate::output::print_line;
use bonfire_tensor::state::State;
use bonfire_trainer::TrainError;
use bonfire_trainer::checkpoint::{Checkpoint, Entry, list, load};
use std::collections::BTreeMap;

/// Prints what there is at a path, and the newest checkpoint of it.
pub(super) fn inspect(args: &InspectArgs) -> Result<Outcome, CliError> {
    let entries = list(&args.path).map_err(TrainError::from)?;
    if entries.len() > 1 {
        entries.iter().try_for_each(|entry| print_line(line(entry)))?;
        print_line("")?;
    }
    show(&load(&args.path).map_err(TrainError::from)?, args.tensors)?;
    Ok(Outcome::Done)
}

/// A checkpoint of several in a line.
fn line(entry: &Entry) -> String {
    let name = entry.path.file_name().unwrap_or_default().to_string_lossy();
    let pointers = [(entry.latest, "latest"), (entry.best, "best")];
    let pointers = pointers.into_iter().filter(|(is, _)| *is).map(|(_, name)| name);
    let pointers = pointers.collect::<Vec<_>>().join(", ");
    match &entry.manifest {
        Ok(manifest) => {
            let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
            format!("{name}  epoch {:>4}  {:>10}  {pointers}", manifest.epoch, size(bytes))
        }
        Err(error) => format!("{name}  {error}"),
    }
}

fn show(checkpoint: &Checkpoint, tensors: bool) -> Result<(), CliError> {
    let manifest = &checkpoint.manifest;
    print_line(format_args!(
        "step {}, epoch {}, saved by {} rank(s), format {}",
        manifest.step, manifest.epoch, manifest.world_size, manifest.format
    ))?;
    for file in &manifest.files {
        print_line(format_args!("{:<20} {:>10}  xxh3 {}", file.name, size(file.bytes), file.xxh3))?;
    }
    print_line("\nparts")?;
    for (part, (count, elements, bytes)) in parts(&checkpoint.state) {
        print_line(format_args!(
            "{part:<20} {count:>5} tensors  {elements:>12} elements  {:>10}",
            size(bytes)
        ))?;
    }
    print_line("\nconfiguration")?;
    for (key, value) in &manifest.configuration {
        print_line(format_args!("{key} = {value}"))?;
    }
    if tensors {
        print_line("\ntensors")?;
        for (name, tensor) in &checkpoint.state.tensors {
            let bytes = tensor.data.as_bytes().len() as u64;
            let (shape, dtype) = (&tensor.shape, tensor.data.dtype());
            print_line(format_args!("{name}  {shape:?}  {dtype}  {}", size(bytes)))?;
        }
        print_line("\nscalars")?;
        for (name, scalar) in &checkpoint.state.scalars {
            print_line(format_args!("{name} = {scalar:?}"))?;
        }
    }
    Ok(())
}

/// Tensors, elements and bytes of each part of a state.
fn parts(state: &State) -> BTreeMap<String, (usize, usize, u64)> {
    let mut parts = BTreeMap::new();
    for (name, tensor) in &state.tensors {
        let words = if name.starts_with("callback.") { 2 } else { 1 };
        let part: Vec<&str> = name.split('.').take(words).collect();
        let (count, elements, bytes) = parts.entry(part.join(".")).or_insert((0, 0, 0));
        *count += 1;
        *elements += tensor.data.len();
        *bytes += tensor.data.as_bytes().len() as u64;
    }
    parts
}

/// A number of bytes for people.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
