//! `[data.transforms]` and `[data.valid_transforms]` as written.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::brief::{Brief, Briefly, brief};
use super::choice::choice;
use super::one_or_many::OneOrMany;

choice! {
    /// What borders consist of.
    PaddingModeKind {
        /// The fill value.
        Constant = "constant",
        /// The pixel at the edge.
        Edge = "edge",
        /// The mirror image without the edge.
        Reflect = "reflect",
        /// The mirror image with the edge.
        Symmetric = "symmetric",
    }
}

choice! {
    /// How pixels between pixels are made.
    InterpolationKind {
        /// The nearest one.
        Nearest = "nearest",
        /// A weighted mean of four.
        Bilinear = "bilinear",
    }
}

choice! {
    /// What erased parts consist of, if not of given bytes.
    ErasingValueKind {
        /// The mean that normalisation takes away.
        Mean = "mean",
        /// Normal noise with the mean and deviation of the normalisation.
        Random = "random",
    }
}

/// `[data.transforms]`: what becomes of training images. Those given are applied in this order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransformsSection {
    /// Length of the shorter edge, or `[height, width]`; default: images keep their size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize: Option<OneOrMany<usize>>,
    /// A border: pixels for all sides, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<PadSection>")]
    pub pad: Option<PadSection>,
    /// Edge, or `[height, width]`, of a crop in the middle; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub center_crop: Option<OneOrMany<usize>>,
    /// A crop at a random place: edge, `[height, width]`, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<RandomCropSection>")]
    pub random_crop: Option<RandomCropSection>,
    /// A random part, resized: edge, `[height, width]`, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<RandomResizedCropSection>")]
    pub random_resized_crop: Option<RandomResizedCropSection>,
    /// Probability of a mirror image, in [0, 1]; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub horizontal_flip: Option<f64>,
    /// A rotation: greatest angle in degrees, `[least, greatest]`, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<RotationSection>")]
    pub rotation: Option<RotationSection>,
    /// Changes of colours; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub color_jitter: Option<ColorJitterSection>,
    /// RandAugment: `true`, or a table; default none. Not together with `trivial_augment`.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<RandAugmentSection>")]
    pub rand_augment: Option<RandAugmentSection>,
    /// TrivialAugment: `true`, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<TrivialAugmentSection>")]
    pub trivial_augment: Option<TrivialAugmentSection>,
    /// Random erasing: its probability, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<RandomErasingSection>")]
    pub random_erasing: Option<RandomErasingSection>,
    /// Parameter of mixup's Beta distribution, above 0; default: no mixup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mixup_alpha: Option<f64>,
    /// Parameter of CutMix's Beta distribution, above 0; default: no CutMix.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cutmix_alpha: Option<f64>,
}

/// `[data.valid_transforms]`: what becomes of validation images, which nothing random may touch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValidTransformsSection {
    /// Length of the shorter edge, or `[height, width]`; default: images keep their size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resize: Option<OneOrMany<usize>>,
    /// A border: pixels for all sides, or a table; default none.
    #[serde(default, deserialize_with = "brief", skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Briefly<PadSection>")]
    pub pad: Option<PadSection>,
    /// Edge, or `[height, width]`, of a crop in the middle; default none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub center_crop: Option<OneOrMany<usize>>,
}

/// `pad`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PadSection {
    /// Pixels at all sides, `[left and right, top and bottom]`, or `[left, top, right, bottom]`;
    /// required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<OneOrMany<usize>>,
    /// Byte that a constant border has, for all channels or for each; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<OneOrMany<u8>>,
    /// What the border consists of; default `"constant"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<PaddingModeKind>,
}

/// `random_crop`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RandomCropSection {
    /// Edge, or `[height, width]`; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<OneOrMany<usize>>,
    /// Border before the crop, as `pad.padding`; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding: Option<OneOrMany<usize>>,
    /// Whether images that are too small get a border; default false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_if_needed: Option<bool>,
    /// Byte that a constant border has, for all channels or for each; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<OneOrMany<u8>>,
    /// What the border consists of; default `"constant"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub padding_mode: Option<PaddingModeKind>,
}

/// `random_resized_crop`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RandomResizedCropSection {
    /// Edge, or `[height, width]`, of the result; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<OneOrMany<usize>>,
    /// Least and greatest share of the image's area, in (0, 1]; default [0.08, 1].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<[f64; 2]>,
    /// Least and greatest width over height; default [3/4, 4/3].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<[f64; 2]>,
}

