//! How many nodes and processes: the numbers of a command line.

use std::fmt;
use std::num::NonZeroUsize;
use std::path::Path;
use std::str::FromStr;

/// Nodes of a run: as many as given, or any number of a range (`2:4`), which makes the run elastic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeCount {
    /// Below this number the run waits.
    pub min: usize,
    /// Further nodes wait until one is lost.
    pub max: usize,
}

impl NodeCount {
    /// Exactly one node.
    pub const ONE: Self = Self { min: 1, max: 1 };

    /// Whether the number may change while the run lasts.
    pub fn is_elastic(self) -> bool {
        self.min < self.max
    }
}

impl FromStr for NodeCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.trim()
                .parse::<usize>()
                .map_err(|_| format!("{text:?} is no number; write 4, or 2:4 for 2 to 4 nodes"))
        };
        let (min, max) = match text.split_once(':') {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        match (min, max) {
            (0, _) => Err("a run has at least 1 node".to_owned()),
            (min, max) if min > max => {
                Err(format!("the least number of nodes, {min}, is above the largest, {max}"))
            }
            _ => Ok(Self { min, max }),
        }
    }
}

impl fmt::Display for NodeCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_elastic() {
            true => write!(f, "{}:{}", self.min, self.max),
            false => write!(f, "{}", self.min),
        }
    }
}

/// Processes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessCount {
    /// This many.
    Exactly(NonZeroUsize),
    /// One for each GPU that may be used, or else for each core.
    Auto,
    /// One for each GPU that may be used.
    Gpu,
    /// One for each core that may be used.
    Cpu,
}

impl ProcessCount {
    /// The number on this machine.
    ///
    /// # Errors
    /// In words, where GPUs are asked for and there is none.
    pub fn resolve(self) -> Result<usize, String> {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        match (self, visible_gpus()) {
            (Self::Exactly(count), _) => Ok(count.get()),
            (Self::Cpu, _) | (Self::Auto, 0) => Ok(cores()),
            (Self::Auto | Self::Gpu, gpus) if gpus > 0 => Ok(gpus),
            _ => Err("this machine shows no NVIDIA GPU (/proc/driver/nvidia/gpus, \
                      CUDA_VISIBLE_DEVICES); use cpu, or a number"
                .to_owned()),
        }
    }
}

impl FromStr for ProcessCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            text => match text.parse::<usize>().ok().and_then(NonZeroUsize::new) {
                Some(count) if count.get() <= 4096 => Ok(Self::Exactly(count)),
                _ => Err("write a number of 1 to 4096, auto, gpu or cpu".to_owned()),
            },
        }
    }
}

impl fmt::Display for ProcessCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exactly(count) => write!(f, "{count}"),
            Self::Auto => f.write_str("auto"),
            Self::Gpu => f.write_str("gpu"),
            Self::Cpu => f.write_str("cpu"),
        }
    }
}

/// GPUs that processes started here would see, without asking a library of NVIDIA's.
fn visible_gpus() -> usize {
    let installed =
        std::fs::read_dir(Path::new("/proc/driver/nvidia/gpus")).map_or(0, Iterator::count);
    visible_of(installed, std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
}

/// CUDA reads the list up to the first number that is none of a GPU.
fn visible_of(installed: usize, list: Option<&str>) -> usize {
    let is_device = |name: &&str| match name.trim().parse::<usize>() {
        Ok(number) => number < installed,
        Err(_) => name.trim().starts_with("GPU-") || name.trim().starts_with("MIG-"),
    };
    match list {
        None => installed,
        Some(list) if installed > 0 => list.split(',').take_while(is_device).count(),
        Some(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_a_number_or_a_range() {
        assert_eq!("3".parse(), Ok(NodeCount { min: 3, max: 3 }));
        assert_eq!("1:4".parse(), Ok(NodeCount { min: 1, max: 4 }));
        let shown: NodeCount = "1:4".parse().unwrap();
        assert_eq!((shown.to_string().as_str(), NodeCount::ONE.to_string().as_str()), ("1:4", "1"));
        for wrong in ["", "0", "4:2", "a", "1:2:3"] {
            assert!(wrong.parse::<NodeCount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn processes_are_a_number_or_follow_the_machine() {
        assert_eq!("2".parse::<ProcessCount>().unwrap().resolve(), Ok(2));
        assert!("cpu".parse::<ProcessCount>().unwrap().resolve().unwrap() >= 1);
        for wrong in ["0", "-1", "4097", "tpu"] {
            assert!(wrong.parse::<ProcessCount>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn gpus_are_counted_as_cuda_counts_them() {
        assert_eq!(visible_of(4, None), 4);
        assert_eq!(visible_of(4, Some("1,3")), 2);
        assert_eq!(visible_of(4, Some("1,9,2")), 1);
        assert_eq!(visible_of(4, Some("")), 0);
        assert_eq!(visible_of(0, Some("0,1")), 0);
        assert_eq!(visible_of(2, Some("GPU-1f,GPU-2a")), 2);
    }
}
