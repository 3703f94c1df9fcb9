//! Checks of `[data.transforms]` and `[data.valid_transforms]`, and the way back.

use bonfire_data::transform::{
    BatchMix, CenterCrop, ColorJitter, Interpolation, Pad, PaddingMode, RandAugment, RandomCrop,
    RandomErasing, RandomHorizontalFlip, RandomResizedCrop, RandomRotation, Resize, ResizeTo,
    TrivialAugmentWide,
};

use super::one_or_many::OneOrMany;
use super::resolve::Resolver;
use super::transform_sections::{
    ColorJitterSection, ErasingValueKind, InterpolationKind, PadSection, PaddingModeKind,
    RandAugmentSection, RandomCropSection, RandomErasingSection, RandomResizedCropSection,
    RotationSection, TransformsSection, ValidTransformsSection,
};
use super::transforms::{AutoAugmentPlan, CropPlan, ErasingPlan, ErasingValue, TransformsPlan};

/// Longest edge of an image, and widest border, in pixels.
pub const LONGEST_EDGE: usize = 65_535;

/// Checks `[data.transforms]`.
pub(super) fn resolve(section: &TransformsSection, resolver: &mut Resolver<'_>) -> TransformsPlan {
    let mut keys = Keys { section: "data.transforms", resolver };
    TransformsPlan {
        resize: section.resize.as_ref().map(|size| keys.resize(size)),
        pad: section.pad.as_ref().map(|pad| keys.pad(pad)),
        crop: keys.crop(section),
        horizontal_flip: section
            .horizontal_flip
            .map(|p| RandomHorizontalFlip { p: keys.probability("horizontal_flip", p) }),
        rotation: section.rotation.as_ref().map(|rotation| keys.rotation(rotation)),
        color_jitter: section.color_jitter.as_ref().map(|jitter| keys.color_jitter(jitter)),
        auto_augment: keys.auto_augment(section),
        random_erasing: section.random_erasing.as_ref().map(|erasing| keys.erasing(erasing)),
        mix: keys.mix(section),
    }
}

/// Checks `[data.valid_transforms]`.
pub(super) fn resolve_valid(
    section: &ValidTransformsSection,
    resolver: &mut Resolver<'_>,
) -> TransformsPlan {
    let mut keys = Keys { section: "data.valid_transforms", resolver };
    TransformsPlan {
        resize: section.resize.as_ref().map(|size| keys.resize(size)),
        pad: section.pad.as_ref().map(|pad| keys.pad(pad)),
        crop: section.center_crop.as_ref().map(|size| keys.center_crop(size)),
        ..TransformsPlan::default()
    }
}

/// The keys of one section.
struct Keys<'a, 'b> {
    section: &'static str,
    resolver: &'a mut Resolver<'b>,
}

