use super::CommHook;
use super::half::HalfCompress;
use super::power_sgd::PowerSgd;
use super::quantized::{Fp8, Int8, Quantized};
use super::top_k::TopK;
use crate::ParallelError;

/// A choice of communication hook with its settings.
///
/// ```
/// use bonfire_parallel::hooks::Compression;
///
/// let hook = Compression::int8().build()?;
/// assert_eq!(hook.map(|hook| hook.name()), Some("int8"));
/// assert!(Compression::TopK { ratio: 0.0 }.build().is_err());
/// # Ok::<(), bonfire_parallel::ParallelError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Compression {
    /// The plain all-reduce.
    #[default]
    None,
    /// Gradients travel as IEEE half precision, divided by the world size before the cast.
    ///
    /// # Reference
    /// `torch.distributed.algorithms.ddp_comm_hooks.default_hooks.fp16_compress_hook`, which
    /// divides after the cast.
    Fp16,
    /// The same with bfloat16.
    Bf16,
    /// Gradients travel as 8-bit integers with an f32 scale a block, with error feedback.
    Int8 {
        /// Elements that share a scale. Default 64.
        block: usize,
    },
    /// The same with 8-bit floating-point numbers (e4m3).
    Fp8 {
        /// Elements that share a scale. Default 64.
        block: usize,
    },
    /// Only the elements of largest magnitude travel, with error feedback.
    TopK {
        /// Part of a bucket's elements that travels, at least one. Default 0.01.
        ratio: f64,
    },
    /// Matrices travel as two thin factors.
    ///
    /// # Reference
    /// Vogels et al. 2019, arXiv:1905.13727; names and defaults of PyTorch's `PowerSGDState`.
    PowerSgd {
        /// Columns of the factors. Default 1.
        matrix_approximation_rank: usize,
        /// A matrix is compressed if its factors together have fewer elements than the matrix by
        /// more than this factor. Default 2.
        min_compression_rate: f64,
        /// Step, from 0, in which compression begins; PyTorch's `start_powerSGD_iter`. At least 2
        /// with error feedback or warm start. Default 1000.
        start_iter: u64,
        /// Whether what was left out is added to the next gradient. Default true.
        use_error_feedback: bool,
        /// Whether a step begins with the factors of the one before. Default true.
        warm_start: bool,
        /// Seed of the first factors, the same on every rank. Default 0.
        seed: u64,
    },
}

/// Larger blocks would save less than a thousandth of the bytes.
const MAX_BLOCK: usize = 1 << 16;

impl Compression {
    /// Returns [`Compression::Int8`] with the default block.
    pub fn int8() -> Self {
        Self::Int8 { block: 64 }
    }

    /// Returns [`Compression::Fp8`] with the default block.
    pub fn fp8() -> Self {
        Self::Fp8 { block: 64 }
    }

    /// Returns [`Compression::TopK`] with the default ratio.
    pub fn top_k() -> Self {
        Self::TopK { ratio: 0.01 }
    }

    /// Returns [`Compression::PowerSgd`] with PyTorch's defaults.
    pub fn power_sgd() -> Self {
        Self::PowerSgd {
            matrix_approximation_rank: 1,
            min_compression_rate: 2.0,
            start_iter: 1000,
            use_error_feedback: true,
            warm_start: true,
            seed: 0,
        }
    }

    /// Makes the hook; `None` for the plain all-reduce.
    ///
    /// # Errors
    /// [`ParallelError::HookSetting`] for a setting that is impossible.
    pub fn build(self) -> Result<Option<Box<dyn CommHook>>, ParallelError> {
        self.check()?;
        Ok(match self {
            Self::None => None,
            Self::Fp16 => Some(Box::new(HalfCompress::<::half::f16>::default())),
            Self::Bf16 => Some(Box::new(HalfCompress::<::half::bf16>::default())),
            Self::Int8 { block } => Some(Box::new(Quantized::<Int8>::new(block))),
            Self::Fp8 { block } => Some(Box::new(Quantized::<Fp8>::new(block))),
            Self::TopK { ratio } => Some(Box::new(TopK::new(ratio))),
            Self::PowerSgd {
                matrix_approximation_rank: rank,
                min_compression_rate: min_rate,
                start_iter,
                use_error_feedback,
                warm_start,
                seed,
            } => {
                let settings = super::power_sgd::Settings {
                    rank,
                    min_rate,
                    start_iter,
                    use_error_feedback,
                    warm_start,
                    seed,
                };
                Some(Box::new(PowerSgd::new(settings)))
            }
        })
    }

    fn check(&self) -> Result<(), ParallelError> {
        match *self {
            Self::None | Self::Fp16 | Self::Bf16 => Ok(()),
            Self::Int8 { block } | Self::Fp8 { block } => {
                let possible = (1..=MAX_BLOCK).contains(&block);
                require(possible, "block", block, "a block has 1 to 65536 elements")
            }
            Self::TopK { ratio } => {
                let possible = ratio > 0.0 && ratio <= 1.0;
                require(possible, "ratio", ratio, "it is a part of the elements, in (0, 1]")
            }
            Self::PowerSgd {
                matrix_approximation_rank: rank,
                min_compression_rate: rate,
                start_iter,
                use_error_feedback,
                warm_start,
                seed: _,
            } => {
                let reason = "the factors need at least one column";
                require(rank >= 1, "matrix_approximation_rank", rank, reason)?;
                let reason = "it must be a finite number above 0";
                let possible = rate > 0.0 && rate.is_finite();
                require(possible, "min_compression_rate", rate, reason)?;
                let reason = "use_error_feedback and warm_start need a start at step 2 or later";
                let possible = start_iter >= 2 || !(use_error_feedback || warm_start);
                require(possible, "start_powerSGD_iter", start_iter, reason)
            }
        }
    }
}

fn require(
    possible: bool,
    name: &'static str,
    value: impl ToString,
    reason: &'static str,
) -> Result<(), ParallelError> {
    if possible {
        return Ok(());
    }
    Err(ParallelError::HookSetting { name, value: value.to_string(), reason })
}
