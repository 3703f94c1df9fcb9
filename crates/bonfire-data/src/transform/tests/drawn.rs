//! What is drawn follows the distribution that it should.
//!
//! Bounds are six standard deviations of the statistic; seeds are fixed.

use super::super::random_resized_crop::Part;
use super::*;
use crate::BatchContext;

const SAMPLES: usize = 4000;

fn contexts() -> impl Iterator<Item = SampleContext> {
    (0..SAMPLES).map(|index| SampleContext { seed: 3, epoch: 1, index })
}

fn each(transform: &impl Transform, image: &Image) -> Vec<Image> {
    let apply = |context| {
        transform.apply(image.clone(), &mut RandomSource::for_sample(&context, 0)).unwrap()
    };
    contexts().map(apply).collect()
}

/// An image whose pixels tell their place: row and column.
fn places(height: usize, width: usize) -> Image {
    let pixels =
        (0..height).flat_map(|row| (0..width).flat_map(move |column| [row as u8, column as u8, 0]));
    Image::new(pixels.collect::<Vec<u8>>(), [height, width, 3]).unwrap()
}

#[track_caller]
fn assert_share(count: usize, expected: f64) {
    let share = count as f64 / SAMPLES as f64;
    let deviation = (expected * (1.0 - expected) / SAMPLES as f64).sqrt();
    assert!((share - expected).abs() <= 6.0 * deviation, "{share}, expected {expected}");
}

#[track_caller]
fn assert_mean(values: &[f64], expected: f64, deviation: f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let bound = 6.0 * deviation / (values.len() as f64).sqrt();
    assert!((mean - expected).abs() < bound, "{mean}, expected {expected} +- {bound}");
}

#[test]
fn flips_come_at_their_rate() {
    let image = places(2, 3);
    for p in [0.0, 0.3, 0.5, 1.0] {
        let flipped = each(&RandomHorizontalFlip { p }, &image);
        let count = flipped.iter().filter(|flipped| **flipped != image).count();
        assert_share(count, p);
    }
}

#[test]
fn each_place_of_a_random_crop_is_as_likely() {
    let crop = RandomCrop { padding: [1; 4], fill: vec![99], ..RandomCrop::new([3, 3]) };
    let mut counts = [[0; 4]; 3];
    for found in each(&crop, &places(3, 4)) {
        // The pixel in the middle is never of the border.
        let [row, column] =
            [0, 1].map(|channel| usize::from(found.pixels()[(3 + 1) * 3 + channel]));
        counts[row][column] += 1;
    }
    for count in counts.into_iter().flatten() {
        assert_share(count, 1.0 / 12.0);
    }
}

#[test]
fn a_random_crop_pads_what_is_too_small() {
    let crop = RandomCrop { pad_if_needed: true, ..RandomCrop::new([6, 3]) };
    let found = each(&crop, &places(4, 4));
    assert!(found.iter().all(|found| found.shape() == [6, 3, 3]));
}

#[test]
fn parts_of_a_random_resized_crop_have_their_areas_ratios_and_places() {
    let crop = RandomResizedCrop { scale: [0.1, 0.5], ..RandomResizedCrop::new([7, 9]) };
    let (rows, columns) = (300, 300);
    let parts: Vec<Part> = contexts()
        .map(|context| crop.part([rows, columns], &mut RandomSource::for_sample(&context, 0)))
        .collect();
    let areas: Vec<f64> =
        parts.iter().map(|part| (part.height * part.width) as f64 / 90_000.0).collect();
    // Uniform between 0.1 and 0.5, whatever the ratio, as all such parts fit.
    assert_mean(&areas, 0.3, 0.4 / 12_f64.sqrt());
    let ratios: Vec<f64> =
        parts.iter().map(|part| (part.width as f64 / part.height as f64).ln()).collect();
    let span = (4_f64 / 3.0).ln() * 2.0;
    assert_mean(&ratios, 0.0, span / 12_f64.sqrt());
    assert!(ratios.iter().all(|ratio| ratio.abs() < span / 2.0 + 0.02));
    let places: Vec<f64> = parts
        .iter()
        .map(|part| (part.top as f64 + 0.5) / (rows - part.height + 1) as f64)
        .collect();
    assert_mean(&places, 0.5, 1.0 / 12_f64.sqrt());
    let found = each(&crop, &super::golden("input"));
    assert!(found.iter().take(50).all(|found| found.shape() == [7, 9, 3]));
}

#[test]
fn a_part_that_never_fits_is_the_greatest_one_in_the_middle() {
    let crop = RandomResizedCrop { scale: [1.0, 1.0], ..RandomResizedCrop::new([4, 4]) };
    let part = crop.part([10, 40], &mut RandomSource::new(0));
    assert_eq!(part, Part { top: 0, left: 13, height: 10, width: 13 });
    let part = crop.part([40, 10], &mut RandomSource::new(0));
    assert_eq!(part, Part { top: 13, left: 0, height: 13, width: 10 });
}

