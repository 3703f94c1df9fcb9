//! The picture of a chart: all around its curves.

use super::axis::Axis;
use super::legend::{self, Entry};
use super::paint::Ink;
use super::stack::Stack;
use super::{Chart, Scale, Series, Style, Theme};
use crate::number::plain;
use crate::xml::escaped;
use std::fmt::Write as _;

/// Size of a picture, and of its words.
struct Size {
    width: f64,
    height: f64,
    /// Width of a character, guessed generously, since only the reader's fonts tell.
    character: f64,
}

/// The borders of the curves.
pub(super) struct Frame {
    pub(super) left: f64,
    pub(super) right: f64,
    pub(super) top: f64,
    pub(super) bottom: f64,
}

/// A picture as far as it is drawn.
pub(super) struct Picture<'a> {
    pub(super) chart: &'a Chart,
    pub(super) theme: Theme,
    size: Size,
    pub(super) text: String,
}

pub(super) fn svg(chart: &Chart, theme: Theme) -> String {
    let size = match theme {
        Theme::StandAlone => Size { width: 800.0, height: 420.0, character: 6.8 },
        Theme::Inline => Size { width: 480.0, height: 270.0, character: 7.2 },
    };
    let mut picture = Picture { chart, theme, size, text: String::new() };
    picture.draw();
    picture.text
}

impl Picture<'_> {
    fn draw(&mut self) {
        let (x_axis, y_axis) = axes(self.chart);
        let y_ticks = y_axis.ticks(6);
        let widest = y_ticks.iter().map(|(_, words)| words.chars().count()).max().unwrap_or(0);
        let y_label = if self.chart.y_label.is_empty() { 0.0 } else { 16.0 };
        let left = 12.0 + y_label + widest as f64 * self.size.character;
        let right = self.size.width - 18.0;
        let names: Vec<&str> = self.chart.series.iter().map(|one| one.name.as_str()).collect();
        let entries = legend::entries(&names, left, right, self.size.character);
        let rows = entries.last().map_or(0, |entry| entry.row + 1);
        let title = if self.has_title() { 26.0 } else { 0.0 };
        let top = 12.0 + title + rows as f64 * legend::ROW;
        let bottom = self.size.height - if self.chart.x_label.is_empty() { 24.0 } else { 40.0 };
        let frame = Frame { left, right, top, bottom };
        let (x_axis, y_axis) = (x_axis.on(left, right), y_axis.on(bottom, top));
        self.open(&x_axis, &y_axis);
        if has_places(self.chart) {
            self.scales(&frame, &x_axis, &y_axis, &y_ticks);
            self.legend(&entries, 6.0 + title);
            self.marks(&frame, &x_axis);
            self.curves(&frame, &x_axis, &y_axis);
        } else {
            let (x, y) = (self.size.width / 2.0, self.size.height / 2.0);
            self.words(Ink::FadedWords, (x, y), "middle", "no data");
        }
        self.text.push_str("</svg>\n");
    }

    fn has_title(&self) -> bool {
        self.theme == Theme::StandAlone && !self.chart.title.is_empty()
    }

    fn open(&mut self, x_axis: &Axis, y_axis: &Axis) {
        let Size { width, height, .. } = self.size;
        let title = escaped(&self.chart.title);
        // Writing into a string cannot fail, here and below.
        let _ = match self.theme {
            Theme::Inline => writeln!(
                self.text,
                "<svg class=\"chart\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
                 aria-label=\"{title}\" data-x=\"{}\" data-y=\"{}\">",
                x_axis.described(),
                y_axis.described()
            ),
            Theme::StandAlone => writeln!(
                self.text,
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
                 viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
                 <rect width=\"100%\" height=\"100%\" fill=\"white\"/>"
            ),
        };
        if self.has_title() {
            self.words(Ink::Words, (width / 2.0, 22.0), "middle", &self.chart.title);
        }
    }

    /// Draws the grid with its numbers and what they count.
    fn scales(&mut self, frame: &Frame, x: &Axis, y: &Axis, y_ticks: &[(f64, String)]) {
        for (value, words) in y_ticks {
            let Some(place) = y.place(*value) else { continue };
            self.stroke(Ink::Grid, &line((frame.left, place), (frame.right, place)));
            self.words(Ink::FadedWords, (frame.left - 6.0, place + 4.0), "end", words);
        }
        // Long numbers need room, and there are always some ticks.
        let count = ((frame.right - frame.left) / (self.size.character * 8.0)) as usize;
        for (value, words) in x.ticks(count.clamp(3, 10)) {
            let Some(place) = x.place(value) else { continue };
            self.stroke(Ink::Axis, &line((place, frame.bottom), (place, frame.bottom + 4.0)));
            self.words(Ink::FadedWords, (place, frame.bottom + 17.0), "middle", &words);
        }
        self.stroke(Ink::Axis, &line((frame.left, frame.bottom), (frame.right, frame.bottom)));
        let middle = (frame.left + frame.right) / 2.0;
        let chart = self.chart;
        self.words(Ink::Words, (middle, self.size.height - 6.0), "middle", &chart.x_label);
        if !chart.y_label.is_empty() {
            let (attributes, middle) =
                (Ink::Words.attributes(self.theme), plain((frame.top + frame.bottom) / 2.0, 2));
            let _ = writeln!(
                self.text,
                "<text transform=\"translate(13 {middle}) rotate(-90)\" text-anchor=\"middle\" \
                 {attributes}>{}</text>",
                escaped(&chart.y_label)
            );
        }
    }

    fn legend(&mut self, entries: &[Entry], top: f64) {
        for entry in entries {
            let y = top + (entry.row as f64 + 0.5) * legend::ROW;
            if let Some(series) = entry.series {
                self.sample(series, entry.x, y);
            }
            self.words(Ink::Words, (entry.words_x(), y + 4.0), "start", &entry.name);
        }
    }

    /// Draws what a series looks like, before its name.
    fn sample(&mut self, series: usize, x: f64, y: f64) {
        let end = x + legend::SAMPLE;
        let style = self.chart.series[series].style;
        let (ink, path) = match style {
            _ if self.chart.stacked => {
                let (x, end, high, low) = (x + 3.0, end - 1.0, y - 5.0, y + 5.0);
                let corners = [(x, high), (end, high), (end, low), (x, low)];
                (Ink::Part(series), through(&corners) + "Z")
            }
            Style::Points => (Ink::Dots(series), dot((x + end) / 2.0, y)),
            Style::Line | Style::Area => (Ink::Line(series), line((x, y), (end, y))),
        };
        self.stroke(ink, &path);
    }

    fn marks(&mut self, frame: &Frame, x_axis: &Axis) {
        let mut free = f64::MIN;
        let chart = self.chart;
        for mark in &chart.marks {
            let Some(x) = x_axis.place(mark.x) else { continue };
            if !(frame.left - 0.5..=frame.right + 0.5).contains(&x) {
                continue;
            }
            self.stroke(Ink::Mark, &line((x, frame.top), (x, frame.bottom)));
            let width = mark.label.chars().count() as f64 * self.size.character;
            let (anchor, begin) = match x + 4.0 + width > frame.right {
                true => ("end", x - 4.0 - width),
                false => ("start", x + 4.0),
            };
            // Names on top of each other could not be read.
            if begin >= free {
                let place = if anchor == "end" { x - 4.0 } else { begin };
                self.words(Ink::FadedWords, (place, frame.top + 10.0), anchor, &mark.label);
                free = begin + width;
            }
        }
    }

    /// Draws a path, if it has any part.
    pub(super) fn stroke(&mut self, ink: Ink, path: &str) {
        if path.is_empty() {
            return;
        }
        let _ = writeln!(self.text, "<path {} d=\"{path}\"/>", ink.attributes(self.theme));
    }

    fn words(&mut self, ink: Ink, (x, y): (f64, f64), anchor: &str, words: &str) {
        if words.is_empty() {
            return;
        }
        let (x, y, attributes) = (plain(x, 2), plain(y, 2), ink.attributes(self.theme));
        let _ = writeln!(
            self.text,
            "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" {attributes}>{}</text>",
            escaped(words)
        );
    }
}

