//! Where the curves of charts go.

#![allow(clippy::unwrap_used, reason = "a test reports by panicking")]

use bonfire_report::chart::{Chart, Mark, Scale, Series, Style, Theme};

fn chart(points: Vec<(f64, f64)>) -> Chart {
    Chart { series: vec![Series::line("loss", points)], ..Chart::default() }
}

/// The runs of places of all elements of a class, such as `line c0`.
fn paths(svg: &str, class: &str) -> Vec<Vec<(f64, f64)>> {
    let elements = svg.split("<path ").skip(1);
    let of_class = elements.filter(|element| element.contains(&format!("class=\"{class}\"")));
    let data =
        of_class.map(|element| element.split(" d=\"").nth(1).unwrap().split('"').next().unwrap());
    data.flat_map(|data| data.split('M').skip(1).map(places)).collect()
}

fn places(run: &str) -> Vec<(f64, f64)> {
    let pairs = run.trim_end_matches("h0").trim_end_matches('Z').split([' ', 'L']);
    let pair =
        |text: &str| text.split_once(',').map(|(x, y)| (x.parse().unwrap(), y.parse().unwrap()));
    pairs.map(|text| pair(text).unwrap()).collect()
}

fn assert_inside(svg: &str) {
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    let classes = ["line c0", "dots c0", "area c0", "faint c0", "lost c0", "grid", "axis"];
    for (x, y) in classes.iter().flat_map(|class| paths(svg, class)).flatten() {
        assert!((0.0..=800.0).contains(&x) && (0.0..=420.0).contains(&y), "({x}, {y}) in {svg}");
    }
}

#[test]
fn the_curve_goes_through_its_points() {
    let svg = chart(vec![(0.0, 0.0), (1.0, 2.0), (2.0, 1.0)]).to_svg(Theme::StandAlone);
    let curve = &paths(&svg, "line c0")[0];
    let grid: Vec<f64> = paths(&svg, "grid").iter().map(|line| line[0].1).collect();
    let (zero, two) = (grid[0], *grid.last().unwrap());
    assert_eq!((curve[0].1, curve[1].1), (zero, two), "ticks and values lie on the same scale");
    assert!((curve[2].1 - (zero + two) / 2.0).abs() < 0.02);
    assert!((curve[1].0 * 2.0 - curve[0].0 - curve[2].0).abs() < 0.02);
}

#[test]
fn what_is_not_a_number_splits_the_curve_and_is_marked() {
    let values = [1.0, 2.0, f64::NAN, 3.0, f64::NEG_INFINITY, 2.0, 1.0];
    let points = values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
    let svg = chart(points).to_svg(Theme::StandAlone);
    let lengths: Vec<usize> = paths(&svg, "line c0").iter().map(Vec::len).collect();
    assert_eq!(lengths, [2, 2]);
    assert_eq!(paths(&svg, "dots c0").len(), 1, "a point between two gaps is a dot");
    let lost = paths(&svg, "lost c0");
    assert!(lost[0][0].1 < 100.0 && lost[1][0].1 > 300.0, "above and below: {lost:?}");
    assert_inside(&svg);
    let only = chart(vec![(1.0, f64::NAN), (2.0, f64::INFINITY)]).to_svg(Theme::StandAlone);
    assert_eq!((paths(&only, "lost c0").len(), paths(&only, "line c0").len()), (2, 0));
    assert_inside(&only);
}

#[test]
fn equal_ratios_are_equal_distances_on_a_logarithmic_axis() {
    let log = Chart {
        y_scale: Scale::Log,
        ..chart(vec![(1.0, 0.01), (2.0, 1.0), (3.0, 100.0), (4.0, 0.0)])
    };
    let svg = log.to_svg(Theme::StandAlone);
    let curve = &paths(&svg, "line c0")[0];
    assert!((curve[1].1 * 2.0 - curve[0].1 - curve[2].1).abs() < 0.03);
    assert_eq!((curve.len(), paths(&svg, "lost c0").len()), (3, 1), "0 has no place");
    let both = Chart { x_scale: Scale::Log, ..chart(vec![(1.0, 0.0), (10.0, 1.0), (100.0, 2.0)]) };
    let curve = &paths(&both.to_svg(Theme::StandAlone), "line c0")[0];
    assert!((curve[1].0 * 2.0 - curve[0].0 - curve[2].0).abs() < 0.03);
}

