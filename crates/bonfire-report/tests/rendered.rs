//! The report as a browser shows it.
//!
//! `BONFIRE_CHROMIUM` names the program; `BONFIRE_REQUIRE_CHROMIUM=1` makes it a failure not to have one.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test reports by panicking"
)]

mod sample;

use bonfire_report::html::{self, Standing};
use image::{Rgb, RgbImage};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Adds to the page where its charts lie and which colours their curves have, one chart a line.
const MEASURE: &str = r#"<script>
const charts = [...document.querySelectorAll("figure")].map((figure) => {
  const box = figure.querySelector("svg").getBoundingClientRect();
  const curves = [...figure.querySelectorAll(".line, .part")];
  const style = (curve) => getComputedStyle(curve);
  const colour = (curve) => (style(curve).fill === "none" ? style(curve).stroke : style(curve).fill);
  const colours = [...new Set(curves.map((curve) => `${curve.classList[0]} ${colour(curve)}`))];
  const edges = [box.left, box.top, box.right, box.bottom].map(Math.round).join(" ");
  return [figure.querySelector("figcaption").textContent, edges, ...colours].join("|");
});
const list = document.createElement("pre");
list.id = "measured";
list.textContent = ["width " + document.documentElement.scrollWidth, ...charts].join("\n");
document.body.append(list);
</script></body>"#;

/// A chart of the page.
struct Figure {
    title: String,
    /// Left, top, right and bottom.
    edges: [u32; 4],
    /// Colours of curves, and whether they fill areas.
    colours: Vec<(bool, Rgb<u8>)>,
}

fn chromium() -> Option<PathBuf> {
    let program = std::env::var_os("BONFIRE_CHROMIUM").map(PathBuf::from);
    if program.is_none() {
        let required = std::env::var("BONFIRE_REQUIRE_CHROMIUM").is_ok_and(|value| value == "1");
        assert!(
            !required,
            "BONFIRE_REQUIRE_CHROMIUM is set, but BONFIRE_CHROMIUM names no program"
        );
        println!("SKIPPED: needs Chromium (BONFIRE_CHROMIUM)");
    }
    program
}

/// Runs Chromium over a page and returns what it prints.
fn browse(program: &Path, page: &Path, width: u32, flags: &[String]) -> String {
    let profile = tempfile::tempdir().unwrap();
    let printed = profile.path().join("printed");
    let mut child = Command::new(program)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--hide-scrollbars", "--force-color-profile=srgb"])
        .arg(format!("--window-size={width},4000"))
        .arg(format!("--user-data-dir={}", profile.path().join("profile").display()))
        .args(flags)
        .arg(format!("file://{}", page.display()))
        .stdout(std::fs::File::create(&printed).unwrap())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{} does not start: {error}", program.display()));
    let deadline = Instant::now() + Duration::from_secs(120);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("Chromium has not come to an end in two minutes");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "Chromium ended with {status}");
    std::fs::read_to_string(&printed).unwrap()
}

/// The width of the page's content and its charts.
fn measured(dom: &str) -> (u32, Vec<Figure>) {
    let list = dom.split("<pre id=\"measured\">").nth(1).unwrap().split("</pre>").next().unwrap();
    let (width, figures) = list.split_once('\n').unwrap();
    (width["width ".len()..].parse().unwrap(), figures.lines().map(figure).collect())
}

fn figure(line: &str) -> Figure {
    let mut fields = line.split('|');
    let title = fields.next().unwrap().to_string();
    let edges = fields.next().unwrap().split(' ').map(|edge| edge.parse().unwrap());
    let edges = edges.collect::<Vec<u32>>().try_into().unwrap();
    let colours = fields.map(|field| {
        let (class, colour) = field.split_once(' ').unwrap();
        let parts = colour.trim_start_matches("rgb(").trim_end_matches(')').split(", ");
        let parts: Vec<u8> = parts.map(|part| part.parse().unwrap()).collect();
        (class == "part", Rgb([parts[0], parts[1], parts[2]]))
    });
    Figure { title, edges, colours: colours.collect() }
}

