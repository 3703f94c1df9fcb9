use crate::config::{Budget, CheckpointPlan, Course, SchedulePlan, StepUnit};
use crate::learnable::Learnable;
use crate::{BatchSource, Callback, Report, StopFlag, TrainError, Trainer, TrainerConfig};
use bonfire_comm::ProcessGroup;
use std::sync::{Arc, Mutex, PoisonError};

/// Which learning rates are tried; names and defaults are those of Lightning's `Tuner.lr_find`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LrFinder {
    /// The first rate. Default 1e-8.
    pub min_lr: f64,
    /// The last one. Default 1.
    pub max_lr: f64,
    /// Steps from the one to the other, each by the same factor. Default 100.
    pub num_training: u64,
    /// By how much the smoothed loss may exceed its best before the rest is left out. Default 4 times.
    pub early_stop_threshold: f64,
}

impl Default for LrFinder {
    fn default() -> Self {
        Self { min_lr: 1e-8, max_lr: 1.0, num_training: 100, early_stop_threshold: 4.0 }
    }
}

/// The loss over rising learning rates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LrCurve {
    /// Learning rate and loss over all ranks of each step, in order.
    pub points: Vec<(f64, f64)>,
}

impl LrFinder {
    /// Trains a model with rising learning rates, until the last or until the loss explodes. What of
    /// `config` has to do with length, schedule and checkpoints has no effect.
    ///
    /// # Collective
    /// All ranks of the group, as [`Trainer::fit`].
    ///
    /// # Errors
    /// Those of [`Trainer::fit`], but for a loss that is not finite: it ends the curve. And
    /// [`TrainError::Setting`] for rates that do not rise from above 0.
    ///
    /// # Reference
    /// Smith, "Cyclical Learning Rates for Training Neural Networks", arXiv:1506.01186, section 3.3.
    pub fn run<M: Learnable>(
        &self,
        config: TrainerConfig,
        group: &ProcessGroup,
        model: M,
        train: &dyn BatchSource<Batch = M::Batch>,
    ) -> Result<LrCurve, TrainError> {
        self.check()?;
        let stop = StopFlag::new();
        let curve = Arc::new(Mutex::new(LrCurve::default()));
        let watch = Watch {
            curve: curve.clone(),
            average: Average::default(),
            best: f64::INFINITY,
            threshold: self.early_stop_threshold,
            stop: stop.clone(),
            steps: self.num_training,
        };
        let mut trainer = Trainer::new(self.configured(config), group.clone())
            .with_callback(watch)
            .with_stop_flag(stop);
        match trainer.fit(model, train, None) {
            Ok(_) | Err(TrainError::LossNotFinite { .. }) => {
                let curve = curve.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(curve.clone())
            }
            Err(error) => Err(error),
        }
    }

    fn configured(&self, config: TrainerConfig) -> TrainerConfig {
        let steps = self.num_training.saturating_sub(1).max(1);
        let gamma = (self.max_lr / self.min_lr).powf((steps as f64).recip());
        let rise = Course::Step { size: 1, gamma, unit: StepUnit::Step };
        TrainerConfig {
            budget: Budget::Steps(self.num_training),
            log_every_n_steps: 1,
            schedule: SchedulePlan::new(rise),
            optimizer: config.optimizer.with_lr(self.min_lr),
            checkpoint: CheckpointPlan::default(),
            checkpoint_folder: None,
            profile: None,
            detect_anomaly: false,
            histograms_every_n_steps: 0,
            resume: crate::Resume::Never,
            ..config
        }
    }

    fn check(&self) -> Result<(), TrainError> {
        let rises = self.min_lr > 0.0 && self.max_lr > self.min_lr && self.max_lr.is_finite();
        let value = format!("{} to {}", self.min_lr, self.max_lr);
        match rises && self.num_training > 1 {
            true => Ok(()),
            false => Err(TrainError::Setting {
                name: "learning rates",
                value,
                reason: "must rise from above 0, over 2 steps or more",
            }),
        }
    }
}