#[test]
fn rotations_stay_within_their_range_and_fill_it() {
    // The pixel at the right edge of the middle row, whose place tells the angle.
    let rotation = RandomRotation::new([-90.0, 90.0]);
    let mut pixels = vec![0; 21 * 21];
    pixels[10 * 21 + 20] = 255;
    let image = Image::new(pixels, [21, 21, 1]).unwrap();
    let found = each(&rotation, &image);
    let upper = |image: &Image| image.pixels()[..10 * 21].contains(&255);
    let lower = |image: &Image| image.pixels()[11 * 21..].contains(&255);
    let left = |image: &Image| image.pixels().chunks_exact(21).any(|row| row[..9].contains(&255));
    // Within 1.4 degrees of zero it stays in its row; some of the rest falls between the pixels.
    assert!(found.iter().filter(|image| upper(image)).count() > SAMPLES / 3);
    assert!(found.iter().filter(|image| lower(image)).count() > SAMPLES / 3);
    assert!(!found.iter().any(left));
}

#[test]
fn jitter_stays_within_its_ranges() {
    let image = Image::new(vec![100; 3], [1, 1, 3]).unwrap();
    let found = each(&ColorJitter::new(0.4, 0.0, 0.0, 0.0), &image);
    let factors: Vec<f64> =
        found.iter().map(|image| (f64::from(image.pixels()[0]) + 0.5) / 100.0).collect();
    assert!(factors.iter().all(|factor| (0.6..=1.41).contains(factor)));
    assert_mean(&factors, 1.0, 0.8 / 12_f64.sqrt());
    assert_eq!(ColorJitter::around_one(1.5), Some([0.0, 2.5]));
    assert_eq!(ColorJitter::new(0.0, 0.0, 0.0, 0.0), ColorJitter::default());
}

#[test]
fn jitter_comes_in_any_order() {
    // Brightness 2 and contrast 0: 2 * 50 in either order, but cut off at 255 only in one.
    let jitter = ColorJitter {
        brightness: Some([2.0; 2]),
        contrast: Some([0.0; 2]),
        ..ColorJitter::default()
    };
    let image = Image::new(vec![0, 200], [1, 2, 1]).unwrap();
    let found = each(&jitter, &image);
    let contrast_first = found.iter().filter(|image| image.pixels() == [200, 200]).count();
    let brightness_first = found.iter().filter(|image| image.pixels() == [127, 127]).count();
    assert_eq!(contrast_first + brightness_first, SAMPLES);
    assert_share(contrast_first, 0.5);
}

#[test]
fn each_operation_of_randaugment_is_as_likely() {
    let image = super::golden("input");
    let none = RandAugment { num_ops: 0, ..RandAugment::default() };
    assert!(each(&none, &image).iter().take(20).all(|found| *found == image));
    // At magnitude 0 posterisation, colours, moves and solarisation change nothing; stretching and
    // equalising do.
    let one = RandAugment { num_ops: 1, magnitude: 0, ..RandAugment::default() };
    let changed = each(&one, &image).iter().filter(|found| **found != image).count();
    assert_share(changed, 2.0 / 14.0);
}

#[test]
fn trivialaugment_draws_its_strength() {
    // Thirty strengths either way for nine operations, one way for solarisation, six other posterisations,
    // stretching, equalising, and the image itself: 579 at most, less shifts that leave nothing.
    let found = each(&TrivialAugmentWide::default(), &super::golden("input"));
    let mut distinct: Vec<&[u8]> = found.iter().map(Image::pixels).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert!((500..=579).contains(&distinct.len()), "{}", distinct.len());
}

#[test]
fn erased_parts_have_their_rate_and_area() {
    let image = Image::new(vec![255; 100 * 100], [100, 100, 1]).unwrap();
    let erasing = RandomErasing { p: 0.25, ..RandomErasing::default() };
    let erased = |image: &Image| image.pixels().iter().filter(|byte| **byte == 0).count();
    let shares: Vec<f64> = each(&erasing, &image)
        .iter()
        .map(|image| erased(image) as f64 / 10_000.0)
        .filter(|share| *share > 0.0)
        .collect();
    assert_share(shares.len(), 0.25);
    assert!(shares.iter().all(|share| (0.019..0.34).contains(share)));
    // Parts that do not fit are drawn again, which at these ranges hardly ever happens.
    assert_mean(&shares, 0.175, 0.31 / 12_f64.sqrt());
}

#[test]
fn erased_parts_may_be_noise() {
    let value = Erasure::Normal { mean: vec![0.5], std: vec![0.1] };
    let erasing = RandomErasing { p: 1.0, scale: [0.2, 0.2], value, ..RandomErasing::default() };
    let image = Image::new(vec![0; 60 * 60], [60, 60, 1]).unwrap();
    let found = erasing.apply(image, &mut RandomSource::new(1)).unwrap();
    let noise: Vec<f64> = found
        .pixels()
        .iter()
        .filter(|byte| **byte > 0)
        .map(|byte| f64::from(*byte) / 255.0)
        .collect();
    assert!(noise.len() > 600);
    assert_mean(&noise, 0.5, 0.1);
}

