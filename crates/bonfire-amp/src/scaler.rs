use crate::AmpError;
use bonfire_tensor::TensorError;
use bonfire_tensor::autodiff::with_autodiff_of;
use bonfire_tensor::state::{Scalar, State, StateError, Stateful};
use burn::tensor::{Bool, DType, Device, Tensor};

/// Settings of a [`GradScaler`], with PyTorch's names and defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GradScalerConfig {
    /// The first scale. Default 65536.
    pub init_scale: f64,
    /// What the scale is multiplied by after `growth_interval` steps without an overflow. Default 2.
    pub growth_factor: f64,
    /// What the scale is multiplied by after an overflow. Default 0.5.
    pub backoff_factor: f64,
    /// Steps without an overflow from one growth to the next. Default 2000.
    pub growth_interval: u64,
}

impl Default for GradScalerConfig {
    fn default() -> Self {
        Self { init_scale: 65536.0, growth_factor: 2.0, backoff_factor: 0.5, growth_interval: 2000 }
    }
}

impl GradScalerConfig {
    /// Makes PyTorch's settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the first scale.
    pub fn with_init_scale(self, init_scale: f64) -> Self {
        Self { init_scale, ..self }
    }

    /// Sets the growth factor.
    pub fn with_growth_factor(self, growth_factor: f64) -> Self {
        Self { growth_factor, ..self }
    }

    /// Sets the backoff factor.
    pub fn with_backoff_factor(self, backoff_factor: f64) -> Self {
        Self { backoff_factor, ..self }
    }

    /// Sets the growth interval.
    pub fn with_growth_interval(self, growth_interval: u64) -> Self {
        Self { growth_interval, ..self }
    }

    /// Lists what is wrong with the settings, one error for each.
    pub fn problems(&self) -> Vec<AmpError> {
        let scale = self.init_scale as f32;
        let checks = [
            (
                "init_scale",
                self.init_scale,
                scale > 0.0 && scale.is_finite(),
                "must be above 0 and at most 3e38",
            ),
            (
                "growth_factor",
                self.growth_factor,
                self.growth_factor > 1.0 && self.growth_factor.is_finite(),
                "must be above 1",
            ),
            (
                "backoff_factor",
                self.backoff_factor,
                self.backoff_factor > 0.0 && self.backoff_factor < 1.0,
                "must be above 0 and below 1",
            ),
            (
                "growth_interval",
                self.growth_interval as f64,
                self.growth_interval > 0,
                "must be 1 or more",
            ),
        ];
        let wrong = checks.into_iter().filter(|(_, _, ok, _)| !ok);
        wrong.map(|(name, value, _, reason)| AmpError::Setting { name, value, reason }).collect()
    }

    /// Makes the scaler.
    ///
    /// # Errors
    /// [`AmpError::Setting`] for the first impossible setting.
    pub fn init(self) -> Result<GradScaler, AmpError> {
        match self.problems().into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(GradScaler {
                scale: self.init_scale as f32,
                growth_tracker: 0,
                skipped_steps: 0,
                config: self,
                apart: None,
            }),
        }
    }
}

/// Multiplies the loss of fp16 training, so that small gradients do not become zero.
///
/// A step whose gradients are not all finite is skipped, and the scale falls; after a run of good
/// steps it grows:
///
/// ```text
/// overflow:     scale = scale * backoff_factor, tracker = 0
/// no overflow:  tracker = tracker + 1; at growth_interval: scale = scale * growth_factor, tracker = 0
/// ```
///
/// The scale is an f32, and does not grow to infinity.
///
/// # Collective
/// None; but all ranks must give their scalers the same answers, as a step of the data-parallel layer
/// does.
///
/// # Reference
/// `torch.amp.GradScaler`.
#[derive(Debug, Clone)]
pub struct GradScaler {
    config: GradScalerConfig,
    scale: f32,
    growth_tracker: u64,
    skipped_steps: u64,
    /// Scale and tracker on the device, where they may be a step ahead.
    apart: Option<Apart>,
}

/// What a device knows of a scaler.
#[derive(Debug, Clone)]
struct Apart {
    scale: Tensor<1>,
    growth_tracker: Tensor<1>,
}

impl PartialEq for GradScaler {
    fn eq(&self, other: &Self) -> bool {
        let figures = |one: &Self| (one.config, one.scale, one.growth_tracker, one.skipped_steps);
        figures(self) == figures(other)
    }
}

