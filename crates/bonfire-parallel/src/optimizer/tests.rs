use super::*;
use crate::bucket::Segment;
use burn::optim::decay::WeightDecayConfig;
use burn::optim::momentum::MomentumConfig;
use burn::tensor::Device;

/// Two parameters and two elements of padding.
fn segments() -> Vec<Segment> {
    let segment = |path: &str, range: Range<usize>, parameter| Segment {
        path: path.into(),
        shape: vec![range.len()],
        range,
        parameter,
    };
    vec![segment("b", 0..3, 1), segment("a", 3..8, 0)]
}

fn flat(values: impl Fn(f32) -> f32) -> Tensor<1> {
    let values: Vec<f32> = (0..10).map(|k| values(k as f32)).collect();
    Tensor::from_data(values.as_slice(), &Device::flex())
}

fn values(tensor: &Tensor<1>) -> Vec<f32> {
    tensor.clone().try_into_vec_as::<f32>().unwrap()
}

/// Runs some steps with gradients that depend on the parameters.
fn run(optimizer: &mut dyn FlatOptimizer, rates: &[Option<f64>], steps: usize) -> Tensor<1> {
    let segments = segments();
    let mut parameters = flat(|k| k / 4.0 - 1.1);
    for step in 0..steps {
        let gradients = parameters.clone().sin().add_scalar(step as f32 / 10.0).mul_scalar(2.0);
        let update = FlatUpdate {
            parameters: &parameters,
            gradients,
            gradient_scale: 0.5,
            segments: &segments,
            rates,
        };
        parameters = optimizer.step(0, update).unwrap();
    }
    parameters
}

fn assert_near(a: &Tensor<1>, b: &Tensor<1>) {
    for (a, b) in values(a).iter().zip(values(b)).take(8) {
        assert!((a - b).abs() <= 2e-6 * b.abs().max(1.0), "{a} is not {b}");
    }
}

const EQUAL: [Option<f64>; 2] = [Some(0.1), Some(0.1)];

#[test]
fn burn_optimizers_give_what_ours_give() {
    let mut ours = SgdConfig::new().with_momentum(0.9).with_weight_decay(0.01).init().unwrap();
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    let burns = burn::optim::SgdConfig::new()
        .with_momentum(Some(momentum))
        .with_weight_decay(Some(WeightDecayConfig::new(0.01)));
    let mut burns = BurnOptimizer::new(burns.build());
    assert_near(&run(&mut burns, &EQUAL, 5), &run(&mut ours, &EQUAL, 5));

    let mut ours = AdamWConfig::new().init().unwrap();
    let burns = burn::optim::AdamWConfig::new().with_epsilon(1e-8).with_weight_decay(0.01);
    let mut burns = BurnOptimizer::new(burns.build());
    assert_near(&run(&mut burns, &EQUAL, 5), &run(&mut ours, &EQUAL, 5));
}

#[test]
fn rates_hold_for_their_segments_and_none_leaves_a_segment_alone() {
    let before = flat(|k| k / 4.0 - 1.1);
    let optimizers: [Box<dyn FlatOptimizer>; 3] = [
        Box::new(SgdConfig::new().init().unwrap()),
        Box::new(AdamWConfig::new().init().unwrap()),
        Box::new(BurnOptimizer::new(burn::optim::AdamWConfig::new().build())),
    ];
    for mut optimizer in optimizers {
        let after = run(optimizer.as_mut(), &[None, Some(0.1)], 1);
        let (before, after) = (values(&before), values(&after));
        assert_eq!(before[..3], after[..3]);
        assert!(before[3..8].iter().zip(&after[3..8]).all(|(a, b)| a != b));
    }
    let mut one = SgdConfig::new().init().unwrap();
    let mut two = SgdConfig::new().init().unwrap();
    let small = run(&mut one, &[Some(0.1), Some(0.1)], 1);
    let large = run(&mut two, &[Some(0.2), Some(0.1)], 1);
    let change = |after: &Tensor<1>, k: usize| values(after)[k] - values(&before)[k];
    assert!((change(&large, 0) / change(&small, 0) - 2.0).abs() < 1e-5);
    assert_eq!(values(&large)[3..8], values(&small)[3..8]);
}

#[test]
fn a_restored_optimizer_goes_on_as_the_saved_one() {
    fn check(make: impl Fn() -> Box<dyn FlatOptimizer>) {
        let mut whole = make();
        run(whole.as_mut(), &EQUAL, 3);
        let mut restored = make();
        for name in whole.slots(0) {
            restored.set_slot(0, &name, whole.slot(0, &name).unwrap());
        }
        for (name, value) in whole.scalars() {
            restored.set_scalar(&name, value).unwrap();
        }
        let (a, b) = (run(whole.as_mut(), &EQUAL, 2), run(restored.as_mut(), &EQUAL, 2));
        assert_eq!(values(&a)[..8], values(&b)[..8]);
    }
    check(|| Box::new(SgdConfig::new().with_momentum(0.9).init().unwrap()));
    check(|| Box::new(AdamWConfig::new().init().unwrap()));
    check(|| Box::new(BurnOptimizer::new(burn::optim::AdamWConfig::new().build())));
}

#[test]
fn impossible_settings_are_named() {
    let error = SgdConfig::new().with_nesterov(true).init().err().unwrap().to_string();
    assert!(error.contains("nesterov"), "{error}");
    let error = AdamWConfig::new().with_betas(0.9, 1.0).init().err().unwrap().to_string();
    assert!(error.contains("betas") && error.contains('1'), "{error}");
    assert!(SgdConfig::new().with_momentum(f64::NAN).init().is_err());
}

#[test]
fn a_parameter_first_used_late_is_updated_like_one_used_first() {
    let optimizers: [fn() -> Box<dyn FlatOptimizer>; 3] = [
        || Box::new(SgdConfig::new().with_momentum(0.9).with_dampening(0.5).init().unwrap()),
        || Box::new(AdamWConfig::new().init().unwrap()),
        || Box::new(BurnOptimizer::new(burn::optim::AdamWConfig::new().build())),
    ];
    for make in optimizers {
        let first = run(make().as_mut(), &EQUAL, 1);
        let mut optimizer = make();
        run(optimizer.as_mut(), &[Some(0.1), None], 4);
        // The helper begins with the same parameters and gradients again.
        let late = run(optimizer.as_mut(), &EQUAL, 1);
        assert_eq!(values(&late)[3..8], values(&first)[3..8]);
        assert_ne!(values(&late)[..3], values(&first)[..3]);

        // Also when it was saved and restored before its first use.
        let mut saved = make();
        run(saved.as_mut(), &[Some(0.1), None], 4);
        let mut restored = make();
        for name in saved.slots(0) {
            restored.set_slot(0, &name, saved.slot(0, &name).unwrap());
        }
        for (name, value) in saved.scalars() {
            restored.set_scalar(&name, value).unwrap();
        }
        let again: Vec<String> = restored.slots(0);
        assert_eq!(again, saved.slots(0));
        assert_eq!(restored.scalars().len(), saved.scalars().len());
        let late = run(restored.as_mut(), &EQUAL, 1);
        assert_eq!(values(&late)[3..8], values(&first)[3..8]);
    }
}
