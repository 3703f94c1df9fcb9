use super::args::CollectivesArgs;
use super::op::Op;
use crate::CliError;
use bonfire_comm::{Algorithm, DType, EngineKind};

/// What to measure, checked for a world size.
pub(super) struct Plan {
    pub(super) algorithms: Vec<Algorithm>,
    pub(super) iterations: usize,
    ops: Vec<Op>,
    sizes: Vec<usize>,
    dtype: DType,
}

/// One operation on one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) op: Op,
    pub(super) dtype: DType,
    /// Elements of the whole buffer.
    pub(super) count: usize,
    pub(super) iterations: usize,
}

impl Case {
    pub(super) fn bytes(&self) -> usize {
        self.count * self.dtype.size_bytes()
    }
}

impl Plan {
    pub(super) fn resolve(args: &CollectivesArgs, world_size: usize) -> Result<Self, CliError> {
        check_sizes(args)?;
        if world_size == 1 && args.ops.contains(&Op::SendRecv) {
            return Err(CliError::Option {
                option: format!("--ops {}", Op::SendRecv.name()),
                problem: "a rank alone has no neighbour; give --nproc-per-node 2 or more".into(),
            });
        }
        if let Some(transport) = args.transport
            && !matches!(args.engine, EngineKind::Auto | EngineKind::Host)
        {
            return Err(CliError::Option {
                option: format!("--transport {transport}"),
                problem: format!(
                    "only engine \"host\" has a choice of transport, \"{}\" has none; leave one of \
                     them out",
                    args.engine
                ),
            });
        }
        Ok(Self {
            algorithms: args.algorithm.list(),
            iterations: args.iterations as usize,
            ops: args.ops.clone(),
            sizes: args.sizes.iter().map(|size| size.0).collect(),
            dtype: args.dtype,
        })
    }

    /// The operations in the order given, each on the sizes in the order given.
    pub(super) fn cases(&self, world_size: usize) -> Vec<Case> {
        let case = |op: Op, bytes: usize| {
            let count = op.count(bytes, self.dtype, world_size);
            Case { op, dtype: self.dtype, count, iterations: self.iterations }
        };
        let cases = |&op: &Op| match op {
            Op::Barrier => vec![case(op, 0)],
            _ => self.sizes.iter().map(|&bytes| case(op, bytes)).collect(),
        };
        self.ops.iter().flat_map(cases).collect()
    }
}

/// Refuses sizes that are no whole number of elements, all of them at once.
fn check_sizes(args: &CollectivesArgs) -> Result<(), CliError> {
    let width = args.dtype.size_bytes();
    let wrong = args.sizes.iter().filter(|size| size.0 % width != 0);
    let wrong = wrong.map(|size| size.0.to_string()).collect::<Vec<_>>();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(CliError::Option {
        option: format!("--sizes {}", wrong.join(",")),
        problem: format!(
            "not a multiple of {width} bytes, the size of an {} element; round it, or choose \
             another --dtype",
            args.dtype
        ),
    })
}