impl GradScaler {
    /// Multiplies a loss by the scale, in f32 at least.
    pub fn scale_loss(&self, loss: Tensor<1>) -> Tensor<1> {
        let loss = match loss.dtype() {
            DType::F16 | DType::BF16 => loss.cast(DType::F32),
            _ => loss,
        };
        match &self.apart {
            None => loss.mul_scalar(self.scale),
            Some(apart) => loss.clone() * with_autodiff_of(&loss, apart.scale.clone()),
        }
    }

    /// The scale of the window at hand.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// What gradients have to be multiplied by to undo the scale.
    pub fn inverse_scale(&self) -> f64 {
        f64::from((1.0 / f64::from(self.scale)) as f32)
    }

    /// What gradients have to be multiplied by to undo the scale, as a tensor of shape `[1]` on
    /// `device`. From now on the scale is kept there, and [`advance`](Self::advance) changes it.
    pub fn inverse_on(&mut self, device: &Device) -> Tensor<1> {
        let device = device.clone().without_autodiff();
        let (scale, tracker) = (self.scale, self.growth_tracker as f32);
        let one = |value: f32| Tensor::<1>::from_data([value], (&device, DType::F32));
        let apart = self
            .apart
            .get_or_insert_with(|| Apart { scale: one(scale), growth_tracker: one(tracker) });
        apart.scale.clone().recip()
    }

    /// Notes the end of a window on the device: `finite` (shape `[1]`) says whether its gradients
    /// were finite. Returns the new scale, for [`conclude`](Self::conclude).
    ///
    /// Call [`inverse_on`](Self::inverse_on) before; nobody waits for the device.
    pub fn advance(&mut self, finite: &Tensor<1, Bool>) -> Option<Tensor<1>> {
        let GradScalerConfig { growth_factor, backoff_factor, growth_interval, .. } = self.config;
        let Apart { scale, growth_tracker } = self.apart.take()?;
        let counted = growth_tracker.clone().add_scalar(1.0);
        let is_due = counted.clone().greater_equal_scalar(growth_interval as f32);
        let grown = scale.clone().mul_scalar(growth_factor);
        let grows = is_due.clone().bool_and(grown.clone().is_finite());
        let kept = scale.clone().mask_where(grows, grown);
        let new = scale.mul_scalar(backoff_factor).mask_where(finite.clone(), kept);
        let counted = counted.mask_fill(is_due, 0.0);
        let tracker = growth_tracker.zeros_like().mask_where(finite.clone(), counted);
        self.apart = Some(Apart { scale: new.clone(), growth_tracker: tracker });
        Some(new)
    }

    /// Takes over what the device has found in a window: whether there was an overflow, and the
    /// scale that [`advance`](Self::advance) has returned.
    pub fn conclude(&mut self, found_inf: bool, scale: f32) {
        self.update_figures(found_inf);
        self.scale = scale;
    }

    /// Steps without an overflow since the scale last changed.
    pub fn growth_tracker(&self) -> u64 {
        self.growth_tracker
    }

    /// Steps skipped, over all resumes.
    pub fn skipped_steps(&self) -> u64 {
        self.skipped_steps
    }

    /// Notes the end of a window: whether its gradients had an overflow, on any rank, so that its
    /// step was skipped.
    pub fn update(&mut self, found_inf: bool) {
        self.update_figures(found_inf);
        self.apart = None;
    }

    fn update_figures(&mut self, found_inf: bool) {
        let times = |factor: f64| (f64::from(self.scale) * factor) as f32;
        if found_inf {
            self.scale = times(self.config.backoff_factor);
            self.growth_tracker = 0;
            self.skipped_steps += 1;
            return;
        }
        self.growth_tracker += 1;
        if self.growth_tracker == self.config.growth_interval {
            self.growth_tracker = 0;
            let grown = times(self.config.growth_factor);
            if grown.is_finite() {
                self.scale = grown;
            }
        }
    }
}

const SCALE: &str = "scale";
const TRACKER: &str = "growth_tracker";
const SKIPPED: &str = "skipped_steps";

impl Stateful for GradScaler {
    fn state(&self) -> Result<State, TensorError> {
        let mut state = State::default();
        state.scalars.insert(SCALE.into(), Scalar::Float(f64::from(self.scale)));
        state.scalars.insert(TRACKER.into(), Scalar::Uint(self.growth_tracker));
        state.scalars.insert(SKIPPED.into(), Scalar::Uint(self.skipped_steps));
        Ok(state)
    }

