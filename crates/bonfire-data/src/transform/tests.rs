//! Transforms against torchvision, and what is drawn against its distribution.

use safetensors::SafeTensors;

use super::affine::{Affine, mapped};
use super::augment::{Operation, Space};
use super::color::{brightness, contrast, hue, saturation};
use super::pad::padded;
use super::resize::resized;
use super::*;

/// Made by `tests/golden/transforms.py`.
static GOLDEN: &[u8] = include_bytes!("../../../../tests/golden/transforms.safetensors");

fn golden(name: &str) -> Image {
    let file = SafeTensors::deserialize(GOLDEN).unwrap();
    let view = file.tensor(name).unwrap_or_else(|_| panic!("{name}"));
    Image::new(view.data().to_vec(), view.shape().try_into().unwrap()).unwrap()
}

fn numbers(name: &str) -> Vec<f32> {
    let file = SafeTensors::deserialize(GOLDEN).unwrap();
    let bytes = file.tensor(name).unwrap().data().to_vec();
    bytes.chunks_exact(4).map(|word| f32::from_le_bytes(word.try_into().unwrap())).collect()
}

fn random() -> RandomSource {
    RandomSource::new(0)
}

/// Compares with torchvision: no byte further away than `most`, at most a share of `pixels` different
/// at all.
#[track_caller]
fn assert_golden(name: &str, found: &Image, most: u8, share: f64) {
    let expected = golden(name);
    assert_eq!(found.shape(), expected.shape(), "{name}");
    let distances: Vec<u8> = found
        .pixels()
        .iter()
        .zip(expected.pixels())
        .map(|(found, expected)| found.abs_diff(*expected))
        .collect();
    let greatest = distances.iter().max().copied().unwrap_or(0);
    let different = distances.iter().filter(|distance| **distance > 0).count();
    let different = different as f64 / distances.len() as f64;
    assert!(
        greatest <= most && different <= share,
        "{name}: bytes differ by up to {greatest}, and {different:.4} of them do"
    );
}

/// Bytes that are only moved, or computed by the same operations in the same order.
#[track_caller]
fn assert_exact(name: &str, found: &Image) {
    assert_golden(name, found, 0, 0.0);
}

/// torchvision's kernels fuse products with sums: a value just at the border between two bytes, where it
/// is cut off, may fall to either.
#[track_caller]
fn assert_rounded(name: &str, found: &Image) {
    assert_golden(name, found, 1, 0.05);
}

#[test]
fn resizing_is_that_of_torchvision() {
    let resize = |size| Resize { size }.apply(golden("input"), &mut random()).unwrap();
    // Both round to bytes after each direction, but torchvision begins with the rows.
    assert_golden("resize/shorter_12", &resize(ResizeTo::ShorterEdge(12)), 1, 0.3);
    assert_golden("resize/shorter_50", &resize(ResizeTo::ShorterEdge(50)), 1, 0.3);
    assert_golden("resize/exact_9_31", &resize(ResizeTo::Exact([9, 31])), 1, 0.3);
}

#[test]
fn crops_flips_and_borders_are_those_of_torchvision() {
    let crop = |size| CenterCrop { size }.apply(golden("input"), &mut random()).unwrap();
    assert_exact("center_crop/14_15", &crop([14, 15]));
    assert_exact("center_crop/40_20", &crop([40, 20]));
    let flip = RandomHorizontalFlip { p: 1.0 };
    assert_exact("flip", &flip.apply(golden("input"), &mut random()).unwrap());
    for (name, mode) in [
        ("constant", PaddingMode::Constant),
        ("edge", PaddingMode::Edge),
        ("reflect", PaddingMode::Reflect),
        ("symmetric", PaddingMode::Symmetric),
    ] {
        let pad = Pad { padding: [1, 2, 3, 4], fill: vec![9], mode };
        let found = pad.apply(golden("input"), &mut random()).unwrap();
        assert_exact(&format!("pad/{name}"), &found);
    }
}

#[test]
fn rotations_are_those_of_torchvision() {
    let rotate = |degrees: f64, interpolation, fill: &[u8]| {
        let rotation = RandomRotation { degrees: [degrees; 2], interpolation, fill: fill.to_vec() };
        rotation.apply(golden("input"), &mut random()).unwrap()
    };
    // A place half-way between two pixels may fall to either, and then any byte may come out.
    let nearest = rotate(30.0, Interpolation::Nearest, &[7, 8, 9]);
    assert_golden("rotate/nearest", &nearest, 255, 0.005);
    assert_rounded("rotate/bilinear", &rotate(-47.5, Interpolation::Bilinear, &[0]));
}

