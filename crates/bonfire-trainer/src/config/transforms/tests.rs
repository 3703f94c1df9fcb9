//! Tests of `[data.transforms]`, `[data.valid_transforms]` and `[data.normalize]`.

use super::{AutoAugmentPlan, CropPlan, ErasingValue};
use crate::config::{Plan, RunConfig};
use bonfire_data::transform::{
    BatchMix, CenterCrop, ColorJitter, Interpolation, PaddingMode, RandAugment, RandomCrop,
    RandomHorizontalFlip, RandomResizedCrop, RandomRotation, Resize, ResizeTo,
};

const MINIMAL: &str = r#"
[model]
kind = "mlp"
[optimizer]
kind = "sgd"
[data]
path = "data/digits"
"#;

fn plan(data: &str) -> Plan {
    let config = RunConfig::from_toml_str(&format!("{MINIMAL}{data}"), "test.toml").unwrap();
    Plan::resolve(&config, 1).unwrap()
}

fn problems(data: &str) -> Vec<String> {
    let text = format!("{MINIMAL}{data}");
    let result =
        RunConfig::from_toml_str(&text, "test.toml").and_then(|config| Plan::resolve(&config, 1));
    result.unwrap_err().problems.into_iter().map(|problem| problem.message).collect()
}

#[test]
fn short_forms_stand_for_tables_of_defaults() {
    let transforms = plan(
        r#"
[data.transforms]
resize = 256
random_resized_crop = 224
horizontal_flip = 0.5
rotation = 15
rand_augment = true
trivial_augment = false
random_erasing = 0.1
mixup_alpha = 0.2
"#,
    )
    .data
    .transforms;
    assert_eq!(transforms.resize, Some(Resize { size: ResizeTo::ShorterEdge(256) }));
    let crop = CropPlan::RandomResized(RandomResizedCrop::new([224, 224]));
    assert_eq!(transforms.crop, Some(crop));
    assert_eq!(transforms.horizontal_flip, Some(RandomHorizontalFlip { p: 0.5 }));
    assert_eq!(transforms.rotation, Some(RandomRotation::new([-15.0, 15.0])));
    assert_eq!(transforms.auto_augment, Some(AutoAugmentPlan::Rand(RandAugment::default())));
    let erasing = transforms.random_erasing.unwrap();
    assert_eq!((erasing.p, erasing.scale, erasing.value), (0.1, [0.02, 0.33], ErasingValue::Mean));
    let mix = BatchMix { mixup_alpha: Some(0.2), cutmix_alpha: None };
    assert_eq!(transforms.mix, Some(mix));
}

const TABLES: &str = r#"
normalize = { mean = [0.4, 0.5, 0.6], std = 0.25 }
[data.transforms]
resize = [40, 50]
pad = { padding = [1, 2], mode = "edge" }
random_crop = { size = [30, 31], padding = 4, fill = [1, 2, 3], padding_mode = "reflect" }
rotation = { degrees = [-5, 10], interpolation = "bilinear" }
color_jitter = { brightness = 0.4, saturation = [0.5, 2], hue = 0.1 }
trivial_augment = { num_magnitude_bins = 21 }
random_erasing = { value = "random", ratio = [0.5, 2] }
cutmix_alpha = 1
[data.valid_transforms]
resize = 36
center_crop = [30, 31]
"#;

#[test]
fn tables_say_everything_and_are_written_back() {
    let plan = plan(TABLES);
    let data = &plan.data;
    let crop = RandomCrop {
        padding: [4; 4],
        fill: vec![1, 2, 3],
        padding_mode: PaddingMode::Reflect,
        ..RandomCrop::new([30, 31])
    };
    assert_eq!(data.transforms.crop, Some(CropPlan::Random(crop)));
    assert_eq!(data.transforms.pad.as_ref().unwrap().padding, [1, 2, 1, 2]);
    let rotation = data.transforms.rotation.as_ref().unwrap();
    assert_eq!(rotation.degrees, [-5.0, 10.0]);
    assert_eq!(rotation.interpolation, Interpolation::Bilinear);
    let jitter = ColorJitter {
        brightness: Some([0.6, 1.4]),
        contrast: None,
        saturation: Some([0.5, 2.0]),
        hue: Some([-0.1, 0.1]),
    };
    assert_eq!(data.transforms.color_jitter, Some(jitter));
    let center = CropPlan::Center(CenterCrop { size: [30, 31] });
    assert_eq!(data.valid_transforms.crop, Some(center));
    assert_eq!(data.normalize.as_ref().unwrap().mean.as_slice(), [0.4, 0.5, 0.6]);

    let again = RunConfig::from_toml_str(&plan.to_toml().unwrap(), "again.toml").unwrap();
    assert_eq!(Plan::resolve(&again, 1).unwrap(), plan);
}

