//! What ranks tell each other beside gradients: how an epoch ends, and why training stops.

use crate::TrainError;
use bonfire_comm::{ProcessGroup, ReduceOp};
use burn::train::train::WorkerFailure;
use burn::train::{Interrupter, TrainingError};

/// A word of rank 0 to all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Word {
    /// Another batch is validated: wait on.
    Validating,
    /// The next epoch begins.
    Continue,
    /// Training ends here, early but as it should.
    Finish,
    /// Training was interrupted.
    Interrupt,
}

impl Word {
    const ALL: [Self; 4] = [Self::Validating, Self::Continue, Self::Finish, Self::Interrupt];
}

/// The group in which ranks agree; gradients have another.
pub(super) struct Control(pub(super) ProcessGroup);

impl Control {
    /// On rank 0: tells all others a word, and returns it.
    pub(super) fn tell(&self, word: Word) -> Result<Word, TrainError> {
        self.0.broadcast(&mut [word as u8], 0)?;
        Ok(word)
    }

    /// On the other ranks: waits for what rank 0 tells, at most for the group's deadline.
    pub(super) fn hear(&self) -> Result<Word, TrainError> {
        let mut byte = [0];
        self.0.broadcast(&mut byte, 0)?;
        // Ranks of different versions do not meet, so there is no other byte.
        Ok(Word::ALL.into_iter().find(|word| *word as u8 == byte[0]).unwrap_or(Word::Interrupt))
    }

    /// Whether all ranks say yes.
    pub(super) fn all(&self, yes: bool) -> Result<bool, TrainError> {
        let mut byte = [u8::from(yes)];
        self.0.all_reduce(&mut byte, ReduceOp::Min)?;
        Ok(byte[0] == 1)
    }

    /// Tells the interrupters of all ranks why training stops: the first rank with an error is the
    /// cause, else the first that was asked to stop.
    pub(super) fn share_cause(&self, interrupter: &Interrupter) -> Result<(), TrainError> {
        let own = Cause::of(interrupter);
        let all = self.0.all_gather_bytes(&own.encode())?;
        let all: Vec<Cause> = all.iter().map(|bytes| Cause::decode(bytes)).collect();
        let found = |kind: fn(&Cause) -> bool| all.iter().position(kind);
        if let Some(rank) = found(|cause| matches!(cause, Cause::Error(_))) {
            if !matches!(own, Cause::Error(_)) {
                let message = all[rank].text().to_string();
                let failure = WorkerFailure { device_id: rank, message };
                interrupter.fail(TrainingError::Workers(vec![failure]));
            }
        } else if let Some(rank) = found(|cause| matches!(cause, Cause::Stop(_)))
            && own == Cause::None
        {
            interrupter.stop(Some(&format!("rank {rank}: {}", all[rank].text())));
        }
        Ok(())
    }
}

/// Why a rank stops.
#[derive(Debug, PartialEq, Eq)]
enum Cause {
    None,
    Stop(String),
    Error(String),
}

impl Cause {
    fn of(interrupter: &Interrupter) -> Self {
        if let Some(error) = interrupter.error() {
            return Self::Error(error.to_string());
        }
        let interruption = interrupter.interruption();
        interruption.map_or(Self::None, |interruption| {
            Self::Stop(interruption.reason.unwrap_or_else(|| "no reason given".into()))
        })
    }

    fn text(&self) -> &str {
        match self {
            Self::None => "",
            Self::Stop(text) | Self::Error(text) => text,
        }
    }

    fn encode(&self) -> Vec<u8> {
        let kind = match self {
            Self::None => b'-',
            Self::Stop(_) => b's',
            Self::Error(_) => b'e',
        };
        [&[kind], self.text().as_bytes()].concat()
    }

    fn decode(bytes: &[u8]) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match bytes.split_first() {
            Some((b's', rest)) => Self::Stop(text(rest)),
            Some((b'e', rest)) => Self::Error(text(rest)),
            _ => Self::None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test reports by panicking")]
mod tests {
    use super::*;
    use bonfire_comm::local;
    use burn::train::checkpoint::CheckpointerError;

    #[test]
    fn every_rank_hears_why_another_stops() {
        let stopped = local::spawn(3, |group| {
            let interrupter = Interrupter::new();
            if group.rank() == 1 {
                interrupter.stop(Some("enough"));
            }
            Control(group).share_cause(&interrupter).unwrap();
            interrupter.interruption().unwrap().reason.unwrap()
        });
        assert_eq!(stopped, ["rank 1: enough", "enough", "rank 1: enough"]);
    }

    #[test]
    fn an_error_goes_before_a_stop() {
        let errors = local::spawn(3, |group| {
            let interrupter = Interrupter::new();
            match group.rank() {
                0 => interrupter.stop(None),
                1 => {}
                _ => interrupter.fail(CheckpointerError::Unknown("disk full".into())),
            }
            Control(group).share_cause(&interrupter).unwrap();
            interrupter.error().unwrap().to_string()
        });
        for error in errors {
            assert!(error.contains("disk full"), "{error}");
        }
    }
}
