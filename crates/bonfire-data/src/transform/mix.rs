//! Mixup and CutMix: batches whose images are mixed with each other.

use std::ops::Range;

use crate::{BatchContext, RandomSource};

/// Mixes each image of a batch with the one before it in the batch (the first with the last), as all
/// images of the batch are mixed: one draw for a batch.
///
/// With both parameters each batch gets one of the two, with probability 1/2.
///
/// The draw depends on seed, epoch and the position of the global batch in the epoch
/// ([`BatchContext`]) only: it is the same on all shards, whatever the number of workers, and in a
/// resumed run. Which images are partners depends on the shard too, since a shard mixes only what it
/// reads anyway: with another number of shards other images meet.
///
/// # Reference
///
/// `torchvision.transforms.v2.MixUp` and `CutMix`, under `RandomChoice` when both are given; Zhang et
/// al., "mixup: Beyond Empirical Risk Minimization", 2017, arXiv:1710.09412; Yun et al., "CutMix:
/// Regularization Strategy to Train Strong Classifiers with Localizable Features", 2019,
/// arXiv:1905.04899.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchMix {
    /// Parameter of mixup's Beta distribution, above 0; `None` for no mixup.
    pub mixup_alpha: Option<f64>,
    /// Parameter of CutMix's Beta distribution, above 0; `None` for no CutMix.
    pub cutmix_alpha: Option<f64>,
}

/// How the images of one batch are mixed.
#[derive(Debug, Clone, PartialEq)]
pub enum Mix {
    /// Each pixel is `lambda` of the image's own and `1 - lambda` of the partner's.
    MixUp {
        /// Share of the image itself.
        lambda: f64,
    },
    /// A rectangle is the partner's.
    CutMix {
        /// Rows of the rectangle.
        rows: Range<usize>,
        /// Columns of the rectangle.
        columns: Range<usize>,
        /// Share of the image's area that stays its own.
        lambda: f64,
    },
}

impl BatchMix {
    /// Draws how a batch of images of `[height, width]` is mixed; `None` when neither is wanted.
    pub fn draw(&self, context: &BatchContext, size: [usize; 2]) -> Option<Mix> {
        let mut random = RandomSource::new(context.random_seed());
        match (self.mixup_alpha, self.cutmix_alpha) {
            (Some(_), Some(alpha)) if random.chance(0.5) => {
                Some(Mix::cutmix(alpha, size, &mut random))
            }
            (Some(alpha), _) => Some(Mix::MixUp { lambda: random.symmetric_beta(alpha) }),
            (None, Some(alpha)) => Some(Mix::cutmix(alpha, size, &mut random)),
            (None, None) => None,
        }
    }
}

impl Mix {
    /// A rectangle with the aspect ratio of the image and `1 - lambda` of its area, around a point that
    /// is drawn uniformly; what juts out is cut off, and `lambda` made good.
    fn cutmix(alpha: f64, [height, width]: [usize; 2], random: &mut RandomSource) -> Self {
        let lambda = random.symmetric_beta(alpha);
        let half = 0.5 * (1.0 - lambda).sqrt();
        let mut span = |edge: usize| {
            let (middle, half) = (random.below(edge), (half * edge as f64) as usize);
            middle.saturating_sub(half)..(middle + half).min(edge)
        };
        let (columns, rows) = (span(width), span(height));
        let cut = (rows.len() * columns.len()) as f64;
        let lambda = 1.0 - cut / (height * width).max(1) as f64;
        Self::CutMix { rows, columns, lambda }
    }

    /// Returns the share of an image's own class in its target; the partner's class has the rest.
    pub fn lambda(&self) -> f64 {
        match self {
            Self::MixUp { lambda } | Self::CutMix { lambda, .. } => *lambda,
        }
    }

    /// Returns for each of `count` images the place of its partner: the one before it.
    pub fn partners(count: usize) -> impl Iterator<Item = usize> {
        (0..count).map(move |image| (image + count - 1) % count)
    }

    /// Mixes the images of a batch in place.
    ///
    /// `blend` makes `lambda * own + (1 - lambda) * partner` of two values.
    ///
    /// # Shapes
    ///
    /// `values`: `[batch, channels, height, width]`, of which `shape` is the last three.
    pub fn apply<E: Copy>(&self, values: &mut [E], shape: [usize; 3], blend: impl Fn(E, E) -> E) {
        let size = shape.iter().product::<usize>().max(1);
        // From the back, so that each partner is still as it was; the last is that of the first.
        let Some(last) = values.chunks_exact(size).next_back().map(<[E]>::to_vec) else { return };
        for image in (0..values.len() / size).rev() {
            let (before, own) = values[..(image + 1) * size].split_at_mut(image * size);
            let partner = before.rchunks_exact(size).next().unwrap_or(&last);
            self.mix(own, partner, shape, &blend);
        }
    }

    fn mix<E: Copy>(
        &self,
        own: &mut [E],
        partner: &[E],
        [_, height, width]: [usize; 3],
        blend: impl Fn(E, E) -> E,
    ) {
        match self {
            Self::MixUp { .. } => {
                own.iter_mut().zip(partner).for_each(|(own, other)| *own = blend(*own, *other));
            }
            Self::CutMix { rows, columns, .. } => {
                let lines =
                    own.chunks_exact_mut(width.max(1)).zip(partner.chunks_exact(width.max(1)));
                for (_, (own, other)) in
                    lines.enumerate().filter(|(line, _)| rows.contains(&(line % height)))
                {
                    own[columns.clone()].copy_from_slice(&other[columns.clone()]);
                }
            }
        }
    }
}