#[test]
fn colours_are_those_of_torchvision() {
    for factor in [0.4, 1.7] {
        let name = |property: &str| format!("jitter/{property}_{factor}");
        let apply = |adjust: fn(Image, f64) -> Result<Image, DataError>| {
            adjust(golden("input"), factor).unwrap()
        };
        assert_exact(&name("brightness"), &apply(brightness));
        assert_rounded(&name("contrast"), &apply(contrast));
        assert_rounded(&name("saturation"), &apply(saturation));
    }
    for turn in [-0.2, 0.35] {
        assert_rounded(&format!("jitter/hue_{turn}"), &hue(golden("input"), turn).unwrap());
    }
    assert_rounded("grey/contrast", &contrast(golden("grey"), 1.7).unwrap());
    assert_eq!(saturation(golden("grey"), 0.0).unwrap(), golden("grey"));
    assert_eq!(hue(golden("grey"), 0.3).unwrap(), golden("grey"));
}

#[test]
fn operations_of_randaugment_and_trivialaugment_are_those_of_torchvision() {
    let size = [golden("input").height(), golden("input").width()];
    let spaces =
        [("RandAugment", Space::RAND_AUGMENT), ("TrivialAugmentWide", Space::TRIVIAL_WIDE)];
    let mut compared = 0;
    for name in SafeTensors::deserialize(GOLDEN).unwrap().names() {
        let parts: Vec<&str> = name.split('/').collect();
        let &[transform, operation, sign, interpolation] = parts.as_slice() else { continue };
        let (_, space) = spaces.iter().find(|(name, _)| *name == transform).unwrap();
        let operation =
            *Operation::ALL.iter().find(|known| format!("{known:?}") == operation).unwrap();
        let sign = if sign == "plus" { 1.0 } else { -1.0 };
        let interpolation = match interpolation {
            "nearest" => Interpolation::Nearest,
            _ => Interpolation::Bilinear,
        };
        let amount = sign * space.amount(operation, 9.0 / 30.0, size);
        let found = operation.apply("test", golden("input"), amount, interpolation).unwrap();
        let moves = matches!(operation, Operation::ShearX | Operation::ShearY | Operation::Rotate);
        match (moves, interpolation) {
            (true, Interpolation::Nearest) => assert_golden(name, &found, 255, 0.005),
            _ => assert_rounded(name, &found),
        }
        compared += 1;
    }
    assert_eq!(compared, 66);
}

#[test]
fn mixtures_are_those_of_torchvision() {
    let shape = [2, 4, 5];
    let mixed = |mix: Mix| {
        let mut values = numbers("batch");
        let lambda = mix.lambda() as f32;
        mix.apply(&mut values, shape, |own, other| other * (1.0 - lambda) + own * lambda);
        values
    };
    // The same two products and one sum in 32 bits, which some processors fuse.
    for (found, expected) in mixed(Mix::MixUp { lambda: 0.3 }).iter().zip(numbers("mixup")) {
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
    }
    let cut = Mix::CutMix { rows: 1..3, columns: 2..4, lambda: 0.8 };
    assert_eq!(mixed(cut), numbers("cutmix"));
    assert_eq!(Mix::partners(3).collect::<Vec<_>>(), [2, 0, 1]);
}

#[test]
fn an_image_that_does_not_suit_is_an_error_that_says_what_to_do() {
    let image = || Image::new(vec![0; 5 * 4 * 2], [5, 4, 2]).unwrap();
    let message = |transform: &dyn Transform| {
        transform.apply(image(), &mut random()).unwrap_err().to_string()
    };
    assert_eq!(
        message(&RandomCrop::new([8, 3])),
        "RandomCrop cannot take an image of 5 rows and 4 columns: it is smaller than the crop of 8 x 3; \
         resize it before, or use pad_if_needed"
    );
    assert_eq!(
        message(&Pad { mode: PaddingMode::Reflect, ..Pad::new([4, 0, 0, 0]) }),
        "Pad cannot take an image of 5 rows and 4 columns: a mirrored border of 4 and 0 pixels is too \
         wide for it"
    );
    assert!(
        message(&Pad { fill: vec![1, 2, 3], ..Pad::new([1; 4]) }).ends_with("for each channel")
    );
    assert!(message(&RandAugment::default()).ends_with("colours of 1 or 3 channels"));
}