/// The order and the parameters, as ranks compare them.
#[test]
fn transforms_come_in_the_order_of_torchvisions_recipes() {
    let plan = plan(TABLES);
    let list = format!("{:?}", plan.data.transforms.transforms(plan.data.normalize.as_ref()));
    let names = [
        "Resize {",
        "Pad {",
        "RandomCrop {",
        "RandomRotation {",
        "ColorJitter {",
        "TrivialAugmentWide {",
        "RandomErasing {",
    ];
    let places: Vec<usize> = names.iter().map(|name| list.find(name).unwrap()).collect();
    assert!(places.is_sorted(), "{list}");
    assert!(list.contains("Normal { mean: [0.4, 0.5, 0.6], std: [0.25] }"), "{list}");
}

#[test]
fn every_problem_says_what_to_write() {
    let found = problems(
        r#"
normalize = { mean = [0.1, 0.2, 0.3], std = [1, 1] }
prefetch_factor = 0
[data.transforms]
resize = 0
center_crop = [3, 4, 5]
random_crop = { padding = [1, 2, 3] }
horizontal_flip = 1.5
rotation = -3
color_jitter = { brightness = -1, hue = 0.6 }
rand_augment = { magnitude = 31 }
trivial_augment = { num_magnitude_bins = 1 }
random_erasing = { scale = [0.5, 0.2], value = "mean", fill = 3 }
cutmix_alpha = 0
"#,
    );
    let expected = [
        "data.normalize.mean = [0.1, 0.2, 0.3] and std = [1, 1]: give both for the same channels",
        "data.transforms.resize = 0: must be a number of pixels from 1 to 65535, or two of them",
        "data.transforms.center_crop = [3, 4, 5]: must be a number of pixels from 1 to 65535, or two of them",
        "data.transforms.random_crop.size is missing: set it to an edge in pixels",
        "data.transforms.random_crop.padding = [1, 2, 3]: must be 1, 2 or 4 numbers of pixels up to 65535",
        "data.transforms.center_crop and data.transforms.random_crop exclude each other: remove one",
        "data.transforms.horizontal_flip = 1.5: must be from 0 to 1",
        "data.transforms.rotation.degrees = -3: must be an angle of 0 or more, or [least, greatest]",
        "data.transforms.color_jitter.brightness = -1: must be 0 or more, or [least, greatest] of factors of 0 or more",
        "data.transforms.color_jitter.hue = 0.6: must be from 0 to 0.5, or [least, greatest] within -0.5 and 0.5",
        "data.transforms.rand_augment and data.transforms.trivial_augment exclude each other: remove one",
        "data.transforms.rand_augment.magnitude = 31: must be below rand_augment.num_magnitude_bins, which is 31",
        "data.transforms.trivial_augment.num_magnitude_bins = 1: must be 2 or more",
        "data.transforms.random_erasing.scale = [0.5, 0.2]: must be [least, greatest], both from 0 to 1",
        "data.transforms.random_erasing.value = \"mean\" and data.transforms.random_erasing.fill = 3 exclude each other: remove one",
        "data.transforms.cutmix_alpha = 0: must be above 0",
        "data.prefetch_factor = 0: must be 1 or more",
    ];
    assert_eq!(found, expected);
}

#[test]
fn unknown_keys_and_wrong_types_are_found_in_tables_too() {
    let mut found = problems(
        r#"
[data.transforms]
random_crop = { size = 32, paddding = 4 }
rand_augment = 3
random_erasing = { fill = 300 }
pad = { padding = 1, mode = "mirror" }
[data.valid_transforms]
horizontal_flip = 0.5
"#,
    );
    found.sort();
    let expected = [
        "data.transforms.pad.mode: \"mirror\" is not one of \"constant\", \"edge\", \"reflect\", \"symmetric\"",
        "data.transforms.rand_augment: invalid type: integer `3`, expected a boolean",
        "data.transforms.random_erasing.fill: invalid value: integer `300`, expected an integer from 0 to 255",
        "unknown key \"data.transforms.random_crop.paddding\"; did you mean \"padding\"?",
        "unknown key \"data.valid_transforms.horizontal_flip\"; did you mean \"data.transforms.horizontal_flip\"?",
    ];
    assert_eq!(found, expected);
}
