//! Checks and removes checkpoints.

use super::args::{PruneArgs, VerifyArgs};
use crate::CliError;
use crate::exit::Outcome;
use crate::output::print_line;
use bonfire_trainer::TrainError;
use bonfire_trainer::checkpoint::{self, list, load};

/// Reads every checkpoint whole.
pub(super) fn verify(args: &VerifyArgs) -> Result<Outcome, CliError> {
    let (mut sound, mut damaged) = (0, 0);
    for path in &args.paths {
        let entries = match list(path) {
            Ok(entries) => entries,
            Err(error) => {
                damaged += 1;
                print_line(format_args!("{}: {error}", path.display()))?;
                continue;
            }
        };
        for entry in entries {
            match entry.manifest.and_then(|_| load(&entry.path)) {
                Ok(_) => {
                    sound += 1;
                    print_line(format_args!("{}: sound", entry.path.display()))?;
                }
                Err(error) => {
                    damaged += 1;
                    print_line(format_args!("{}: damaged: {error}", entry.path.display()))?;
                }
            }
        }
    }
    match damaged {
        0 => Ok(Outcome::Done),
        _ => Err(CliError::DamagedCheckpoints { damaged, total: sound + damaged }),
    }
}

/// Removes what is old.
pub(super) fn prune(args: &PruneArgs) -> Result<Outcome, CliError> {
    let gone = checkpoint::prune(&args.path, args.keep_last.get(), args.dry_run);
    let gone = gone.map_err(TrainError::from)?;
    let verb = if args.dry_run { "would remove" } else { "removed" };
    gone.iter().try_for_each(|path| print_line(format_args!("{verb} {}", path.display())))?;
    if gone.is_empty() {
        print_line("nothing to remove")?;
    }
    Ok(Outcome::Done)
}