/// `rotation`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RotationSection {
    /// Greatest angle either way in degrees, or `[least, greatest]`; required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub degrees: Option<OneOrMany<f64>>,
    /// How pixels between pixels are made; default `"nearest"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpolation: Option<InterpolationKind>,
    /// Byte of what lies outside, for all channels or for each; default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<OneOrMany<u8>>,
}

/// `color_jitter`: for each property a strength, or `[least, greatest]`; default none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ColorJitterSection {
    /// Factors of the brightness; a strength `s` is `[max(0, 1 - s), 1 + s]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub brightness: Option<OneOrMany<f64>>,
    /// Factors of the contrast, in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contrast: Option<OneOrMany<f64>>,
    /// Factors of the saturation, in the same way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub saturation: Option<OneOrMany<f64>>,
    /// Turns of the hue in circles, within [-0.5, 0.5]; a strength `s` is `[-s, s]`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hue: Option<OneOrMany<f64>>,
}

/// `rand_augment`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RandAugmentSection {
    /// Operations an image; default 2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_ops: Option<usize>,
    /// Strength, below `num_magnitude_bins`; default 9.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub magnitude: Option<usize>,
    /// Number of strengths, 2 or more; default 31.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_magnitude_bins: Option<usize>,
    /// How pixels between pixels are made; default `"nearest"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpolation: Option<InterpolationKind>,
}

/// `trivial_augment`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrivialAugmentSection {
    /// Number of strengths, 2 or more; default 31.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_magnitude_bins: Option<usize>,
    /// How pixels between pixels are made; default `"nearest"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interpolation: Option<InterpolationKind>,
}

/// `random_erasing`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RandomErasingSection {
    /// Probability, in [0, 1]; default 0.5.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p: Option<f64>,
    /// Least and greatest share of the image's area, in [0, 1]; default [0.02, 0.33].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scale: Option<[f64; 2]>,
    /// Least and greatest height over width; default [0.3, 3.3].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<[f64; 2]>,
    /// What erased parts consist of, by the normalisation; default `"mean"`. Not together with `fill`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<ErasingValueKind>,
    /// Byte that erased parts get instead, for all channels or for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fill: Option<OneOrMany<u8>>,
}

impl Brief for PadSection {
    type Main = OneOrMany<usize>;
    const EXPECTED: &'static str = "pixels, a list of them, or a table of keys";

    fn brief(padding: OneOrMany<usize>) -> Option<Self> {
        Some(Self { padding: Some(padding), ..Self::default() })
    }
}

impl Brief for RandomCropSection {
    type Main = OneOrMany<usize>;
    const EXPECTED: &'static str = "an edge in pixels, [height, width], or a table of keys";

    fn brief(size: OneOrMany<usize>) -> Option<Self> {
        Some(Self { size: Some(size), ..Self::default() })
    }
}

impl Brief for RandomResizedCropSection {
    type Main = OneOrMany<usize>;
    const EXPECTED: &'static str = RandomCropSection::EXPECTED;

    fn brief(size: OneOrMany<usize>) -> Option<Self> {
        Some(Self { size: Some(size), ..Self::default() })
    }
}

impl Brief for RotationSection {
    type Main = OneOrMany<f64>;
    const EXPECTED: &'static str = "an angle in degrees, [least, greatest], or a table of keys";

    fn brief(degrees: OneOrMany<f64>) -> Option<Self> {
        Some(Self { degrees: Some(degrees), ..Self::default() })
    }
}

impl Brief for RandAugmentSection {
    type Main = bool;
    const EXPECTED: &'static str = "true, false or a table of keys";

    fn brief(wanted: bool) -> Option<Self> {
        wanted.then(Self::default)
    }
}

impl Brief for TrivialAugmentSection {
    type Main = bool;
    const EXPECTED: &'static str = RandAugmentSection::EXPECTED;

    fn brief(wanted: bool) -> Option<Self> {
        wanted.then(Self::default)
    }
}

impl Brief for RandomErasingSection {
    type Main = f64;
    const EXPECTED: &'static str = "a probability or a table of keys";

    fn brief(p: f64) -> Option<Self> {
        Some(Self { p: Some(p), ..Self::default() })
    }
}
