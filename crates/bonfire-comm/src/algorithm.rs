//! What a user can choose about communication: engine, algorithm, transport.

use std::fmt;
use std::str::FromStr;

use crate::CommError;

/// Declares a choice with its names, in the order in which they are shown.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident, $what:literal { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub enum $name {
            #[default]
            $($(#[$variant_doc])* $variant),+
        }

        impl $name {
            /// Every choice.
            pub const ALL: &[$name] = &[$(Self::$variant),+];

            /// Returns the name that a user writes.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                Self::ALL.iter().copied().find(|choice| choice.name() == text).ok_or_else(|| {
                    let names: Vec<_> = Self::ALL.iter().map(|choice| choice.name()).collect();
                    format!("unknown {} {text:?}; choose one of {}", $what, names.join(", "))
                })
            }
        }
    };
}

choice! {
    /// What moves the bytes of a run.
    EngineKind, "engine" {
        /// `nccl` on CUDA devices, `host` on the CPU.
        Auto = "auto",
        /// NVIDIA's library, between GPUs.
        Nccl = "nccl",
        /// A process per rank: shared memory within a machine, TCP between machines.
        Host = "host",
        /// A thread per rank in one process.
        Local = "local",
        /// An MPI library; the ranks are started by `mpirun`.
        Mpi = "mpi",
    }
}

impl EngineKind {
    /// Checks that this program has the engine.
    ///
    /// # Errors
    /// [`CommError::EngineUnavailable`] says what is missing and what to do.
    pub fn expect_available(self) -> Result<(), CommError> {
        let (reason, remedy) = match self {
            Self::Auto | Self::Host | Self::Local => return Ok(()),
            Self::Mpi if cfg!(feature = "mpi") => return Ok(()),
            Self::Mpi => (
                "this program was built without MPI",
                "build it with `--features mpi`, or choose \"host\"",
            ),
            Self::Nccl if cfg!(feature = "cuda") => return Ok(()),
            Self::Nccl => (
                "this program was built without CUDA",
                "build it with `--features cuda`, or choose \"host\"",
            ),
        };
        let (reason, remedy) = (reason.to_owned(), remedy.to_owned());
        Err(CommError::EngineUnavailable { engine: self, reason, remedy })
    }
}

choice! {
    /// How the `host` and `local` engines carry a collective out.
    ///
    /// All give the same bits every time; between algorithms the last bits of floating-point
    /// sums may differ with more than two ranks, because the order of the additions does.
    Algorithm, "algorithm" {
        /// By size and world. Within one machine: shared memory; with one rank a machine: a ring;
        /// else `hierarchical`. In the first two cases, small buffers are exchanged whole; up to
        /// which size is measured when the group starts. It chooses only among ways that add in
        /// the same order, so that a measurement, which is never the same twice, cannot change a
        /// result. Trees and doubling are therefore taken only when they are asked for.
        Auto = "auto",
        /// Each rank talks to its neighbours: most bandwidth, 2(W-1) latencies.
        Ring = "ring",
        /// A binary tree, pipelined: 2 log W latencies.
        Tree = "tree",
        /// Two binary trees, each for half of the data, such that an inner rank of one is a leaf of
        /// the other (Sanders, Speck, Träff 2009).
        DoubleTree = "double_tree",
        /// Exchange of everything with partners at distance 1, 2, 4, ...: log W latencies.
        RecursiveDoubling = "recursive_doubling",
        /// Through shared memory within each machine, and around a ring between machines.
        Hierarchical = "hierarchical",
    }
}

choice! {
    /// How the `host` engine reaches ranks of the same machine.
    Transport, "transport" {
        /// Shared memory within a machine, TCP between machines.
        Auto = "auto",
        /// TCP everywhere.
        Tcp = "tcp",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_are_listed() {
        for &algorithm in Algorithm::ALL {
            assert_eq!(algorithm.name().parse(), Ok(algorithm));
        }
        assert_eq!(EngineKind::default(), EngineKind::Auto);
        #[cfg(not(feature = "mpi"))]
        {
            let error = EngineKind::Mpi.expect_available().unwrap_err().to_string();
            assert!(error.starts_with("engine \"mpi\" cannot be used: this program"), "{error}");
            assert!(error.contains("--features mpi"), "{error}");
        }
        let error = "mesh".parse::<Algorithm>().unwrap_err();
        assert!(error.contains("\"mesh\"") && error.contains("double_tree"), "{error}");
    }
}