#[test]
fn sizes_are_known_beforehand() {
    let list = Transforms::new()
        .with(Resize { size: ResizeTo::ShorterEdge(12) })
        .with(Pad::new([1, 2, 3, 4]));
    let size = [golden("input").height(), golden("input").width()];
    let context = SampleContext { seed: 0, epoch: 0, index: 0 };
    let found = list.apply(golden("input"), &context).unwrap();
    assert_eq!(list.output_size(Some(size)).unwrap(), Some([found.height(), found.width()]));
    assert_eq!(list.output_size(None).unwrap(), None);
    let cropped = list.with(CenterCrop { size: [8, 9] });
    assert_eq!(cropped.output_size(None).unwrap(), Some([8, 9]));
}

/// What `apply` refuses of an image, `output_size` refuses of its size.
#[test]
fn sizes_that_cannot_be_transformed_are_known_beforehand() {
    let mirror = |mode, border| Pad { mode, ..Pad::new([0, border, 0, 0]) };
    let cases: [(&dyn Transform, bool); 8] = [
        (&RandomCrop::new([5, 4]), true),
        (&RandomCrop::new([5, 5]), false),
        (&RandomCrop { padding: [1, 0, 0, 0], ..RandomCrop::new([5, 5]) }, true),
        (&RandomCrop { pad_if_needed: true, ..RandomCrop::new([8, 8]) }, true),
        (&mirror(PaddingMode::Reflect, 4), true),
        (&mirror(PaddingMode::Reflect, 5), false),
        (&mirror(PaddingMode::Symmetric, 5), true),
        (&mirror(PaddingMode::Symmetric, 6), false),
    ];
    for (transform, fits) in cases {
        let image = Image::new(vec![0; 5 * 4], [5, 4, 1]).unwrap();
        let applied = transform.apply(image, &mut random());
        let known = transform.output_size(Some([5, 4]));
        assert_eq!((applied.is_ok(), known.is_ok()), (fits, fits), "{transform:?}");
        if let (Err(applied), Err(known)) = (applied, known) {
            assert_eq!(applied.to_string(), known.to_string());
        }
    }
}

/// 256 x 15,360,000 pixels of three bytes are 11 GiB.
#[test]
fn a_thin_image_is_refused_before_it_becomes_too_large_for_memory() {
    let thin = || Image::new(vec![0; 60_000 * 3], [1, 60_000, 3]).unwrap();
    let resize = Resize { size: ResizeTo::ShorterEdge(256) };
    let error = resize.apply(thin(), &mut random()).unwrap_err().to_string();
    assert_eq!(
        error,
        "Resize cannot take an image of 1 rows and 60000 columns: it would become 256 x 15360000, more \
         than the 1024 MiB that an image may take"
    );
    assert!(resize.output_size(Some([1, 60_000])).is_err());
    let wide: [&dyn Transform; 3] = [
        &Pad::new([0, usize::MAX / 2, 0, 0]),
        &CenterCrop { size: [60_000, 1] },
        &RandomCrop { pad_if_needed: true, ..RandomCrop::new([1 << 40, 1]) },
    ];
    for transform in wide {
        let error = transform.apply(thin(), &mut random()).unwrap_err().to_string();
        assert!(error.contains("60000 columns: it would become"), "{error}");
    }
}

#[test]
fn kernels_do_nothing_where_nothing_is_to_be_done() {
    let image = golden("input");
    let size = [image.height(), image.width()];
    let same = [
        resized("test", image.clone(), size).unwrap(),
        padded("test", image.clone(), [0; 4], &[0], PaddingMode::Reflect).unwrap(),
        mapped("test", &image, Affine::rotation(0.0), Interpolation::Bilinear, &[0]).unwrap(),
        brightness(image.clone(), 1.0).unwrap(),
        contrast(image.clone(), 1.0).unwrap(),
        saturation(image.clone(), 1.0).unwrap(),
    ];
    for found in same {
        assert_eq!(found, image);
    }
}

mod drawn;
