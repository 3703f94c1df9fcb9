use crate::wide::widened;
use burn::module::Module;
use burn::tensor::activation::log_softmax;
use burn::tensor::{Int, Tensor};

/// Size of one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageShape {
    /// Colour channels.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// A model that gives every image a score for every class.
pub trait ImageClassifier: Module {
    /// Computes the scores.
    ///
    /// # Shapes
    /// - images `[batch, channels, height, width]`
    /// - output `[batch, classes]`, before any softmax
    fn forward(&self, images: Tensor<4>) -> Tensor<2>;
}

/// Mean cross-entropy of scores against class indices, in f32 at least.
///
/// `loss = mean_i(-log softmax(logits_i)[target_i])`
///
/// # Shapes
/// - logits `[batch, classes]`
/// - targets `[batch]`, each in `0..classes`
///
/// # Reference
/// `torch.nn.functional.cross_entropy`.
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [batch] = targets.dims();
    let log_probability = log_softmax(widened(logits), 1).gather(1, targets.reshape([batch, 1]));
    log_probability.mean().neg()
}

/// Mean cross-entropy of scores against class indices that are smoothed: the class has probability
/// `1 - smoothing`, and `smoothing` is spread evenly over all classes. In f32 at least.
///
/// `loss = (1 - smoothing) * cross_entropy - smoothing * mean_ik(log softmax(logits_i)_k)`
///
/// A smoothing of 0 is [`cross_entropy`].
///
/// # Shapes
/// - logits `[batch, classes]`
/// - targets `[batch]`, each in `0..classes`
/// - smoothing in `[0, 1]`
///
/// # Reference
/// `torch.nn.functional.cross_entropy` with `label_smoothing`; Szegedy et al., "Rethinking the
/// Inception Architecture for Computer Vision", 2015, arXiv:1512.00567, section 7.
pub fn cross_entropy_smoothed(
    logits: Tensor<2>,
    targets: Tensor<1, Int>,
    smoothing: f64,
) -> Tensor<1> {
    let [batch] = targets.dims();
    let log_probabilities = log_softmax(widened(logits), 1);
    let of_class = log_probabilities.clone().gather(1, targets.reshape([batch, 1])).mean();
    let of_all = log_probabilities.mean();
    of_class.mul_scalar(smoothing - 1.0) - of_all.mul_scalar(smoothing)
}

/// Mean cross-entropy of scores against mixtures of two classes: the first has probability `lambda`,
/// the second the rest; then smoothed as in [`cross_entropy_smoothed`]. In f32 at least.
///
/// `loss = lambda * loss(first) + (1 - lambda) * loss(second)`, since cross-entropy is linear in its
/// target.
///
/// # Shapes
/// - logits `[batch, classes]`
/// - first and second `[batch]`, each in `0..classes`
/// - lambda and smoothing in `[0, 1]`
///
/// # Reference
/// `torch.nn.functional.cross_entropy` with probabilities as target and `label_smoothing`; Zhang et
/// al., "mixup: Beyond Empirical Risk Minimization", 2017, arXiv:1710.09412, section 2.
pub fn cross_entropy_mixed(
    logits: Tensor<2>,
    [first, second]: [Tensor<1, Int>; 2],
    lambda: f64,
    smoothing: f64,
) -> Tensor<1> {
    let [batch] = first.dims();
    let log_probabilities = log_softmax(widened(logits), 1);
    let of = |classes: Tensor<1, Int>| {
        log_probabilities.clone().gather(1, classes.reshape([batch, 1])).mean()
    };
    let of_classes = of(first).mul_scalar(lambda) + of(second).mul_scalar(1.0 - lambda);
    if smoothing == 0.0 {
        return of_classes.neg();
    }
    of_classes.mul_scalar(smoothing - 1.0) - log_probabilities.mean().mul_scalar(smoothing)
}

/// Number of images whose highest score is that of their class.
///
/// # Shapes
/// - logits `[batch, classes]`
/// - targets `[batch]`
pub fn correct_predictions(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1, Int> {
    let [batch] = targets.dims();
    let predictions = logits.without_autodiff().argmax(1).reshape([batch]);
    predictions.equal(targets.without_autodiff()).int().sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    #[test]
    fn cross_entropy_is_the_mean_negative_log_probability() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_data([[1.0f32, 2.0, 3.0], [0.0, 0.0, 0.0]], &device);
        let targets = Tensor::<1, Int>::from_data([2, 0], &device);
        let loss: f32 = cross_entropy(logits, targets).into_scalar();
        let first = ((1f32 - 3.0).exp() + (2f32 - 3.0).exp() + 1.0).ln();
        assert!((loss - (first + 3f32.ln()) / 2.0).abs() < 1e-6, "{loss}");
    }

    #[test]
    fn correct_predictions_are_counted() {
        let device = Device::flex();
        let scores = TensorData::from([[0.1f32, 0.9], [0.8, 0.2], [0.3, 0.7]]);
        let logits = Tensor::<2>::from_data(scores, &device);
        let targets = Tensor::<1, Int>::from_data([1, 1, 1], &device);
        let correct: i64 = correct_predictions(logits, targets).into_scalar();
        assert_eq!(correct, 2);
    }
}