/// How many pixels of an area have about a colour, and over which part of its width they are spread.
fn pixels(picture: &RgbImage, edges: [u32; 4], colour: Rgb<u8>) -> (usize, f64) {
    let [left, top, right, bottom] = edges;
    let near = |pixel: &Rgb<u8>| {
        pixel.0.iter().zip(colour.0).all(|(one, other)| one.abs_diff(other) <= 40)
    };
    let all = (left..right).flat_map(|x| (top..bottom).map(move |y| (x, y)));
    let found: Vec<u32> =
        all.filter(|(x, y)| near(picture.get_pixel(*x, *y))).map(|(x, _)| x).collect();
    let spread = found.iter().max().zip(found.iter().min()).map_or(0, |(last, first)| last - first);
    (found.len(), f64::from(spread) / f64::from(right - left))
}

/// A run whose files are given, and how many charts it has.
#[derive(Clone, Copy)]
enum Shown {
    /// Made up: four ranks, all figures.
    Sample,
    /// What `bonfire train configs/digits.toml` on two ranks has left.
    Digits,
}

impl Shown {
    fn write(self, folder: &Path) {
        let Self::Digits = self else { return sample::write(folder) };
        let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/digits_run");
        std::fs::create_dir(folder.join("profile")).unwrap();
        for name in [
            "metrics.jsonl",
            "summary.json",
            "model_summary.json",
            "environment.json",
            "config.toml",
            "profile/verdict.json",
        ] {
            std::fs::copy(run.join(name), folder.join(name)).unwrap();
        }
    }

    fn charts(self) -> usize {
        match self {
            Self::Sample => 11,
            // No loss is scaled, and there is no GPU.
            Self::Digits => 9,
        }
    }
}

/// Renders a run and checks that every chart shows all of its series.
fn check(shown: Shown, program: &Path, width: u32, flags: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    shown.write(folder.path());
    let report = html::write(folder.path(), Standing::AsItsFilesTell).unwrap();
    let text = std::fs::read_to_string(&report).unwrap().replace("</body>", MEASURE);
    let page = folder.path().join("measured.html");
    std::fs::write(&page, text).unwrap();
    let png = folder.path().join("report.png");
    let flags = |last: String| {
        flags.iter().map(|flag| flag.to_string()).chain([last]).collect::<Vec<String>>()
    };
    let dom = browse(program, &page, width, &flags("--dump-dom".to_string()));
    browse(program, &page, width, &flags(format!("--screenshot={}", png.display())));
    let (content, figures) = measured(&dom);
    let picture = image::open(&png).unwrap().to_rgb8();
    assert!(content <= width, "the page is {content} wide in a window of {width}");
    assert_eq!((figures.len(), picture.width()), (shown.charts(), width));
    let mut wrong = Vec::new();
    for figure in figures.iter().filter(|figure| figure.edges[3] < picture.height()) {
        assert!(!figure.colours.is_empty(), "{} has no curve", figure.title);
        for (index, (fills, colour)) in figure.colours.iter().enumerate() {
            let (count, spread) = pixels(&picture, figure.edges, *colour);
            let name = format!("{}, series {index} in {colour:?} at width {width}", figure.title);
            // Ranks that are equally fast lie under the last of them, but for the legend, and so do the scores of
            // a real run, which meet near 1.
            let meet = match shown {
                Shown::Sample => &["each rank"][..],
                Shown::Digits => &["each rank", "cores", "Accuracy"][..],
            };
            let covered = meet.iter().any(|part| figure.title.contains(part))
                && index + 1 < figure.colours.len();
            let (least, wide) = match (*fills, covered) {
                // Data take a hundredth of the time of the real run.
                (true, _) => (if matches!(shown, Shown::Digits) { 300 } else { 2000 }, 0.5),
                (false, false) => (150, 0.5),
                (false, true) => (10, 0.0),
            };
            if count < least || spread <= wide {
                wrong.push(format!("{name}: {count} pixels over {spread:.2} of the width"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let seen = figures.iter().filter(|figure| figure.edges[3] < picture.height()).count();
    assert!(seen >= 8, "only {seen} charts are in the picture");
}

#[test]
fn every_curve_is_seen_in_the_light_and_in_the_dark_scheme() {
    let Some(program) = chromium() else { return };
    check(Shown::Sample, &program, 1280, &["--blink-settings=preferredColorScheme=1"]);
    check(Shown::Sample, &program, 1280, &["--blink-settings=preferredColorScheme=0"]);
}

#[test]
fn the_report_of_a_real_run_has_curves() {
    let Some(program) = chromium() else { return };
    check(Shown::Digits, &program, 1280, &[]);
}

#[test]
fn the_report_fits_a_narrow_window() {
    let Some(program) = chromium() else { return };
    // Chromium's windows are no narrower than this.
    check(Shown::Sample, &program, 500, &[]);
}
