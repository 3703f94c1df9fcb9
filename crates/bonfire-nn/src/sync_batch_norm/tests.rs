use super::*;
use crate::{NormConfig, NormKind, connect_sync_batchnorm, convert_sync_batchnorm};
use bonfire_comm::{ReduceOp, local};
use bonfire_tensor::parameters;
use burn::tensor::{DType, Device, Distribution, TensorData};

const CHANNELS: usize = 3;

fn layer(group: &ProcessGroup) -> SyncBatchNorm {
    let layer = SyncBatchNormConfig::new(CHANNELS).init(&Device::flex().autodiff());
    connect_sync_batchnorm(layer, group).unwrap()
}

fn images(samples: usize, device: &Device) -> Tensor<4> {
    let shape = [samples, CHANNELS, 4, 5];
    let value = |index: usize| (0.7 * index as f32).sin() + index as f32 / 100.0;
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_data(TensorData::new(values, shape), device)
}

fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().iter::<f64>().collect()
}

fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
}

#[test]
fn outputs_and_gradients_are_those_of_burn_and_the_variance_is_unbiased() {
    let device = Device::flex().autodiff();
    let norm = BatchNormConfig::new(CHANNELS).init(&device);
    let own = SyncBatchNorm::from(BatchNormConfig::new(CHANNELS).init(&device));
    let pass = |forward: &dyn Fn(Tensor<4>) -> Tensor<4>| {
        let x = images(2, &device).require_grad();
        let y = forward(x.clone());
        let gradients = (y.clone() * images(2, &device).sin()).sum().backward();
        [floats(y), floats(x.grad(&gradients).unwrap())]
    };
    let [got_y, got_dx] = pass(&|x| own.forward(x));
    let [y, dx] = pass(&|x| norm.forward(x));
    assert!(largest_difference(&got_y, &y) < 1e-5);
    assert!(largest_difference(&got_dx, &dx) < 1e-5);
    let [got, burn] =
        [own.valid().running_var, norm.valid().running_var].map(|of| floats(of.value()));
    // 40 values a channel: only the batch's part of the running variance is larger.
    let unbiased: Vec<f64> = burn.iter().map(|var| 0.9 + (var - 0.9) * 40.0 / 39.0).collect();
    assert!(largest_difference(&got, &unbiased) < 1e-6, "{got:?} {unbiased:?}");
}

#[test]
fn a_record_of_burn_s_layer_is_one_of_ours_and_back() {
    let device = Device::flex().autodiff();
    let burn = BatchNormConfig::new(CHANNELS).init(&device);
    // An odd number of steps: the last update is one that nobody has asked for yet.
    burn.forward(images(2, &device));
    let fresh = SyncBatchNormConfig::new(CHANNELS).init(&device);
    let saved = parameters::read(&burn, |_| true).unwrap();
    assert!(saved.tensors.keys().eq(parameters::read(&fresh, |_| true).unwrap().tensors.keys()));
    let loaded = fresh.load_record(burn.valid().into_record());
    assert_eq!(parameters::read(&loaded, |_| true).unwrap(), saved);
    let back = BatchNormConfig::new(CHANNELS).init(&device).load_record(loaded.into_record());
    assert_eq!(parameters::read(&back, |_| true).unwrap(), saved);
    let back = BatchNorm::from(SyncBatchNorm::from(back));
    assert_eq!(parameters::read(&back, |_| true).unwrap(), saved);
}

#[test]
fn paths_are_the_same_with_and_without_synchronisation() {
    let device = Device::flex().autodiff();
    let paths = [NormKind::Batch, NormKind::SyncBatch].map(|kind| {
        let norm = NormConfig::new(kind).init(CHANNELS, &device).unwrap();
        assert_eq!(norm.kind(), kind);
        parameters::read(&norm, |_| true).unwrap()
    });
    assert_eq!(paths[0], paths[1]);
    assert!(paths[0].tensors.contains_key("Batch.running_mean"));
}

#[test]
fn evaluation_and_frozen_layers_communicate_nothing() {
    local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let layer = layer(&group);
        let sent = || layer.group().unwrap().bytes_sent();
        let x = images(1 + group.rank(), &device).require_grad();
        let before = sent();
        layer.valid().forward(x.clone().inner());
        let frozen = layer.clone().freeze();
        let y = frozen.forward(x.clone());
        let gradients = y.sum().backward();
        assert_eq!(sent(), before);
        // It is the layer's input all the same that parameters below it are trained by.
        assert!(floats(x.grad(&gradients).unwrap()).iter().all(|gradient| *gradient > 0.9));
        assert_eq!(floats(frozen.running_mean.value_sync()), [0.0; CHANNELS]);

        let y = layer.forward(x.clone());
        let forward = sent();
        assert!(forward > before);
        y.sum().backward();
        assert!(sent() > forward);
    });
}

#[test]
fn a_rank_alone_communicates_nothing() {
    let group = ProcessGroup::single();
    let layer = layer(&group);
    let entered = || {
        let recorder = group.flight_recorder();
        let dump = recorder.snapshot(bonfire_comm::flight::Reason::Request);
        dump.groups.iter().map(|group| group.entered).sum::<u64>()
    };
    let before = entered();
    let x = images(2, &Device::flex().autodiff()).require_grad();
    layer.forward(x).sum().backward();
    assert_eq!(entered(), before);
}

