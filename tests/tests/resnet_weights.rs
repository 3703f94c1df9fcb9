//! Weights by torchvision's names make our networks give torchvision's scores.
//!
//! `golden/resnet_weights.py` says what the golden files hold.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test reports by panicking")]

use bonfire_comm::HostBuffer;
use bonfire_models::resnet::{Stem, torchvision_tensor};
use bonfire_models::{ResNet, ResNetConfig};
use bonfire_nn::{ImageClassifier, ImageShape};
use bonfire_tensor::parameters;
use bonfire_tensor::state::HostTensor;
use bonfire_trainer::checkpoint::{read_safetensors, write_safetensors};
use bonfire_trainer::weights::{Head, WeightNames, WeightsError, export_pytorch, load_weights};
use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Largest difference, relative to the largest score.
const TOLERANCE: f32 = 1e-4;
const IMAGES: [usize; 4] = [2, 3, 64, 64];

/// The weights of a full network are too large for a file of this repository: they are drawn here.
#[test]
fn networks_of_full_width_give_torchvisions_scores() {
    for depth in [18, 50] {
        let model = network(depth, 64, 1000);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("drawn.safetensors");
        write_safetensors(&file, &drawn_weights(&model, depth)).unwrap();
        let fitted = load_weights(model, &file, &names(), Head::Load).unwrap();
        assert_eq!((fitted.names, fitted.kept.len()), ("PyTorch's names", 0));
        assert_scores(&fitted.model, &format!("resnet{depth}"));
    }
}

#[test]
fn a_checkpoint_of_pytorch_gives_its_scores() {
    // Weights under "state_dict" and "module", with an optimizer beside them.
    let file = golden("resnet18_narrow.pt");
    let fitted = load_weights(network(18, 4, 10), &file, &names(), Head::Load).unwrap();
    assert_eq!(fitted.num_loaded, 102);
    assert_scores(&fitted.model, "resnet18_narrow");
}

#[test]
fn safetensors_of_torchvision_give_its_scores() {
    let file = golden("resnet50_narrow.safetensors");
    let fitted = load_weights(network(50, 2, 10), &file, &names(), Head::Load).unwrap();
    assert_scores(&fitted.model, "resnet50_narrow");
}

#[test]
fn exported_weights_are_those_that_were_imported() {
    let folder = tempfile::tempdir().unwrap();
    let file = golden("resnet50_narrow.safetensors");
    let model = load_weights(network(50, 2, 10), &file, &names(), Head::Load).unwrap().model;
    let exported = folder.path().join("exported.safetensors");
    export_pytorch(&model, &names(), &exported).unwrap();
    let mut original = read_safetensors(&file).unwrap();
    original.retain(|name, _| !name.ends_with("num_batches_tracked"));
    assert_eq!(read_safetensors(&exported).unwrap(), original);
}

#[test]
fn module_paths_are_understood_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    let model = network(18, 4, 10);
    write_safetensors(&file, &state(&model)).unwrap();
    let fitted = load_weights(network(18, 4, 10), &file, &names(), Head::Load).unwrap();
    assert_eq!(fitted.names, "module paths");
    assert_eq!(state(&fitted.model), state(&model));
}

#[test]
fn half_precision_is_widened() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("half.safetensors");
    let model = network(18, 4, 10);
    let mut tensors = state(&model);
    let weight = tensors.get_mut("fc.weight").unwrap();
    let HostBuffer::F32(values) = &weight.data else { panic!("parameters are in f32") };
    let half: Vec<half::bf16> = values.iter().map(|value| half::bf16::from_f32(*value)).collect();
    let expected: Vec<f32> = half.iter().map(|value| value.to_f32()).collect();
    weight.data = half.into();
    write_safetensors(&file, &tensors).unwrap();
    let loaded = load_weights(model, &file, &names(), Head::Load).unwrap().model;
    assert_eq!(state(&loaded)["fc.weight"].data, HostBuffer::F32(expected));
}

#[test]
fn everything_that_does_not_fit_is_said_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.safetensors");
    let mut tensors = read_safetensors(&golden("resnet50_narrow.safetensors")).unwrap();
    tensors.remove("bn1.running_var").unwrap();
    tensors.remove("layer3.5.conv2.weight").unwrap();
    let moved = tensors.remove("layer1.0.conv1.weight").unwrap();
    tensors.insert("layer1.0.conv0.weight".to_string(), moved);
    tensors.get_mut("conv1.weight").unwrap().shape = vec![2, 3, 49, 1];
    let count = HostTensor { shape: vec![2], data: HostBuffer::I64(vec![1, 2]) };
    tensors.insert("bn1.bias".to_string(), count);
    write_safetensors(&file, &tensors).unwrap();
    let error = load_weights(network(50, 2, 10), &file, &names(), Head::Load).unwrap_err();
    let message = error.to_string();
    for line in [
        "(PyTorch's names) are not those of the model:",
        "  missing: \"bn1.running_var\"",
        "  missing: \"layer3.5.conv2.weight\"",
        "  missing: \"layer1.0.conv1.weight\"",
        "  unexpected: \"layer1.0.conv0.weight\"",
        "  other shape: \"conv1.weight\" is [2, 3, 49, 1], the model's is [2, 3, 7, 7]",
        "  other shape: \"bn1.bias\" is of another kind of number, the model's is f32",
    ] {
        assert!(message.contains(line), "{line:?} is missing in\n{message}");
    }
    assert_eq!(message.lines().count(), 7, "{message}");
}

