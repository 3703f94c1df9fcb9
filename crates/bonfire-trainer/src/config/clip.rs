//! `[clip]`: bounds on gradients.

use super::resolve::Resolver;
use super::sections::ClipSection;
use bonfire_amp::{Clip, NormType};

/// Checks the limits, and which keys go together.
pub(super) fn resolve(section: &ClipSection, resolver: &mut Resolver<'_>) -> Option<Clip> {
    let norm_type = norm_type(section, resolver);
    let clip = match (section.max_norm, section.value) {
        (None, None) => None,
        (None, Some(limit)) => Some(Clip::value(limit)),
        (Some(max_norm), value) => {
            if let Some(value) = value {
                resolver.exclusive("clip.max_norm", max_norm, "clip.value", value);
            }
            let error_if_nonfinite = section.error_if_nonfinite.unwrap_or(false);
            Some(Clip::Norm { max_norm, norm_type, error_if_nonfinite })
        }
    };
    if section.max_norm.is_none() {
        let of_max_norm = [
            ("clip.norm_type", section.norm_type.is_some()),
            ("clip.error_if_nonfinite", section.error_if_nonfinite.is_some()),
        ];
        for (key, _) in of_max_norm.into_iter().filter(|(_, set)| *set) {
            resolver.reject(key, format!("{key} belongs to clip.max_norm: set that, or remove it"));
        }
    }
    if let Some(Err(problem)) = clip.as_ref().map(Clip::validate) {
        resolver.reject_amp("clip", &problem);
    }
    clip
}

fn norm_type(section: &ClipSection, resolver: &mut Resolver<'_>) -> NormType {
    let number = section.norm_type.unwrap_or(NormType::default().number());
    NormType::from_number(number).unwrap_or_else(|problem| {
        resolver.reject_amp("clip", &problem);
        NormType::default()
    })
}

/// Writes a bound back into a section.
pub(super) fn to_section(clip: Option<Clip>) -> ClipSection {
    match clip {
        Some(Clip::Norm { max_norm, norm_type, error_if_nonfinite }) => ClipSection {
            max_norm: Some(max_norm),
            norm_type: Some(norm_type.number()),
            error_if_nonfinite: Some(error_if_nonfinite),
            value: None,
        },
        Some(Clip::Value { limit }) => ClipSection { value: Some(limit), ..ClipSection::default() },
        _ => ClipSection::default(),
    }
}
