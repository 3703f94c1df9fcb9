//! Our loss scaler goes through PyTorch's states.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_amp::GradScalerConfig;
use bonfire_tensor::state::Stateful;
use bonfire_tests::golden::numbers_of;

/// Made by `golden/grad_scaler.py`.
static GOLDEN: &[u8] = include_bytes!("../golden/grad_scaler.safetensors");

#[test]
fn five_thousand_steps_with_overflows_are_those_of_pytorch() {
    let default = GradScalerConfig::new();
    let configs = [
        ("default", default),
        (
            "uneven",
            default
                .with_init_scale(3.0)
                .with_growth_factor(1.5)
                .with_backoff_factor(0.6)
                .with_growth_interval(7),
        ),
        ("ceiling", default.with_init_scale(2f64.powi(120)).with_growth_interval(3)),
    ];
    for (name, config) in configs {
        let golden = |key: &str| numbers_of(GOLDEN, &format!("{name}/{key}"));
        let (overflows, scales, trackers) =
            (golden("overflow"), golden("scale"), golden("tracker"));
        assert_eq!(overflows.len(), 5000);
        let mut scaler = config.init().unwrap();
        for (step, overflow) in overflows.iter().enumerate() {
            scaler.update(*overflow == 1.0);
            let got = (f64::from(scaler.scale()), scaler.growth_tracker() as f64);
            assert_eq!(got, (scales[step], trackers[step]), "{name}: step {step}");
            // A scaler that is saved and restored goes on alike.
            if step % 977 == 0 {
                let state = scaler.state().unwrap();
                scaler = config.init().unwrap();
                scaler.load_state(state).unwrap();
            }
        }
        assert_eq!(scaler.skipped_steps() as f64, overflows.iter().sum::<f64>(), "{name}");
    }
}
