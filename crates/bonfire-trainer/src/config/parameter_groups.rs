//! `[[optimizer.groups]]`: parameters with settings of their own.

use bonfire_parallel::{ParameterGroup, ParameterGroups, Select};

use super::resolve::Resolver;
use super::sections::{GroupKind, GroupSection, OptimizerSection};

/// Fills in the defaults and checks every group; whether a group has parameters is known only when
/// the model is there.
pub(super) fn resolve(section: &OptimizerSection, resolver: &mut Resolver<'_>) -> ParameterGroups {
    let groups = section.groups.iter().flatten().enumerate();
    ParameterGroups {
        groups: groups.filter_map(|(index, group)| self::group(index, group, resolver)).collect(),
        no_decay_on_norms_and_biases: section.no_decay_on_norms_and_biases.unwrap_or(false),
    }
}

fn group(
    index: usize,
    section: &GroupSection,
    resolver: &mut Resolver<'_>,
) -> Option<ParameterGroup> {
    let place = format!("optimizer.groups[{index}]");
    let key = |name: &str| format!("{place}.{name}");
    let lr_factor = section.lr_factor.unwrap_or(1.0);
    resolver.zero_or_more(&key("lr_factor"), lr_factor);
    if let Some(decay) = section.weight_decay {
        resolver.zero_or_more(&key("weight_decay"), decay);
    }
    if section.lr_factor.is_none() && section.weight_decay.is_none() {
        let message = format!("{place} changes nothing: give it lr_factor or weight_decay");
        resolver.reject(&place, message);
    }
    let select = match (&section.pattern, section.kind) {
        (Some(pattern), None) => Select::Path(pattern.clone()),
        (None, Some(GroupKind::Norm)) => Select::Norm,
        (None, Some(GroupKind::Bias)) => Select::Bias,
        (Some(pattern), Some(kind)) => {
            let (one, other) = (format!("{pattern:?}"), format!("\"{kind}\""));
            resolver.exclusive(&key("match"), one, &key("kind"), other);
            return None;
        }
        (None, None) => {
            let what = "a pattern of module paths, or set kind to \"norm\" or \"bias\"";
            resolver.missing(&key("match"), what);
            return None;
        }
    };
    Some(ParameterGroup { select, lr_factor, weight_decay: section.weight_decay })
}

/// Writes the groups into a section, every key given.
pub(super) fn write_into(groups: &ParameterGroups, section: OptimizerSection) -> OptimizerSection {
    let written: Vec<GroupSection> = groups.groups.iter().map(to_section).collect();
    OptimizerSection {
        no_decay_on_norms_and_biases: Some(groups.no_decay_on_norms_and_biases),
        groups: (!written.is_empty()).then_some(written),
        ..section
    }
}

fn to_section(group: &ParameterGroup) -> GroupSection {
    let (pattern, kind) = match &group.select {
        Select::Path(pattern) => (Some(pattern.clone()), None),
        Select::Norm => (None, Some(GroupKind::Norm)),
        Select::Bias => (None, Some(GroupKind::Bias)),
    };
    GroupSection {
        pattern,
        kind,
        lr_factor: Some(group.lr_factor),
        weight_decay: group.weight_decay,
    }
}
