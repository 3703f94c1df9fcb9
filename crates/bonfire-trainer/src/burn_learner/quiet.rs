//! What ranks other than 0 have in the place of renderer, metric logger and checkpointer.

use burn::module::Module;
use burn::nn::Linear;
use burn::optim::OptimizerRecord;
use burn::optim::lr_scheduler::LrSchedulerRecord;
use burn::store::ModuleRecord;
use burn::train::LearnerSummary;
use burn::train::checkpoint::{Checkpoint, Checkpointer, CheckpointerError};
use burn::train::logger::{EvaluationProgressLogger, MetricLogger, TrainingProgressLogger};
use burn::train::metric::store::{EpochSummary, MetricsUpdate, Split};
use burn::train::metric::{MetricDefinition, NumericEntry};
use burn::train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining,
};

/// Renders nothing.
pub(super) struct NoRenderer;

impl MetricsRendererTraining for NoRenderer {
    fn update_train(&mut self, _state: MetricState) {}

    fn update_valid(&mut self, _state: MetricState) {}

    fn on_train_end(
        &mut self,
        _summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for NoRenderer {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn on_test_end(
        &mut self,
        _summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRenderer for NoRenderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}

impl TrainingProgressLogger for NoRenderer {
    fn start(
        &mut self,
        _total_epochs: usize,
        _starting_epoch: usize,
        _total_items: Option<usize>,
        _label: Option<&str>,
    ) {
    }

    fn update_epoch(&mut self, _epoch: usize) {}

    fn start_split(&mut self, _split: &str, _total_items: usize) {}

    fn update_split(&mut self, _items_processed: usize) {}

    fn end_split(&mut self) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for NoRenderer {
    fn start_global_progress(&mut self, _total_tests: usize) {}

    fn start_test(&mut self, _name: &str, _total_items: usize) {}

    fn update_test_progress(&mut self, _items_processed: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}

/// Logs nothing; without any logger Burn would write files.
pub(super) struct NoLogger;

impl MetricLogger for NoLogger {
    fn log(&mut self, _update: MetricsUpdate, _epoch: usize, _split: &Split) {}

    fn read_numeric(
        &mut self,
        name: &str,
        _epoch: usize,
        _split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        Err(format!("only rank 0 has values of {name:?}"))
    }

    fn log_metric_definition(&mut self, _definition: MetricDefinition) {}

    fn log_epoch_summary(&mut self, _summary: EpochSummary) {}
}

/// Saves nothing and restores nothing: what rank 0 has restored comes over the group.
pub(super) struct NoCheckpointer;

impl<R: Nothing> Checkpointer<R> for NoCheckpointer {
    fn save(&self, _epoch: usize, _record: R) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn delete(&self, _epoch: usize) -> Result<(), CheckpointerError> {
        Ok(())
    }

    fn restore(&self, _epoch: usize) -> Result<R, CheckpointerError> {
        Ok(R::nothing())
    }
}

/// A record that changes nothing of what it is loaded into.
trait Nothing: Checkpoint {
    fn nothing() -> Self;
}

impl Nothing for ModuleRecord {
    fn nothing() -> Self {
        Vec::<Linear>::new().into_record().allow_partial(true)
    }
}

impl Nothing for OptimizerRecord {
    fn nothing() -> Self {
        Self::default()
    }
}

impl Nothing for LrSchedulerRecord {
    fn nothing() -> Self {
        Self::new()
    }
}
