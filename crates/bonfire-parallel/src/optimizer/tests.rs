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
    run_with(optimizer, |_| rates.to_vec(), [None; 2], steps).unwrap()
}

/// The same with rates that depend on the step, and weight decay by segment.
fn run_with(
    optimizer: &mut dyn FlatOptimizer,
    rates: impl Fn(usize) -> Vec<Option<f64>>,
    decays: [Option<f64>; 2],
    steps: usize,
) -> Result<Tensor<1>, ParallelError> {
    let segments = segments();
    let mut parameters = flat(|k| k / 4.0 - 1.1);
    for step in 0..steps {
        let rates = &rates(step);
        let gradients = parameters.clone().sin().add_scalar(step as f32 / 10.0).mul_scalar(2.0);
        let update = FlatUpdate {
            parameters: &parameters,
            gradients,
            gradient_scale: 0.5,
            segments: &segments,
            rates,
            decays: &decays,
            only_if: None,
        };
        parameters = optimizer.step(0, update)?;
    }
    Ok(parameters)
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

#[test]
fn a_segment_decays_as_its_group_says() {
    type Make = fn(f64) -> Box<dyn FlatOptimizer>;
    let optimizers: [Make; 4] = [
        |decay| Box::new(SgdConfig::new().with_weight_decay(decay).init().unwrap()),
        |decay| {
            let config = SgdConfig::new().with_momentum(0.9).with_weight_decay(decay);
            Box::new(config.init().unwrap())
        },
        |decay| Box::new(AdamConfig::new().with_weight_decay(decay).init().unwrap()),
        |decay| Box::new(AdamWConfig::new().with_weight_decay(decay).init().unwrap()),
    ];
    for make in optimizers {
        let rates = |_| EQUAL.to_vec();
        let mixed = run_with(make(0.3).as_mut(), rates, [Some(0.0), None], 4).unwrap();
        let (without, with) =
            (run(make(0.0).as_mut(), &EQUAL, 4), run(make(0.3).as_mut(), &EQUAL, 4));
        assert_eq!(values(&mixed)[..3], values(&without)[..3]);
        assert_eq!(values(&mixed)[3..8], values(&with)[3..8]);
        assert_ne!(values(&without)[..8], values(&with)[..8]);
    }
    let mut burns = BurnOptimizer::new(burn::optim::AdamWConfig::new().build());
    let error = run_with(&mut burns, |_| EQUAL.to_vec(), [None, Some(0.0)], 1).unwrap_err();
    assert!(error.to_string().contains("weight decay by parameter group (\"a\""), "{error}");
}

/// Momentum with the rate inside the buffer, by hand; `correct` multiplies the buffer by new / old
/// rate where the rate changes (Goyal et al., equation 10 and remark 2).
fn rate_inside_the_buffer(rates: &[f64], momentum: f64, correct: bool, nesterov: bool) -> Vec<f32> {
    let mut p: Vec<f64> = values(&flat(|k| k / 4.0 - 1.1)).into_iter().map(f64::from).collect();
    let mut v = vec![0.0; p.len()];
    for (step, rate) in rates.iter().enumerate() {
        let old = if step == 0 { *rate } else { rates[step - 1] };
        let keep = if correct { momentum * rate / old } else { momentum };
        for (p, v) in p.iter_mut().zip(&mut v) {
            let gradient = p.sin() + step as f64 / 10.0;
            *v = keep * *v + rate * gradient;
            *p -= if nesterov { rate * gradient + momentum * *v } else { *v };
        }
    }
    p.into_iter().map(|value| value as f32).collect()
}

#[test]
fn momentum_is_corrected_where_the_rate_changes_unless_it_is_asked_not_to() {
    let rates = [0.1, 0.1, 0.2, 0.2, 0.02];
    for nesterov in [false, true] {
        let run = |correction: bool| {
            let config = SgdConfig::new().with_momentum(0.9).with_nesterov(nesterov);
            let mut sgd = config.with_momentum_correction(correction).init().unwrap();
            let rates = |step: usize| vec![Some(rates[step]); 2];
            run_with(&mut sgd, rates, [None; 2], 5).unwrap()
        };
        let near = |got: &Tensor<1>, expected: &[f32]| {
            let pairs = values(got).into_iter().zip(expected).take(8);
            pairs.fold(0f32, |most, (got, expected)| most.max((got - expected).abs()))
        };
        let corrected = rate_inside_the_buffer(&rates, 0.9, true, nesterov);
        let uncorrected = rate_inside_the_buffer(&rates, 0.9, false, nesterov);
        assert!(near(&run(true), &corrected) < 2e-6);
        assert!(near(&run(false), &uncorrected) < 2e-6);
        assert!(near(&run(true), &uncorrected) > 1e-2, "the two differ");
    }
}

#[test]
fn momentum_can_change_between_steps() {
    // The same as another optimizer from the first step on.
    let mut changed = SgdConfig::new().init().unwrap();
    changed.set_momentum(0.9).unwrap();
    let mut fixed = SgdConfig::new().with_momentum(0.9).init().unwrap();
    assert_eq!(
        values(&run(&mut changed, &EQUAL, 3))[..8],
        values(&run(&mut fixed, &EQUAL, 3))[..8]
    );
    let mut changed = AdamWConfig::new().init().unwrap();
    changed.set_momentum(0.5).unwrap();
    let mut fixed = AdamWConfig::new().with_betas(0.5, 0.999).init().unwrap();
    assert_eq!(
        values(&run(&mut changed, &EQUAL, 3))[..8],
        values(&run(&mut fixed, &EQUAL, 3))[..8]
    );
    assert!(changed.set_momentum(1.0).unwrap_err().to_string().contains("betas = 1"));
    let mut burns = BurnOptimizer::new(burn::optim::AdamWConfig::new().build());
    assert!(burns.set_momentum(0.9).is_err());
}
