//! Which parameters learn at another rate, or decay otherwise, than the rest.

use crate::ParallelError;
use bonfire_tensor::parameters::ParameterSpec;

/// Groups of parameters with settings of their own.
///
/// A parameter belongs to the first group that selects it, and to none if no group does; the
/// optimizer's own settings then hold.
///
/// ```
/// use bonfire_parallel::{ParameterGroup, ParameterGroups};
///
/// let groups = ParameterGroups::new()
///     .with_group(ParameterGroup::matching("head.*").with_lr_factor(10.0))
///     .with_no_decay_on_norms_and_biases(true);
/// ```
///
/// # Reference
/// The parameter groups of `torch.optim.Optimizer`. No decay on vectors: Goyal et al., "Accurate,
/// Large Minibatch SGD", arXiv:1706.02677, section 5.1; He et al., "Bag of Tricks", CVPR 2019,
/// arXiv:1812.01187, section 3.1.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParameterGroups {
    /// The groups, in the order in which they are tried.
    pub groups: Vec<ParameterGroup>,
    /// Whether parameters of at most one dimension (scales, shifts and biases) have no weight
    /// decay, unless their group sets one. Default false.
    pub no_decay_on_norms_and_biases: bool,
}

/// Parameters with settings of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct ParameterGroup {
    /// Which parameters.
    pub select: Select,
    /// What the learning rate is multiplied by. Default 1.
    pub lr_factor: f64,
    /// Weight decay instead of the optimizer's. Default: the optimizer's.
    pub weight_decay: Option<f64>,
}

/// Chooses parameters of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Select {
    /// Those whose module path a pattern matches as a whole: `*` stands for any characters, dots
    /// included, and `?` for one character.
    Path(String),
    /// Scale and shift of normalisations: the parameters that are called `gamma` or `beta`, as in
    /// every normalisation of Burn and of Bonfire.
    Norm,
    /// The parameters that are called `bias`.
    Bias,
}

/// What holds for one parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterSettings {
    /// What the learning rate is multiplied by.
    pub lr_factor: f64,
    /// Weight decay instead of the optimizer's.
    pub weight_decay: Option<f64>,
}

impl ParameterGroups {
    /// Makes no groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a group behind those there are.
    pub fn with_group(mut self, group: ParameterGroup) -> Self {
        self.groups.push(group);
        self
    }

    /// Sets whether parameters of at most one dimension have no weight decay.
    pub fn with_no_decay_on_norms_and_biases(self, no_decay_on_norms_and_biases: bool) -> Self {
        Self { no_decay_on_norms_and_biases, ..self }
    }

    /// Finds what holds for each of a model's trainable parameters.
    ///
    /// # Errors
    /// [`ParallelError::ParameterGroups`] listing every group with an impossible setting, or that
    /// no parameter belongs to.
    pub fn settings(
        &self,
        trainable: &[ParameterSpec],
    ) -> Result<Vec<ParameterSettings>, ParallelError> {
        let group_of = |spec: &ParameterSpec| {
            self.groups.iter().position(|group| group.select.selects(&spec.path))
        };
        let chosen: Vec<Option<usize>> = trainable.iter().map(group_of).collect();
        let problems: Vec<String> = (0..self.groups.len())
            .filter_map(|index| self.problem(index, &chosen, trainable))
            .collect();
        if !problems.is_empty() {
            return Err(ParallelError::ParameterGroups { problems });
        }
        let pairs = trainable.iter().zip(chosen);
        Ok(pairs.map(|(spec, group)| self.settings_in(group, spec)).collect())
    }

    fn settings_in(&self, group: Option<usize>, spec: &ParameterSpec) -> ParameterSettings {
        let group = group.and_then(|index| self.groups.get(index));
        let spared = self.no_decay_on_norms_and_biases && spec.shape.len() <= 1;
        ParameterSettings {
            lr_factor: group.map_or(1.0, |group| group.lr_factor),
            weight_decay: group
                .and_then(|group| group.weight_decay)
                .or_else(|| spared.then_some(0.0)),
        }
    }

    /// What is wrong with a group, if anything.
    fn problem(
        &self,
        index: usize,
        chosen: &[Option<usize>],
        trainable: &[ParameterSpec],
    ) -> Option<String> {
        let group = self.groups.get(index)?;
        let name = format!("group {index} ({})", group.select);
        let impossible = |value: f64| !(value.is_finite() && value >= 0.0);
        if impossible(group.lr_factor) {
            return Some(format!("{name}: lr_factor = {} must be 0 or more", group.lr_factor));
        }
        if let Some(decay) = group.weight_decay.filter(|decay| impossible(*decay)) {
            return Some(format!("{name}: weight_decay = {decay} must be 0 or more"));
        }
        if chosen.contains(&Some(index)) {
            return None;
        }
        let taken = trainable.iter().find(|spec| group.select.selects(&spec.path));
        Some(match taken {
            Some(spec) => format!(
                "{name} gets no parameter: \"{}\" and all others that it matches belong to groups \
                 before it; move it forward",
                spec.path
            ),
            None => {
                let known: Vec<&str> = trainable.iter().map(|spec| spec.path.as_str()).collect();
                format!("{name} matches no parameter; the model has {}", shown(&known))
            }
        })
    }
}