#[test]
fn a_single_value_over_all_ranks_is_an_error_on_every_rank() {
    for world in [1, 3] {
        let errors = local::spawn(world, |group| {
            let device = Device::flex().autodiff();
            let layer = layer(&group);
            // Only the last rank has a sample.
            let samples = usize::from(group.rank() + 1 == world);
            let x = Tensor::<2>::ones([samples, CHANNELS], &device);
            let y = floats(layer.forward(x));
            assert!(y.iter().all(|value| value.is_nan()), "{y:?}");
            group.all_reduce(&mut [0.0f32], ReduceOp::Sum).unwrap_err().to_string()
        });
        for error in errors {
            assert!(error.contains("at least 2 values a channel"), "{error}");
        }
    }
}

#[test]
#[should_panic(expected = "at least 2 values a channel, got 1")]
fn a_single_value_without_a_group_is_a_mistake() {
    let device = Device::flex().autodiff();
    let norm = NormConfig::new(NormKind::Batch).init(CHANNELS, &device).unwrap();
    norm.forward(Tensor::<2>::ones([1, CHANNELS], &device));
}

#[test]
fn half_precision_is_normalised_with_single_precision_statistics() {
    let device = Device::flex().autodiff();
    for (dtype, epsilon) in [(DType::F16, 1e-3), (DType::BF16, 8e-3)] {
        // Far from zero: statistics in the input's own type would be off in the first digit.
        let x = (images(8, &device) + 30.0).cast(dtype);
        let pass = |x: Tensor<4>| {
            let layer = SyncBatchNormConfig::new(CHANNELS).init(&device);
            let x = x.require_grad();
            let y = layer.forward(x.clone());
            let weights = images(8, &device).sin().cast(y.dtype());
            let gradients = (y.clone() * weights).sum().backward();
            let dx = x.grad(&gradients).unwrap();
            assert_eq!((y.dtype(), dx.dtype()), (x.dtype(), x.dtype()));
            (floats(y), floats(dx), layer.valid())
        };
        let (y, dx, layer) = pass(x.clone());
        let (wide_y, wide_dx, wide) = pass(x.cast(DType::F32));
        assert_eq!(layer.running_mean.value().dtype(), DType::F32);
        assert_eq!(floats(layer.running_mean.value()), floats(wide.running_mean.value()));
        assert_eq!(floats(layer.running_var.value()), floats(wide.running_var.value()));
        // Outputs are below 4, gradients below 1.
        assert!(largest_difference(&y, &wide_y) < 4.0 * epsilon);
        assert!(largest_difference(&dx, &wide_dx) < 2.0 * epsilon);
        let evaluated = layer.forward(images(8, &Device::flex()).cast(dtype));
        assert_eq!(evaluated.dtype(), dtype);
    }
}

#[test]
fn a_layer_trains_under_gradient_checkpointing() {
    let gradients = |device: &Device| {
        let layer = SyncBatchNormConfig::new(CHANNELS).init(device);
        let frozen = SyncBatchNormConfig::new(CHANNELS).init(device).freeze();
        let x = images(2, device).require_grad();
        // The second pass reads statistics that the first has written.
        layer.forward(x.clone());
        let y = burn::tensor::activation::relu(layer.forward(x.clone().sin()));
        let y = frozen.forward(y.clone() * y);
        floats(x.grad(&y.square().sum().backward()).unwrap())
    };
    let device = Device::flex().autodiff();
    let (got, expected) = (gradients(&device.clone().gradient_checkpointing()), gradients(&device));
    assert!(largest_difference(&got, &expected) < 1e-5, "{got:?} {expected:?}");
    assert!(expected.iter().any(|gradient| gradient.abs() > 0.1));
}

#[test]
fn layers_whose_parameters_need_no_gradients_still_pass_theirs_on() {
    let ranks = local::spawn(2, |group| {
        let device = Device::flex().autodiff();
        let layer = convert_sync_batchnorm(layer(&group).no_grad(), &group).unwrap();
        let x = images(1 + group.rank(), &device).require_grad();
        let y = layer.forward(x.clone());
        let gradients = (y.clone() * images(1 + group.rank(), &device).sin()).sum().backward();
        floats(x.grad(&gradients).unwrap()).iter().map(|gradient| gradient.abs()).sum::<f64>()
    });
    assert!(ranks.iter().all(|sum| *sum > 0.1), "{ranks:?}");
}

#[test]
fn inputs_of_any_layout_are_taken() {
    let device = Device::flex().autodiff();
    let draw = Tensor::<3>::random([6, 20, CHANNELS], Distribution::Default, &device);
    let transposed = draw.swap_dims(1, 2);
    let copy = Tensor::<3>::from_data(transposed.to_data(), &device);
    let [got, expected] = [transposed, copy].map(|x| {
        let x = x.detach().require_grad();
        let y = SyncBatchNormConfig::new(CHANNELS).init(&device).forward(x.clone());
        let gradients = y.clone().powi_scalar(3).sum().backward();
        [floats(y), floats(x.grad(&gradients).unwrap())]
    });
    assert_eq!(got, expected);
}