/// The axes around all points, without their pixels.
fn axes(chart: &Chart) -> (Axis, Axis) {
    let points = || chart.series.iter().flat_map(|series| series.points.iter());
    let x = Axis::around(points().map(|(x, _)| *x), chart.x_scale);
    if chart.stacked {
        let sums = Stack::new(&chart.series, usize::MAX).borders.pop().unwrap_or_default();
        return (x, Axis::around(sums.into_iter().chain([0.0]), Scale::Linear));
    }
    let y = Axis::around(points().map(|(_, y)| *y), chart.y_scale);
    let has_area = chart.series.iter().any(|series| series.style == Style::Area);
    let y = if chart.from_zero || has_area { y.with_zero() } else { y };
    (x, y.with_room())
}

/// Whether anything has a place on the horizontal axis.
fn has_places(chart: &Chart) -> bool {
    let mut places = chart.series.iter().flat_map(|series: &Series| &series.points);
    places
        .any(|(x, _)| x.is_finite() && (chart.x_scale == Scale::Linear || *x >= f64::MIN_POSITIVE))
}

pub(super) fn through(places: &[(f64, f64)]) -> String {
    let place = |(x, y): &(f64, f64)| format!("{},{}", plain(*x, 2), plain(*y, 2));
    let places: Vec<String> = places.iter().map(place).collect();
    if places.is_empty() { String::new() } else { format!("M{}", places.join(" ")) }
}

pub(super) fn line(from: (f64, f64), to: (f64, f64)) -> String {
    through(&[from, to])
}

/// A line of no length, which round ends make a dot.
pub(super) fn dot(x: f64, y: f64) -> String {
    format!("M{},{}h0", plain(x, 2), plain(y, 2))
}