impl ParameterGroup {
    /// Makes a group of the parameters whose path `pattern` matches, with the settings of all.
    pub fn matching(pattern: impl Into<String>) -> Self {
        Self::new(Select::Path(pattern.into()))
    }

    /// Makes a group with the settings of all.
    pub fn new(select: Select) -> Self {
        Self { select, lr_factor: 1.0, weight_decay: None }
    }

    /// Multiplies the learning rate.
    pub fn with_lr_factor(self, lr_factor: f64) -> Self {
        Self { lr_factor, ..self }
    }

    /// Sets the weight decay.
    pub fn with_weight_decay(self, weight_decay: f64) -> Self {
        Self { weight_decay: Some(weight_decay), ..self }
    }
}

impl Select {
    /// Whether it chooses the parameter at a module path.
    pub fn selects(&self, path: &str) -> bool {
        let name = path.rsplit('.').next().unwrap_or(path);
        match self {
            Self::Path(pattern) => matches(pattern.as_bytes(), path.as_bytes()),
            Self::Norm => name == "gamma" || name == "beta",
            Self::Bias => name == "bias",
        }
    }
}

impl std::fmt::Display for Select {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Path(pattern) => write!(f, "match = \"{pattern}\""),
            Self::Norm => f.write_str("kind = \"norm\""),
            Self::Bias => f.write_str("kind = \"bias\""),
        }
    }
}

/// Whether a pattern of `*` and `?` matches the whole text.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // The last star and where the text behind it begins: the place to try again from.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == text[t] => (p, t) = (p + 1, t + 1),
            _ => {
                let Some((place, begin)) = star else { return false };
                star = Some((place, begin + 1));
                (p, t) = (place + 1, begin + 1);
            }
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// The first few paths, quoted.
fn shown(paths: &[&str]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> =
        paths.iter().take(SHOWN).map(|path| format!("\"{path}\"")).collect();
    if paths.len() > SHOWN {
        text.push(format!("and {} more", paths.len() - SHOWN));
    }
    text.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bonfire_comm::DType;
    use bonfire_tensor::parameters::Role;
    use burn::module::ParamId;

    fn specs() -> Vec<ParameterSpec> {
        let spec = |(path, shape): (&str, &[usize])| ParameterSpec {
            path: path.into(),
            shape: shape.to_vec(),
            dtype: DType::F32,
            role: Role::Trainable,
            id: ParamId::new(),
        };
        let all: [(&str, &[usize]); 5] = [
            ("stem.weight", &[4, 3]),
            ("stem.norm.gamma", &[4]),
            ("stem.norm.beta", &[4]),
            ("head.weight", &[4, 2]),
            ("head.bias", &[2]),
        ];
        all.into_iter().map(spec).collect()
    }

    fn settings(groups: &ParameterGroups) -> Vec<(f64, Option<f64>)> {
        let settings = groups.settings(&specs()).unwrap();
        settings.iter().map(|found| (found.lr_factor, found.weight_decay)).collect()
    }

    #[test]
    fn patterns_match_whole_paths() {
        let cases = [
            ("head.*", "head.weight", true),
            ("head.*", "overhead.weight", false),
            ("*.weight", "a.b.weight", true),
            ("*.weight", "a.weights", false),
            ("layers.?.bias", "layers.3.bias", true),
            ("layers.?.bias", "layers.13.bias", false),
            ("*a*b*", "xaxxb", true),
            ("*a*b*", "xbxxa", false),
            ("*ab", "aab", true),
            ("", "a", false),
            ("**", "", true),
        ];
        for (pattern, path, expected) in cases {
            let select = Select::Path(pattern.to_string());
            assert_eq!(select.selects(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn a_parameter_belongs_to_the_first_group_that_selects_it() {
        let groups = ParameterGroups::new()
            .with_group(ParameterGroup::matching("head.*").with_lr_factor(10.0))
            .with_group(ParameterGroup::new(Select::Norm).with_weight_decay(0.5))
            .with_group(ParameterGroup::matching("*").with_lr_factor(0.1));
        let norm = (1.0, Some(0.5));
        let expected = [(0.1, None), norm, norm, (10.0, None), (10.0, None)];
        assert_eq!(settings(&groups), expected);
    }

    #[test]
    fn vectors_are_spared_unless_their_group_sets_a_decay() {
        let groups = ParameterGroups::new()
            .with_group(ParameterGroup::new(Select::Bias).with_weight_decay(0.5))
            .with_no_decay_on_norms_and_biases(true);
        let expected =
            [(1.0, None), (1.0, Some(0.0)), (1.0, Some(0.0)), (1.0, None), (1.0, Some(0.5))];
        assert_eq!(settings(&groups), expected);
    }

    #[test]
    fn groups_without_parameters_and_impossible_settings_are_told_together() {
        let groups = ParameterGroups::new()
            .with_group(ParameterGroup::matching("haed.*"))
            .with_group(ParameterGroup::matching("head.*").with_lr_factor(f64::NAN))
            .with_group(ParameterGroup::new(Select::Bias));
        let error = groups.settings(&specs()).unwrap_err().to_string();
        for part in [
            "group 0 (match = \"haed.*\") matches no parameter; the model has \"stem.weight\"",
            "group 1 (match = \"head.*\"): lr_factor = NaN",
            "group 2 (kind = \"bias\") gets no parameter: \"head.bias\" and all others",
        ] {
            assert!(error.contains(part), "{part:?} in {error}");
        }
    }
}
