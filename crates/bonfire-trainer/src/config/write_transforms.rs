//! From resolved transforms back to their sections.

use bonfire_data::transform::{
    CenterCrop, Interpolation, Pad, PaddingMode, RandAugment, RandomCrop, RandomResizedCrop,
    RandomRotation, Resize, ResizeTo, TrivialAugmentWide,
};

use super::one_or_many::OneOrMany;
use super::transform_sections::{
    ColorJitterSection, ErasingValueKind, InterpolationKind, PadSection, PaddingModeKind,
    RandAugmentSection, RandomCropSection, RandomErasingSection, RandomResizedCropSection,
    RotationSection, TransformsSection, TrivialAugmentSection, ValidTransformsSection,
};
use super::transforms::{AutoAugmentPlan, CropPlan, ErasingPlan, ErasingValue, TransformsPlan};

/// Writes transforms of training images into a section; nothing when there are none.
pub(super) fn to_section(plan: &TransformsPlan) -> Option<TransformsSection> {
    let mut section = TransformsSection {
        resize: plan.resize.map(resize),
        pad: plan.pad.as_ref().map(pad),
        horizontal_flip: plan.horizontal_flip.map(|flip| flip.p),
        rotation: plan.rotation.as_ref().map(rotation),
        color_jitter: plan.color_jitter.map(|jitter| ColorJitterSection {
            brightness: jitter.brightness.map(pair),
            contrast: jitter.contrast.map(pair),
            saturation: jitter.saturation.map(pair),
            hue: jitter.hue.map(pair),
        }),
        random_erasing: plan.random_erasing.as_ref().map(erasing),
        mixup_alpha: plan.mix.and_then(|mix| mix.mixup_alpha),
        cutmix_alpha: plan.mix.and_then(|mix| mix.cutmix_alpha),
        ..TransformsSection::default()
    };
    match &plan.crop {
        Some(CropPlan::Center(crop)) => section.center_crop = Some(pair(crop.size)),
        Some(CropPlan::Random(crop)) => section.random_crop = Some(random_crop(crop)),
        Some(CropPlan::RandomResized(crop)) => {
            section.random_resized_crop = Some(random_resized_crop(crop));
        }
        None => {}
    }
    match plan.auto_augment {
        Some(AutoAugmentPlan::Rand(augment)) => section.rand_augment = Some(rand_augment(augment)),
        Some(AutoAugmentPlan::Trivial(augment)) => {
            section.trivial_augment = Some(trivial_augment(augment));
        }
        None => {}
    }
    (section != TransformsSection::default()).then_some(section)
}

/// Writes transforms of validation images into a section; nothing when there are none.
pub(super) fn to_valid_section(plan: &TransformsPlan) -> Option<ValidTransformsSection> {
    let center_crop = match &plan.crop {
        Some(CropPlan::Center(CenterCrop { size })) => Some(pair(*size)),
        _ => None,
    };
    let section = ValidTransformsSection {
        resize: plan.resize.map(resize),
        pad: plan.pad.as_ref().map(pad),
        center_crop,
    };
    (section != ValidTransformsSection::default()).then_some(section)
}

fn pair<T: Clone>(values: [T; 2]) -> OneOrMany<T> {
    OneOrMany::from(values.to_vec())
}

fn resize(resize: Resize) -> OneOrMany<usize> {
    match resize.size {
        ResizeTo::ShorterEdge(length) => OneOrMany::one(length),
        ResizeTo::Exact(size) => pair(size),
    }
}

fn pad(pad: &Pad) -> PadSection {
    PadSection {
        padding: Some(pad.padding.to_vec().into()),
        fill: Some(pad.fill.clone().into()),
        mode: Some(padding_mode(pad.mode)),
    }
}

fn random_crop(crop: &RandomCrop) -> RandomCropSection {
    RandomCropSection {
        size: Some(pair(crop.size)),
        padding: Some(crop.padding.to_vec().into()),
        pad_if_needed: Some(crop.pad_if_needed),
        fill: Some(crop.fill.clone().into()),
        padding_mode: Some(padding_mode(crop.padding_mode)),
    }
}

fn random_resized_crop(crop: &RandomResizedCrop) -> RandomResizedCropSection {
    RandomResizedCropSection {
        size: Some(pair(crop.size)),
        scale: Some(crop.scale),
        ratio: Some(crop.ratio),
    }
}

fn rotation(rotation: &RandomRotation) -> RotationSection {
    RotationSection {
        degrees: Some(pair(rotation.degrees)),
        interpolation: Some(interpolation(rotation.interpolation)),
        fill: Some(rotation.fill.clone().into()),
    }
}

fn rand_augment(augment: RandAugment) -> RandAugmentSection {
    RandAugmentSection {
        num_ops: Some(augment.num_ops),
        magnitude: Some(augment.magnitude),
        num_magnitude_bins: Some(augment.num_magnitude_bins),
        interpolation: Some(interpolation(augment.interpolation)),
    }
}

fn trivial_augment(augment: TrivialAugmentWide) -> TrivialAugmentSection {
    TrivialAugmentSection {
        num_magnitude_bins: Some(augment.num_magnitude_bins),
        interpolation: Some(interpolation(augment.interpolation)),
    }
}

fn erasing(erasing: &ErasingPlan) -> RandomErasingSection {
    let (value, fill) = match &erasing.value {
        ErasingValue::Mean => (Some(ErasingValueKind::Mean), None),
        ErasingValue::Random => (Some(ErasingValueKind::Random), None),
        ErasingValue::Bytes(bytes) => (None, Some(bytes.clone().into())),
    };
    RandomErasingSection {
        p: Some(erasing.p),
        scale: Some(erasing.scale),
        ratio: Some(erasing.ratio),
        value,
        fill,
    }
}

fn padding_mode(mode: PaddingMode) -> PaddingModeKind {
    match mode {
        PaddingMode::Constant => PaddingModeKind::Constant,
        PaddingMode::Edge => PaddingModeKind::Edge,
        PaddingMode::Reflect => PaddingModeKind::Reflect,
        PaddingMode::Symmetric => PaddingModeKind::Symmetric,
    }
}

fn interpolation(interpolation: Interpolation) -> InterpolationKind {
    match interpolation {
        Interpolation::Nearest => InterpolationKind::Nearest,
        Interpolation::Bilinear => InterpolationKind::Bilinear,
    }
}