impl LrCurve {
    /// The rate at which the loss falls fastest; `None` if the curve is too short or has no place where it
    /// falls.
    ///
    /// The first ten points, where the loss has not settled, and the last are left out.
    ///
    /// # Reference
    /// `lightning.pytorch.tuner.lr_finder._LRFinder.suggestion`, on the losses smoothed as there.
    pub fn suggestion(&self) -> Option<f64> {
        const SKIP_BEGIN: usize = 10;
        let smoothed = self.smoothed();
        let usable = smoothed.get(SKIP_BEGIN..smoothed.len().checked_sub(1)?)?;
        let usable: Vec<_> = usable.iter().filter(|(_, loss)| loss.is_finite()).collect();
        // Central differences, as numpy.gradient has them inside.
        let slope = |three: &[&(f64, f64)]| (three[1].0, (three[2].1 - three[0].1) / 2.0);
        let slopes = usable.windows(3).map(slope);
        let (lr, steepest) = slopes.min_by(|one, other| one.1.total_cmp(&other.1))?;
        (steepest < 0.0).then_some(lr)
    }

    /// The curve with each loss replaced by an average over those before it.
    pub fn smoothed(&self) -> Vec<(f64, f64)> {
        let mut average = Average::default();
        self.points.iter().map(|(lr, loss)| (*lr, average.with(*loss))).collect()
    }
}

/// An exponential moving average without the pull of its start.
#[derive(Default)]
struct Average {
    value: f64,
    count: i32,
}

impl Average {
    const BETA: f64 = 0.98;

    fn with(&mut self, loss: f64) -> f64 {
        self.value = Self::BETA * self.value + (1.0 - Self::BETA) * loss;
        self.count += 1;
        self.value / (1.0 - Self::BETA.powi(self.count))
    }
}

/// Steps from one line of progress to the next.
const TOLD_EVERY: usize = 10;

/// Keeps what was reported, and ends the run when the loss explodes.
struct Watch {
    curve: Arc<Mutex<LrCurve>>,
    average: Average,
    best: f64,
    threshold: f64,
    stop: StopFlag,
    steps: u64,
}

impl Callback for Watch {
    fn name(&self) -> &str {
        "lr_finder"
    }

    fn on_report(&mut self, report: &Report) -> Result<(), TrainError> {
        let Some(loss) = report.metrics.loss() else { return Ok(()) };
        let mut curve = self.curve.lock().unwrap_or_else(PoisonError::into_inner);
        curve.points.push((report.learning_rate, loss));
        let smoothed = self.average.with(loss);
        if curve.points.len().is_multiple_of(TOLD_EVERY) {
            let (step, steps, lr) = (report.step, self.steps, report.learning_rate);
            tracing::info!("step {step}/{steps}  learning rate {lr:.1e}  loss {loss:.4}");
        }
        if curve.points.len() > 1 && smoothed > self.threshold * self.best {
            self.stop.stop();
        }
        self.best = self.best.min(smoothed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steepest_fall_is_suggested() {
        // Flat, falling around 1e-3, then rising.
        let loss = |log: f64| 2.0 - 1.5 / (1.0 + (-(log + 3.0) * 4.0).exp());
        let points = (0..200).map(|step| -8.0 + f64::from(step) * 0.04);
        let curve = LrCurve { points: points.map(|log| (10f64.powf(log), loss(log))).collect() };
        let suggested = curve.suggestion().unwrap();
        // Smoothing lags behind.
        assert!((3e-4..3e-1).contains(&suggested), "{suggested}");
        let rising = LrCurve { points: (0..50).map(|n| (1.0, f64::from(n))).collect() };
        assert_eq!(rising.suggestion(), None);
        assert_eq!(LrCurve::default().suggestion(), None);
    }
}
