//! The curves of a picture.

use super::axis::Axis;
use super::draw::{Frame, Picture, dot, through};
use super::paint::Ink;
use super::stack::Stack;
use super::thin::{self, Item};
use super::{Style, Theme, smooth};
use crate::number::plain;
use crate::xml::escaped;
use std::fmt::Write as _;

impl Picture<'_> {
    /// Draws all series.
    pub(super) fn curves(&mut self, frame: &Frame, x_axis: &Axis, y_axis: &Axis) {
        let chart = self.chart;
        if chart.stacked {
            return self.stack(frame, x_axis, y_axis);
        }
        for (index, series) in chart.series.iter().enumerate() {
            let items = thin::items(&series.points, x_axis, y_axis);
            self.lost(index, &items, frame);
            if series.smoothing > 0.0 && series.style != Style::Points {
                self.curve(Ink::Faint(index), &items);
                let smooth = smooth::averages(&series.points, series.smoothing, chart.y_scale);
                self.curve(Ink::Line(index), &thin::items(&smooth, x_axis, y_axis));
                continue;
            }
            match series.style {
                Style::Points => self.dots(index, &items),
                Style::Line => self.curve(Ink::Line(index), &items),
                Style::Area => {
                    let floor = y_axis.place(0.0).unwrap_or(frame.bottom);
                    self.area(index, &items, floor.clamp(frame.top, frame.bottom));
                    self.curve(Ink::Line(index), &items);
                }
            }
        }
    }

    fn curve(&mut self, ink: Ink, items: &[Item]) {
        let (mut path, mut dots) = (String::new(), String::new());
        for run in runs(items) {
            match run[..] {
                [(x, y)] => dots.push_str(&dot(x, y)),
                _ => path.push_str(&through(&run)),
            }
        }
        match ink {
            Ink::Line(index) => {
                self.course(index, &path);
                self.stroke(Ink::Dots(index), &dots);
            }
            _ => self.stroke(ink, &path),
        }
    }

    fn dots(&mut self, index: usize, items: &[Item]) {
        let path: String = runs(items).iter().flatten().map(|(x, y)| dot(*x, *y)).collect();
        self.stroke(Ink::Dots(index), &path);
    }

    fn area(&mut self, index: usize, items: &[Item], floor: f64) {
        let closed = |run: &Vec<(f64, f64)>| {
            let (first, last) = (run.first()?.0, run.last()?.0);
            let floor = plain(floor, 2);
            Some(format!(
                "{}L{},{floor} {},{floor}Z",
                through(run),
                plain(last, 2),
                plain(first, 2)
            ))
        };
        let path: String = runs(items).iter().filter_map(closed).collect();
        self.stroke(Ink::Area(index), &path);
    }

    /// Marks at the edge where values are that have no place.
    fn lost(&mut self, index: usize, items: &[Item], frame: &Frame) {
        let tooth = |item: &Item| {
            let Item::Lost { x, below } = *item else { return None };
            let (edge, tip) = match below {
                true => (frame.bottom - 7.0, frame.bottom - 1.0),
                false => (frame.top + 7.0, frame.top + 1.0),
            };
            Some(through(&[(x - 3.0, edge), (x, tip), (x + 3.0, edge)]) + "Z")
        };
        let path: String = items.iter().filter_map(tooth).collect();
        self.stroke(Ink::Lost(index), &path);
    }

    fn stack(&mut self, frame: &Frame, x_axis: &Axis, y_axis: &Axis) {
        let mut stack = Stack::new(&self.chart.series, (frame.right - frame.left) as usize);
        let mut places: Vec<f64> = stack.xs.iter().filter_map(|x| x_axis.place(*x)).collect();
        if places.len() == 1 {
            // An area over a single place would be nothing.
            places = vec![frame.left, frame.right];
            stack.borders.iter_mut().for_each(|border| border.push(border[0]));
        }
        let mut below: Vec<(f64, f64)> = places.iter().map(|x| (*x, frame.bottom)).collect();
        for (index, border) in stack.borders.iter().enumerate() {
            let heights = border.iter().filter_map(|sum| y_axis.place(*sum));
            let upper: Vec<(f64, f64)> = places.iter().copied().zip(heights).collect();
            let outline: Vec<(f64, f64)> =
                upper.iter().chain(below.iter().rev()).copied().collect();
            self.stroke(Ink::Part(index), &(through(&outline) + "Z"));
            below = upper;
        }
    }

    /// Draws the curve of a series, whose name a page's script shows with its values.
    fn course(&mut self, index: usize, path: &str) {
        if path.is_empty() {
            return;
        }
        let name = match self.theme {
            Theme::Inline => format!(" data-name=\"{}\"", escaped(&self.chart.series[index].name)),
            Theme::StandAlone => String::new(),
        };
        let attributes = Ink::Line(index).attributes(self.theme);
        // Writing into a string cannot fail.
        let _ = writeln!(self.text, "<path {attributes}{name} d=\"{path}\"/>");
    }
}

/// Points that follow each other without a lost value between.
fn runs(items: &[Item]) -> Vec<Vec<(f64, f64)>> {
    let is_point = |item: &Item| matches!(item, Item::Point(..));
    let groups = items.chunk_by(|one, next| is_point(one) && is_point(next));
    let points = groups.map(|group| {
        let point = |item: &Item| match *item {
            Item::Point(x, y) => Some((x, y)),
            Item::Lost { .. } => None,
        };
        group.iter().filter_map(point).collect::<Vec<_>>()
    });
    points.filter(|run| !run.is_empty()).collect()
}