impl Keys<'_, '_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.section)
    }

    fn check(&mut self, name: &str, value: impl std::fmt::Display, ok: bool, remedy: &str) {
        self.resolver.check(&self.key(name), value, ok, remedy);
    }

    fn resize(&mut self, size: &OneOrMany<usize>) -> Resize {
        let [height, width] = self.size("resize", size);
        let size = match size.as_slice() {
            [length] => ResizeTo::ShorterEdge(*length),
            _ => ResizeTo::Exact([height, width]),
        };
        Resize { size }
    }

    fn center_crop(&mut self, size: &OneOrMany<usize>) -> CropPlan {
        CropPlan::Center(CenterCrop { size: self.size("center_crop", size) })
    }

    fn pad(&mut self, pad: &PadSection) -> Pad {
        let padding = self.required("pad.padding", pad.padding.as_ref(), "a number of pixels", 0);
        Pad {
            padding: self.padding("pad.padding", &padding),
            fill: self.fill("pad.fill", pad.fill.as_ref()),
            mode: padding_mode(pad.mode),
        }
    }

    /// Of several crops the first is taken, after a complaint.
    fn crop(&mut self, section: &TransformsSection) -> Option<CropPlan> {
        let mut crops: Vec<(&str, CropPlan)> = Vec::new();
        if let Some(size) = &section.center_crop {
            crops.push(("center_crop", self.center_crop(size)));
        }
        if let Some(crop) = &section.random_crop {
            crops.push(("random_crop", CropPlan::Random(self.random_crop(crop))));
        }
        if let Some(crop) = &section.random_resized_crop {
            let crop = self.random_resized_crop(crop);
            crops.push(("random_resized_crop", CropPlan::RandomResized(crop)));
        }
        let names: Vec<&str> = crops.iter().map(|(name, _)| *name).collect();
        self.one_of(&names);
        crops.into_iter().next().map(|(_, crop)| crop)
    }

    fn random_crop(&mut self, crop: &RandomCropSection) -> RandomCrop {
        let size = self.required("random_crop.size", crop.size.as_ref(), "an edge in pixels", 1);
        let padding = crop.padding.clone().unwrap_or(OneOrMany::one(0));
        RandomCrop {
            size: self.size("random_crop.size", &size),
            padding: self.padding("random_crop.padding", &padding),
            pad_if_needed: crop.pad_if_needed.unwrap_or(false),
            fill: self.fill("random_crop.fill", crop.fill.as_ref()),
            padding_mode: padding_mode(crop.padding_mode),
        }
    }

    fn random_resized_crop(&mut self, crop: &RandomResizedCropSection) -> RandomResizedCrop {
        let name = "random_resized_crop.size";
        let size = self.required(name, crop.size.as_ref(), "an edge in pixels", 1);
        let defaults = RandomResizedCrop::new(self.size(name, &size));
        let scale = crop.scale.unwrap_or(defaults.scale);
        let ok = 0.0 < scale[0] && scale[0] <= scale[1] && scale[1] <= 1.0;
        self.check_range("random_resized_crop.scale", scale, ok, "above 0 and at most 1");
        let ratio = crop.ratio.unwrap_or(defaults.ratio);
        self.ratio("random_resized_crop.ratio", ratio);
        RandomResizedCrop { scale, ratio, ..defaults }
    }

    fn rotation(&mut self, rotation: &RotationSection) -> RandomRotation {
        let name = "rotation.degrees";
        let degrees = self.required(name, rotation.degrees.as_ref(), "an angle in degrees", 0.0);
        let range = match degrees.as_slice() {
            [greatest] => [-greatest, *greatest],
            [least, greatest] => [*least, *greatest],
            _ => [f64::NAN; 2],
        };
        let remedy = "must be an angle of 0 or more, or [least, greatest]";
        self.check(name, &degrees, range[0] <= range[1] && range[1].is_finite(), remedy);
        RandomRotation {
            degrees: range,
            interpolation: interpolation(rotation.interpolation),
            fill: self.fill("rotation.fill", rotation.fill.as_ref()),
        }
    }

    fn color_jitter(&mut self, jitter: &ColorJitterSection) -> ColorJitter {
        ColorJitter {
            brightness: self.factors("color_jitter.brightness", jitter.brightness.as_ref()),
            contrast: self.factors("color_jitter.contrast", jitter.contrast.as_ref()),
            saturation: self.factors("color_jitter.saturation", jitter.saturation.as_ref()),
            hue: self.hue("color_jitter.hue", jitter.hue.as_ref()),
        }
    }

    fn factors(&mut self, name: &str, values: Option<&OneOrMany<f64>>) -> Option<[f64; 2]> {
        let values = values?;
        let (ok, range) = match values.as_slice() {
            [strength] => (*strength >= 0.0, ColorJitter::around_one(*strength)),
            [least, greatest] => (0.0 <= *least && least <= greatest, Some([*least, *greatest])),
            _ => (false, None),
        };
        let finite = values.as_slice().iter().all(|value| value.is_finite());
        let remedy = "must be 0 or more, or [least, greatest] of factors of 0 or more";
        self.check(name, values, ok && finite, remedy);
        range
    }

    fn hue(&mut self, name: &str, values: Option<&OneOrMany<f64>>) -> Option<[f64; 2]> {
        let values = values?;
        let range = match values.as_slice() {
            [strength] => [-strength, *strength],
            [least, greatest] => [*least, *greatest],
            _ => [f64::NAN; 2],
        };
        let ok = -0.5 <= range[0] && range[0] <= range[1] && range[1] <= 0.5;
        self.check(
            name,
            values,
            ok,
            "must be from 0 to 0.5, or [least, greatest] within -0.5 and 0.5",
        );
        (range != [0.0; 2]).then_some(range)
    }

    fn auto_augment(&mut self, section: &TransformsSection) -> Option<AutoAugmentPlan> {
        if section.rand_augment.is_some() && section.trivial_augment.is_some() {
            self.one_of(&["rand_augment", "trivial_augment"]);
        }
        let rand = section.rand_augment.as_ref().map(|rand| self.rand_augment(rand));
        let trivial = section.trivial_augment.as_ref().map(|trivial| {
            let defaults = TrivialAugmentWide::default();
            let bins = trivial.num_magnitude_bins.unwrap_or(defaults.num_magnitude_bins);
            self.check("trivial_augment.num_magnitude_bins", bins, bins >= 2, "must be 2 or more");
            TrivialAugmentWide {
                num_magnitude_bins: bins,
                interpolation: interpolation(trivial.interpolation),
            }
        });
        rand.map(AutoAugmentPlan::Rand).or(trivial.map(AutoAugmentPlan::Trivial))
    }

    fn rand_augment(&mut self, section: &RandAugmentSection) -> RandAugment {
        let defaults = RandAugment::default();
        let bins = section.num_magnitude_bins.unwrap_or(defaults.num_magnitude_bins);
        self.check("rand_augment.num_magnitude_bins", bins, bins >= 2, "must be 2 or more");
        let magnitude = section.magnitude.unwrap_or(defaults.magnitude);
        let remedy = format!("must be below rand_augment.num_magnitude_bins, which is {bins}");
        self.check("rand_augment.magnitude", magnitude, magnitude < bins, &remedy);
        let num_ops = section.num_ops.unwrap_or(defaults.num_ops);
        self.check("rand_augment.num_ops", num_ops, num_ops >= 1, "must be 1 or more");
        RandAugment {
            num_ops,
            magnitude,
            num_magnitude_bins: bins,
            interpolation: interpolation(section.interpolation),
        }
    }

    fn erasing(&mut self, section: &RandomErasingSection) -> ErasingPlan {
        let defaults = RandomErasing::default();
        let scale = section.scale.unwrap_or(defaults.scale);
        let ok = 0.0 <= scale[0] && scale[0] <= scale[1] && scale[1] <= 1.0;
        self.check_range("random_erasing.scale", scale, ok, "from 0 to 1");
        let ratio = section.ratio.unwrap_or(defaults.ratio);
        self.ratio("random_erasing.ratio", ratio);
        if let (Some(value), Some(fill)) = (section.value, &section.fill) {
            let [one, other] = ["random_erasing.value", "random_erasing.fill"].map(|n| self.key(n));
            self.resolver.exclusive(&one, format!("{:?}", value.as_str()), &other, fill);
        }
        let value = match (&section.fill, section.value) {
            (Some(fill), _) => ErasingValue::Bytes(self.fill("random_erasing.fill", Some(fill))),
            (None, Some(ErasingValueKind::Random)) => ErasingValue::Random,
            (None, _) => ErasingValue::Mean,
        };
        let p = self.probability("random_erasing.p", section.p.unwrap_or(defaults.p));
        ErasingPlan { p, scale, ratio, value }
    }

    fn mix(&mut self, section: &TransformsSection) -> Option<BatchMix> {
        let (mixup_alpha, cutmix_alpha) = (section.mixup_alpha, section.cutmix_alpha);
        for (name, alpha) in [("mixup_alpha", mixup_alpha), ("cutmix_alpha", cutmix_alpha)] {
            if let Some(alpha) = alpha {
                self.resolver.above_zero(&self.key(name), alpha);
            }
        }
        let any = mixup_alpha.or(cutmix_alpha);
        any.map(|_| BatchMix { mixup_alpha, cutmix_alpha })
    }
}