#[test]
fn a_head_of_other_classes_is_refused_unless_it_stays_new() {
    let file = golden("resnet50_narrow.safetensors");
    let load = |head| load_weights(network(50, 2, 3), &file, &names(), head);
    let message = load(Head::Load).unwrap_err().to_string();
    for line in [
        "  other shape: \"fc.weight\" is [10, 64], the model's is [3, 64]",
        "  other shape: \"fc.bias\" is [10], the model's is [3]",
        "model.reset_head = true (--reset-head)",
    ] {
        assert!(message.contains(line), "{line:?} is missing in\n{message}");
    }

    let fitted = load(Head::Keep).unwrap();
    assert_eq!(fitted.kept, ["fc.weight", "fc.bias"]);
    let fresh = state(&network(50, 2, 3));
    let loaded = state(&fitted.model);
    assert_eq!(loaded["fc.weight"], fresh["fc.weight"]);
    let original = read_safetensors(&file).unwrap();
    assert_eq!(loaded["conv1.weight"], original["conv1.weight"]);

    let nameless = WeightNames { head: None, ..names() };
    let error = load_weights(network(50, 2, 3), &file, &nameless, Head::Keep).unwrap_err();
    assert!(matches!(error, WeightsError::NoHead), "{error}");
}

#[test]
fn files_that_hold_no_weights_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content, says) in [
        ("weights.bin", &b"x"[..], "expected .safetensors, .pt or .pth"),
        ("weights.pt", b"no pickle", "weights.pt"),
        ("weights.safetensors", b"short", "weights.safetensors"),
    ] {
        let file = folder.path().join(name);
        std::fs::write(&file, content).unwrap();
        let error = load_weights(network(18, 1, 2), &file, &names(), Head::Load).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    let absent = folder.path().join("absent.pth");
    let error = load_weights(network(18, 1, 2), &absent, &names(), Head::Load).unwrap_err();
    assert!(error.to_string().contains("absent.pth"), "{error}");
}

fn names() -> WeightNames {
    WeightNames::default().with_head("fc").with_pytorch(torchvision_tensor)
}

/// A network of the images' shape, always with the same new values.
fn network(depth: usize, width: usize, classes: usize) -> ResNet {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _turn = TURN.lock();
    let config =
        ResNetConfig { depth, width: Some(width), stem: Stem::Imagenet, ..Default::default() };
    let [_, channels, height, width] = IMAGES;
    let device = Device::flex();
    device.seed(7);
    let model =
        config.init(ImageShape { channels, height, width }, classes, &device.autodiff()).unwrap();
    // Values are drawn when they are first looked at.
    drop(parameters::inspect(&model).unwrap());
    model
}

fn state(model: &ResNet) -> BTreeMap<String, HostTensor> {
    parameters::read(model, |_| true).unwrap().tensors
}

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name)
}

fn assert_scores(model: &ResNet, name: &str) {
    let images = TensorData::new(drawn("images", IMAGES.iter().product(), -1.0, 1.0), IMAGES);
    let images = Tensor::from_data(images, &Device::flex());
    let scores: Vec<f32> = model.valid().forward(images).try_into_vec_as().unwrap();
    let expected = &read_safetensors(&golden("resnet_weights.safetensors")).unwrap()[name];
    let HostBuffer::F32(expected) = &expected.data else { panic!("scores are in f32") };
    assert_eq!(scores.len(), expected.len());
    let largest = expected.iter().fold(0.0f32, |largest, score| largest.max(score.abs()));
    let error = scores.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    assert!(error <= TOLERANCE * largest, "{name}: {error:e} of {largest}");
}

/// The weights of a network under torchvision's names, as `golden/resnet_weights.py` draws them.
fn drawn_weights(model: &ResNet, depth: usize) -> BTreeMap<String, HostTensor> {
    let last = if depth < 50 { ".bn2.weight" } else { ".bn3.weight" };
    let specs = parameters::inspect(model).unwrap();
    let tensors = specs.into_iter().map(|spec| {
        let foreign = torchvision_tensor(&spec.path);
        let mut shape = spec.shape;
        if foreign.transposed {
            shape.reverse();
        }
        let name = foreign.name;
        let count = shape.iter().product();
        let (low, high) = match shape[..] {
            [output, _, rows, columns] => {
                symmetric((6.0 / (output * rows * columns) as f64).sqrt())
            }
            [_, input] => symmetric(1.0 / (input as f64).sqrt()),
            _ if name.ends_with(last) => (0.25, 0.75),
            _ if name.ends_with("running_var") || spec.path.ends_with("gamma") => (0.5, 1.5),
            _ => symmetric(0.5),
        };
        let data = drawn(&name, count, low, high).into();
        (name, HostTensor { shape, data })
    });
    tensors.collect()
}

fn symmetric(bound: f64) -> (f64, f64) {
    (-bound, bound)
}

/// The numbers of `drawn` in `golden/resnet_weights.py`.
fn drawn(name: &str, count: usize, low: f64, high: f64) -> Vec<f32> {
    let start = name
        .bytes()
        .fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let number = |index: usize| {
        let mut bits = start.wrapping_add((index as u32).wrapping_mul(0x9e37_79b9));
        for (shift, factor) in [(16, 0x85eb_ca6bu32), (13, 0xc2b2_ae35)] {
            bits = (bits ^ (bits >> shift)).wrapping_mul(factor);
        }
        bits ^= bits >> 16;
        let share = f64::from(bits >> 8) / f64::from(1 << 24);
        (low + (high - low) * share) as f32
    };
    (0..count).map(number).collect()
}
