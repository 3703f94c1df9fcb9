use super::op::Op;
use bonfire_comm::{Algorithm, DType, EngineKind, Transport};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::path::PathBuf;
use std::str::FromStr;

/// Measures the time and the bandwidth of collectives between ranks, on host memory
///
/// Follows the conventions of nccl-tests. A row of the table is one operation on one size: one
/// warm-up, then --iterations timed ones, one behind the other, all in place on the same memory
/// (send_recv has two buffers), and at last one more on known contents, whose result is checked. Sums are measured where a reduction is, and rank 0 is the root. Columns:
///
///   bytes  the buffer of a rank; for all_gather, reduce_scatter, all_to_all, gather and scatter
///          the buffer with the parts of all n ranks, rounded down to n equal parts; 0 for barrier
///   count  the elements of that buffer, or of one part
///   time   of the slowest rank in an iteration; the median over the iterations, in microseconds
///   algbw  bytes / time, in GB/s of 1e9 bytes per second
///   busbw  algbw * factor, to be compared with the speed of a link whatever the number of ranks:
///          2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter, all_to_all, gather
///          and scatter; 1 for reduce, broadcast and send_recv (to the next rank, from the last)
///   wrong  wrong elements over all ranks; if there are any, the exit code is 1
///
/// Starts its own processes (engine local: threads) with --nproc-per-node, or joins a group when
/// the environment already names a rank (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT).
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CollectivesArgs {
    /// Ranks to start on this machine.
    #[arg(long, default_value_t = 2, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) nproc_per_node: u32,
    /// Operations, separated by commas.
    #[arg(long, default_value = "all_reduce", value_name = "OP,...", value_delimiter = ',',
          value_parser = one_of(Op::ALL, Op::name))]
    pub(super) ops: Vec<Op>,
    /// Sizes in bytes, separated by commas: plain, or with K, M or G for 1024, 1024^2 or 1024^3;
    /// each a multiple of the size of an element.
    #[arg(long, default_value = "4K,1M,25M,100M", value_name = "SIZE,...", value_delimiter = ',')]
    pub(super) sizes: Vec<Size>,
    /// Type of the elements.
    #[arg(long, default_value = "f32", value_name = "TYPE",
          value_parser = one_of(&DType::ALL, DType::name))]
    pub(super) dtype: DType,
    /// How the engine carries the operations out; "all" measures every algorithm.
    #[arg(long, default_value = "auto", value_name = "NAME", value_parser = algorithms())]
    pub(super) algorithm: Algorithms,
    /// What moves the bytes.
    #[arg(long, default_value = "auto", value_name = "NAME",
          value_parser = one_of(EngineKind::ALL, EngineKind::name))]
    pub(super) engine: EngineKind,
    /// How engine host reaches ranks of the same machine [default: auto, or BONFIRE_TRANSPORT]
    #[arg(long, value_name = "NAME", value_parser = one_of(Transport::ALL, Transport::name))]
    pub(super) transport: Option<Transport>,
    /// Timed iterations of every row.
    #[arg(long, default_value_t = 20, value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) iterations: u32,
    /// Also writes the rows to a file, as a JSON list, when all are measured.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Lets ranks of several machines connect without BONFIRE_TOKEN.
    #[arg(long)]
    pub(super) insecure: bool,
}

/// Reads one of `all` by its name; the help and the error list the names.
fn one_of<T: Copy + Send + Sync + 'static>(
    all: &'static [T],
    name: fn(T) -> &'static str,
) -> impl TypedValueParser<Value = T> {
    PossibleValuesParser::new(all.iter().map(move |&one| name(one))).try_map(move |text| {
        all.iter().copied().find(|&one| name(one) == text).ok_or("this is none of the names")
    })
}

/// Which algorithms to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithms {
    One(Algorithm),
    All,
}

impl Algorithms {
    pub(super) fn list(self) -> Vec<Algorithm> {
        match self {
            Self::One(algorithm) => vec![algorithm],
            Self::All => Algorithm::ALL.to_vec(),
        }
    }
}

fn algorithms() -> impl TypedValueParser<Value = Algorithms> {
    let names = Algorithm::ALL.iter().map(|algorithm| algorithm.name()).chain(["all"]);
    PossibleValuesParser::new(names)
        .map(|text| text.parse().map_or(Algorithms::All, Algorithms::One))
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Size(pub(super) usize);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = match text.char_indices().next_back() {
            Some((end, 'K' | 'k')) => (&text[..end], 1 << 10),
            Some((end, 'M' | 'm')) => (&text[..end], 1 << 20),
            Some((end, 'G' | 'g')) => (&text[..end], 1 << 30),
            _ => (text, 1),
        };
        // A sign would pass for a number too.
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("no size; give whole bytes (4096), or K, M or G for powers of 1024 (4K, \
                        25M, 1G), separated by commas"
                .into());
        }
        let bytes = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
        bytes.map(Self).ok_or_else(|| "more bytes than a memory can have".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        args: CollectivesArgs,
    }

    fn parse(args: &[&str]) -> Result<CollectivesArgs, String> {
        let program = Program::try_parse_from(["bench"].iter().chain(args));
        program.map(|program| program.args).map_err(|error| error.to_string())
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        let sizes = ["1000", "4K", "25m", "2G", "0"].map(|text| text.parse::<Size>().unwrap().0);
        assert_eq!(sizes, [1000, 4096, 25 << 20, 2 << 30, 0]);
        for wrong in
            ["", "K", "4KB", "+4", "-4", "1.5M", "4 K", "é", "99999999999999999999", "99999999999G"]
        {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_help() {
        let args = parse(&[]).unwrap();
        assert_eq!(args.sizes, [4 << 10, 1 << 20, 25 << 20, 100 << 20].map(Size));
        assert_eq!((args.ops, args.dtype), (vec![Op::AllReduce], DType::F32));
        assert_eq!(args.algorithm, Algorithms::One(Algorithm::Auto));
        assert_eq!((args.engine, args.transport), (EngineKind::Auto, None));
        assert_eq!((args.nproc_per_node, args.iterations), (2, 20));
    }

    #[test]
    fn names_are_read() {
        let args = ["--ops", "barrier,send_recv", "--algorithm", "all", "--dtype", "bf16"];
        let args = parse(&args).unwrap();
        assert_eq!((args.ops, args.dtype), (vec![Op::Barrier, Op::SendRecv], DType::BF16));
        assert_eq!(args.algorithm.list(), Algorithm::ALL);
        let error = parse(&["--algorithm", "mesh"]).map(drop).unwrap_err();
        assert!(error.contains("double_tree") && error.contains("all"), "{error}");
    }
}