/// Checks of single values.
impl Keys<'_, '_> {
    /// Takes `otherwise` to go on with when a required value is missing.
    fn required<T: Clone>(
        &mut self,
        name: &str,
        value: Option<&OneOrMany<T>>,
        what: &str,
        otherwise: T,
    ) -> OneOrMany<T> {
        value.cloned().unwrap_or_else(|| {
            self.resolver.missing(&self.key(name), what);
            OneOrMany::one(otherwise)
        })
    }

    fn one_of(&mut self, names: &[&str]) {
        if let [one, other, ..] = names {
            let (one, other) = (self.key(one), self.key(other));
            let message = format!("{one} and {other} exclude each other: remove one");
            self.resolver.reject(&one, message);
        }
    }

    fn size(&mut self, name: &str, size: &OneOrMany<usize>) -> [usize; 2] {
        let found = match size.as_slice() {
            [edge] => [*edge; 2],
            [height, width] => [*height, *width],
            _ => [0; 2],
        };
        let ok = found.iter().all(|edge| (1..=LONGEST_EDGE).contains(edge));
        self.check(name, size, ok, "must be a number of pixels from 1 to 65535, or two of them");
        found
    }

    fn padding(&mut self, name: &str, padding: &OneOrMany<usize>) -> [usize; 4] {
        let found = match padding.as_slice() {
            [all] => [*all; 4],
            [sides, ends] => [*sides, *ends, *sides, *ends],
            [left, top, right, bottom] => [*left, *top, *right, *bottom],
            _ => [usize::MAX; 4],
        };
        let ok = found.iter().all(|pixels| *pixels <= LONGEST_EDGE);
        self.check(name, padding, ok, "must be 1, 2 or 4 numbers of pixels up to 65535");
        found
    }