fn mixes(mixup_alpha: Option<f64>, cutmix_alpha: Option<f64>, size: [usize; 2]) -> Vec<Mix> {
    let mix = BatchMix { mixup_alpha, cutmix_alpha };
    let context = |position| BatchContext { seed: 5, epoch: 2, position };
    (0..SAMPLES as u64).map(|k| mix.draw(&context(64 * k), size).unwrap()).collect()
}

/// Mean and variance of Beta(alpha, alpha): 1/2 and 1 / (4 (2 alpha + 1)); its excess kurtosis, which says how far
/// off a variance may be found, is -6 / (2 alpha + 3).
#[test]
fn mixup_draws_its_shares_from_a_beta_distribution() {
    for alpha in [0.2, 1.0, 4.0] {
        let drawn = mixes(Some(alpha), None, [20, 30]);
        assert!(drawn.iter().all(|mix| matches!(mix, Mix::MixUp { .. })));
        let lambdas: Vec<f64> = drawn.iter().map(Mix::lambda).collect();
        let variance = 0.25 / (2.0 * alpha + 1.0);
        assert_mean(&lambdas, 0.5, variance.sqrt());
        let squares: Vec<f64> = lambdas.iter().map(|lambda| (lambda - 0.5).powi(2)).collect();
        let deviation = variance * (2.0 - 6.0 / (2.0 * alpha + 3.0)).sqrt();
        assert_mean(&squares, variance, deviation);
    }
}

/// Rows and columns that CutMix takes out of an image of 1,000 x 1,000.
fn cuts(alpha: f64) -> Vec<[std::ops::Range<usize>; 2]> {
    let ranges = |mix| match mix {
        Mix::CutMix { rows, columns, .. } => Some([rows, columns]),
        Mix::MixUp { .. } => None,
    };
    mixes(None, Some(alpha), [1000, 1000]).into_iter().filter_map(ranges).collect()
}

/// With `u = 1 - lambda` uniform, a part's edge is `r = sqrt(u)` of the image's before what juts out is cut off, and
/// `r - r^2 / 4` of it after that, on average over the middle: an area of `E[(r - r^2 / 4)^2] = 1/2 - 1/5 + 1/48`. Its
/// second moment, in the same way, is `E[(r^2 - 5 r^3 / 12)^2] = 1/3 - 5/21 + 25/576`.
#[test]
fn cut_parts_have_their_area() {
    let area =
        |[rows, columns]: [std::ops::Range<usize>; 2]| (rows.len() * columns.len()) as f64 / 1e6;
    let areas: Vec<f64> = cuts(1.0).into_iter().map(area).collect();
    assert_eq!(areas.len(), SAMPLES);
    let mean = 1.0 / 2.0 - 1.0 / 5.0 + 1.0 / 48.0;
    let second = 1.0 / 3.0 - 5.0 / 21.0 + 25.0 / 576.0_f64;
    assert_mean(&areas, mean, (second - mean * mean).sqrt());
}

#[test]
fn cut_parts_lie_around_any_point() {
    // So large a parameter leaves half of the area, whose edge is 707 of 1,000: no part is cut off at both ends,
    // and the whole end tells the middle.
    let middle = |range: &std::ops::Range<usize>| {
        let pixel = if range.start > 0 { range.start + 353 } else { range.end - 353 };
        pixel as f64 / 1000.0 - 0.5
    };
    let middles: Vec<[f64; 2]> =
        cuts(1e9).iter().map(|[rows, columns]| [middle(rows), middle(columns)]).collect();
    for edge in 0..2 {
        let of_edge: Vec<f64> = middles.iter().map(|middle| middle[edge]).collect();
        assert_mean(&of_edge, 0.0, 1.0 / 12_f64.sqrt());
        let squares: Vec<f64> = of_edge.iter().map(|middle| middle * middle).collect();
        assert_mean(&squares, 1.0 / 12.0, 1.0 / 180_f64.sqrt());
    }
    // Rows and columns do not depend on each other.
    let products: Vec<f64> = middles.iter().map(|[row, column]| row * column).collect();
    assert_mean(&products, 0.0, 1.0 / 12.0);
}

#[test]
fn batches_get_one_of_two_mixes() {
    let both = mixes(Some(0.2), Some(1.0), [20, 30]);
    let cut: Vec<&Mix> = both.iter().filter(|mix| matches!(mix, Mix::CutMix { .. })).collect();
    assert_share(cut.len(), 0.5);
    for mix in cut {
        let Mix::CutMix { rows, columns, lambda } = mix else { continue };
        assert!(rows.end <= 20 && columns.end <= 30);
        assert!((lambda - (1.0 - (rows.len() * columns.len()) as f64 / 600.0)).abs() < 1e-12);
    }
    let neither = BatchMix { mixup_alpha: None, cutmix_alpha: None };
    assert_eq!(neither.draw(&BatchContext { seed: 0, epoch: 0, position: 0 }, [2, 2]), None);
}