#[test]
fn extreme_values_have_places() {
    let cases: [&[f64]; 9] = [
        &[1e-300, 1e300],
        &[-1e300, 1e300],
        &[f64::MIN, f64::MAX],
        &[1e-300, 2e-300],
        &[5e-324, 0.0],
        &[-3.0, -2.0],
        &[7.0, 7.0, 7.0],
        &[0.0, 0.0],
        &[1e15, 1e15 + 1.0],
    ];
    for values in cases {
        for (y_scale, style) in [
            (Scale::Linear, Style::Line),
            (Scale::Log, Style::Line),
            (Scale::Linear, Style::Area),
            (Scale::Linear, Style::Points),
        ] {
            let points = values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect();
            let series = vec![Series { style, ..Series::line("s", points) }];
            let svg = Chart { series, y_scale, ..Chart::default() }.to_svg(Theme::StandAlone);
            assert_inside(&svg);
            let drawn =
                ["line c0", "dots c0", "lost c0"].iter().flat_map(|class| paths(&svg, class));
            assert!(drawn.count() > 0, "{values:?} {y_scale:?} {style:?}");
        }
    }
    let flat = chart(vec![(1.0, 7.0), (2.0, 7.0)]).to_svg(Theme::StandAlone);
    let y = paths(&flat, "line c0")[0][0].1;
    assert!(
        (100.0..300.0).contains(&y),
        "a constant curve runs in the middle, not along a border: {y}"
    );
}

#[test]
fn a_lonely_point_is_a_dot_and_no_point_is_said() {
    let one = chart(vec![(5.0, 5.0)]).to_svg(Theme::StandAlone);
    assert_eq!((paths(&one, "dots c0").len(), paths(&one, "line c0").len()), (1, 0));
    for empty in [chart(Vec::new()), chart(vec![(f64::NAN, 1.0)]), Chart::default()] {
        assert!(empty.to_svg(Theme::Inline).contains(">no data</text>"));
    }
}

#[test]
fn long_series_are_small_and_keep_their_spikes() {
    let noise = |x: u64| ((x * 2_654_435_761) % 1000) as f64 / 1000.0;
    let mut points: Vec<(f64, f64)> = (0..1_000_000).map(|x| (x as f64, noise(x))).collect();
    points[777_777].1 = 50.0;
    let smooth = chart(points.clone()).series.remove(0).with_smoothing(0.99);
    for theme in [Theme::StandAlone, Theme::Inline] {
        let svg = Chart { series: vec![smooth.clone()], ..Chart::default() }.to_svg(theme);
        assert!(svg.len() < 200_000, "{}", svg.len());
        for class in ["faint c0", "line c0"] {
            assert!(paths(&svg, class).iter().map(Vec::len).sum::<usize>() <= 1600);
        }
        let highest = |class: &str| {
            paths(&svg, class).concat().iter().map(|place| place.1).fold(f64::MAX, f64::min)
        };
        assert!(highest("faint c0") < 40.0 && highest("line c0") > 200.0);
    }
    points.iter_mut().step_by(2).for_each(|point| point.1 = f64::NAN);
    assert!(chart(points).to_svg(Theme::StandAlone).len() < 200_000, "with many gaps");
}

#[test]
fn stacked_parts_fill_the_chart() {
    let part = |name: &str, share: f64| Series::area(name, vec![(1.0, share), (2.0, share)]);
    let series = vec![part("data", 0.25), part("forward", 0.75)];
    let stack = Chart { series, stacked: true, ..Chart::default() };
    let svg = stack.to_svg(Theme::Inline);
    let (below, above) = (&paths(&svg, "part c0").concat(), &paths(&svg, "part c1").concat());
    let heights = |places: &[(f64, f64)]| {
        let ys = || places.iter().map(|place| place.1);
        ys().fold(f64::MIN, f64::max) - ys().fold(f64::MAX, f64::min)
    };
    // The samples of the legend, which are elements of the same class, come first.
    let (below, above) = (&below[below.len() - 4..], &above[above.len() - 4..]);
    assert!((heights(above) - 3.0 * heights(below)).abs() < 0.1, "{below:?} {above:?}");
    let single = |name: &str| Series::area(name, vec![(1.0, 0.5)]);
    let one = Chart { series: vec![single("a"), single("b")], ..stack };
    let places = paths(&one.to_svg(Theme::Inline), "part c1").concat();
    assert!(
        places.last().unwrap().0 < places[places.len() - 2].0 - 100.0,
        "one report fills the width"
    );
}

#[test]
fn words_are_escaped_and_pictures_carry_their_colours_or_leave_them_to_the_page() {
    let two = Chart {
        title: "a <b> & \"c\"".to_string(),
        marks: vec![Mark { x: 1.5, label: "best <1>".to_string() }],
        series: vec![
            Series::line("train", vec![(1.0, 1.0), (2.0, 2.0)]),
            Series::line("<valid>", vec![(1.0, 2.0), (2.0, 1.0)]),
        ],
        ..Chart::default()
    };
    let alone = two.to_svg(Theme::StandAlone);
    assert!(
        alone.contains(">a &lt;b&gt; &amp; &quot;c&quot;</text>")
            && alone.contains("best &lt;1&gt;")
    );
    assert!(alone.contains("fill=\"white\"") && alone.contains("#d55e00"));
    assert!(alone.contains(">train</text>") && alone.contains("&lt;valid&gt;"), "a legend");
    let inline = two.to_svg(Theme::Inline);
    assert!(!inline.contains('#') && !inline.contains("fill="), "colours are the page's: {inline}");
    assert!(
        !chart(vec![(1.0, 1.0)]).to_svg(Theme::StandAlone).contains(">loss</text>"),
        "no legend"
    );
}