    fn fill(&mut self, name: &str, fill: Option<&OneOrMany<u8>>) -> Vec<u8> {
        let Some(fill) = fill else { return vec![0] };
        let ok = !fill.as_slice().is_empty();
        self.check(name, fill, ok, "must be a byte, or one for each channel");
        fill.as_slice().to_vec()
    }

    fn probability(&mut self, name: &str, p: f64) -> f64 {
        self.check(name, p, (0.0..=1.0).contains(&p), "must be from 0 to 1");
        p
    }

    fn ratio(&mut self, name: &str, ratio: [f64; 2]) {
        let ok = 0.0 < ratio[0] && ratio[0] <= ratio[1] && ratio[1].is_finite();
        self.check_range(name, ratio, ok, "above 0");
    }

    fn check_range(&mut self, name: &str, range: [f64; 2], ok: bool, limits: &str) {
        let remedy = format!("must be [least, greatest], both {limits}");
        self.check(name, OneOrMany::from(range.to_vec()), ok, &remedy);
    }
}

fn padding_mode(kind: Option<PaddingModeKind>) -> PaddingMode {
    match kind.unwrap_or(PaddingModeKind::Constant) {
        PaddingModeKind::Constant => PaddingMode::Constant,
        PaddingModeKind::Edge => PaddingMode::Edge,
        PaddingModeKind::Reflect => PaddingMode::Reflect,
        PaddingModeKind::Symmetric => PaddingMode::Symmetric,
    }
}

fn interpolation(kind: Option<InterpolationKind>) -> Interpolation {
    match kind.unwrap_or(InterpolationKind::Nearest) {
        InterpolationKind::Nearest => Interpolation::Nearest,
        InterpolationKind::Bilinear => Interpolation::Bilinear,
    }
}