    fn load_state(&mut self, mut state: State) -> Result<(), TensorError> {
        let scale = state.take_float(SCALE)? as f32;
        if !(scale >= 0.0 && scale.is_finite()) {
            let (name, expected) = (SCALE.to_string(), "a finite number of 0 or more".to_string());
            return Err(StateError::Scalar { name, expected, got: scale.to_string() }.into());
        }
        self.scale = scale;
        self.apart = None;
        self.growth_tracker = state.take_uint(TRACKER)?;
        self.skipped_steps = state.take_uint(SKIPPED)?;
        Ok(state.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;

    fn scaler(growth_interval: u64) -> GradScaler {
        GradScalerConfig::new().with_growth_interval(growth_interval).init().unwrap()
    }

    #[test]
    fn falls_after_an_overflow_and_grows_after_an_interval_without() {
        let mut scaler = scaler(3);
        let scales: Vec<f32> = [true, false, false, true, false, false, false, false]
            .map(|found_inf| {
                scaler.update(found_inf);
                scaler.scale()
            })
            .to_vec();
        let k = 1024.0;
        let expected = [32.0, 32.0, 32.0, 16.0, 16.0, 16.0, 32.0, 32.0].map(|scale| scale * k);
        assert_eq!(scales, expected);
        assert_eq!((scaler.growth_tracker(), scaler.skipped_steps()), (1, 2));
    }

    #[test]
    fn the_scale_on_a_device_is_that_on_the_host() {
        let device = Device::flex();
        let (mut host, mut apart) = (scaler(3), scaler(3));
        for found_inf in [true, false, false, true, false, false, false, false, false, false, true]
        {
            let loss = Tensor::<1>::from_data([3.0f32], &device.clone().autodiff()).require_grad();
            let scaled = apart.scale_loss(loss.clone());
            let gradients = scaled.backward();
            let gradient = loss.grad(&gradients).unwrap().into_scalar::<f32>();
            assert_eq!(gradient, host.scale());
            let inverse = apart.inverse_on(&device).into_scalar::<f32>();
            assert_eq!(f64::from(inverse), host.inverse_scale());
            let finite = Tensor::<1>::from_data([if found_inf { f32::NAN } else { 1.0 }], &device);
            let scale = apart.advance(&finite.is_finite()).unwrap().into_scalar::<f32>();
            // The device is a step ahead until somebody has read what it found.
            apart.conclude(found_inf, scale);
            host.update(found_inf);
            assert_eq!(apart, host);
        }
        let mut full =
            GradScalerConfig::new().with_init_scale(2e38).with_growth_interval(1).init().unwrap();
        drop(full.inverse_on(&device));
        let finite = Tensor::<1>::from_data([1.0f32], &device).is_finite();
        assert_eq!(full.advance(&finite).unwrap().into_scalar::<f32>(), 2e38);
    }

    #[test]
    fn never_grows_to_infinity() {
        let mut scaler =
            GradScalerConfig::new().with_init_scale(2e38).with_growth_interval(1).init().unwrap();
        scaler.update(false);
        assert_eq!((scaler.scale(), scaler.growth_tracker()), (2e38, 0));
    }

    #[test]
    fn goes_on_as_if_never_interrupted() {
        let mut whole = scaler(5);
        (0..13).for_each(|step| whole.update(step == 6));
        let mut restored = scaler(5);
        restored.load_state(whole.state().unwrap()).unwrap();
        assert_eq!(restored, whole);
        let mut wrong = whole.state().unwrap();
        wrong.scalars.insert(SCALE.into(), Scalar::Float(f64::NAN));
        assert!(restored.load_state(wrong).unwrap_err().to_string().contains("\"scale\""));
    }

    #[test]
    fn impossible_settings_are_all_named() {
        let config = GradScalerConfig {
            init_scale: f64::NAN,
            growth_factor: 1.0,
            backoff_factor: 1.0,
            growth_interval: 0,
        };
        let problems: Vec<String> =
            config.problems().iter().map(std::string::ToString::to_string).collect();
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert_eq!(problems[1], "growth_factor = 1: must be above 1");
        assert!(config.init().is_err());
    }

    #[test]
    fn a_half_loss_is_scaled_in_single_precision() {
        let loss = Tensor::<1>::from_data([3.0f32], &Device::flex()).cast(DType::F16);
        let scaled = scaler(1).scale_loss(loss);
        assert_eq!(scaled.dtype(), DType::F32);
        assert_eq!(scaled.into_scalar::<f32>(), 3.0 * 65536.0);
    }
}
