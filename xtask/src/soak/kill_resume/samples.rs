//! Which samples a run has seen, from the logs of its ranks.

use crate::Result;
use std::path::Path;

/// Checks that each rank has had every step once, and every epoch every sample once over all ranks.
pub(super) fn check(run: &Path, ranks: usize, epochs: u64, samples: usize) -> Result<()> {
    let mut seen = vec![vec![0u32; samples]; epochs as usize];
    for rank in 0..ranks {
        let path = run.join(format!("samples-rank{rank}.csv"));
        let text = std::fs::read_to_string(&path)?;
        for (number, line) in text.lines().enumerate() {
            let mut fields = line.split(',');
            let mut field =
                || fields.next().ok_or_else(|| format!("a line of {} is short", path.display()));
            let (epoch, step): (usize, usize) = (field()?.parse()?, field()?.parse()?);
            if step != number + 1 {
                return Err(
                    format!("rank {rank}: step {step} stands at line {}", number + 1).into()
                );
            }
            for index in field()?.split_whitespace() {
                let index: usize = index.parse()?;
                let count = seen.get_mut(epoch).and_then(|epoch| epoch.get_mut(index));
                *count
                    .ok_or_else(|| format!("sample {index} of epoch {epoch} does not exist"))? += 1;
            }
        }
    }
    for (epoch, counts) in seen.iter().enumerate() {
        if let Some(index) = counts.iter().position(|count| *count != 1) {
            let times = counts[index];
            return Err(format!("epoch {epoch} has seen sample {index} {times} times").into());
        }
    }
    Ok(())
}
