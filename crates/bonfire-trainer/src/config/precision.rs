//! `[precision]`: in which types a run computes.

use super::resolve::Resolver;
use super::sections::{PrecisionMode, PrecisionSection};
use bonfire_amp::{GradScalerConfig, MixedPrecision};

/// Number types of a run, resolved.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrecisionPlan {
    /// The types.
    pub mode: PrecisionMode,
    /// Whether parameters stay in 32 bits where passes run in 16.
    pub master_weights: bool,
    /// Scaling of the loss, in `fp16`.
    pub scaler: GradScalerConfig,
}

impl PrecisionPlan {
    /// What is cast, if anything is.
    pub fn mixed_precision(&self) -> Option<MixedPrecision> {
        match self.mode {
            PrecisionMode::F32 | PrecisionMode::F64 => None,
            PrecisionMode::Bf16 => Some(MixedPrecision::bf16()),
            PrecisionMode::Fp16 => Some(MixedPrecision::fp16()),
        }
    }

    /// Writes the settings back into a section, with the keys of the mode.
    pub(super) fn to_section(self) -> PrecisionSection {
        let scaler = (self.mode == PrecisionMode::Fp16).then_some(self.scaler);
        let bf16 = self.mode == PrecisionMode::Bf16;
        PrecisionSection {
            mode: Some(self.mode),
            master_weights: bf16.then_some(self.master_weights),
            init_scale: scaler.map(|scaler| scaler.init_scale),
            growth_factor: scaler.map(|scaler| scaler.growth_factor),
            backoff_factor: scaler.map(|scaler| scaler.backoff_factor),
            growth_interval: scaler.map(|scaler| scaler.growth_interval),
        }
    }
}

/// Fills in the defaults and checks the limits.
pub(super) fn resolve(section: &PrecisionSection, resolver: &mut Resolver<'_>) -> PrecisionPlan {
    let mode = section.mode.unwrap_or(PrecisionMode::F32);
    if mode != PrecisionMode::Fp16 {
        reject_scaler_keys(section, mode, resolver);
    }
    let master_weights = section.master_weights.unwrap_or(true);
    if !master_weights && mode != PrecisionMode::Bf16 {
        let message = format!(
            "precision.master_weights = false: only mode \"bf16\" trains without 32-bit parameters, \
             not \"{mode}\"; remove it"
        );
        resolver.reject("precision.master_weights", message);
    }
    let default = GradScalerConfig::default();
    let scaler = GradScalerConfig {
        init_scale: section.init_scale.unwrap_or(default.init_scale),
        growth_factor: section.growth_factor.unwrap_or(default.growth_factor),
        backoff_factor: section.backoff_factor.unwrap_or(default.backoff_factor),
        growth_interval: section.growth_interval.unwrap_or(default.growth_interval),
    };
    for problem in scaler.problems() {
        resolver.reject_amp("precision", &problem);
    }
    PrecisionPlan { mode, master_weights, scaler }
}

fn reject_scaler_keys(
    section: &PrecisionSection,
    mode: PrecisionMode,
    resolver: &mut Resolver<'_>,
) {
    let keys = [
        ("init_scale", section.init_scale.is_some()),
        ("growth_factor", section.growth_factor.is_some()),
        ("backoff_factor", section.backoff_factor.is_some()),
        ("growth_interval", section.growth_interval.is_some()),
    ];
    for (key, _) in keys.into_iter().filter(|(_, set)| *set) {
        let key = format!("precision.{key}");
        let message = format!("{key} is a key of mode \"fp16\", not of \"{mode}\"; remove it");
        resolver.reject(&key, message);
    }
}
