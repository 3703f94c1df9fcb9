//! Line charts as SVG.
//!
//! Every value leaves a trace: a long curve keeps the least and the greatest value of each column of
//! pixels, a value that is infinite or not a number interrupts its curve and is marked at the edge, and a
//! lonely point is a dot.

mod axis;
mod curves;
mod draw;
mod legend;
mod paint;
mod smooth;
mod stack;
mod thin;
mod ticks;

/// A chart of one or more series over a common axis.
///
/// ```
/// use bonfire_report::chart::{Chart, Series, Theme};
///
/// let loss = Series::line("loss", vec![(1.0, 2.3), (2.0, 1.9), (3.0, 1.7)]);
/// let chart = Chart { x_label: "step".to_string(), series: vec![loss], ..Chart::default() };
/// assert!(chart.to_svg(Theme::StandAlone).starts_with("<svg"));
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    /// Words above the chart; a page may have its own instead.
    pub title: String,
    /// What the horizontal axis counts.
    pub x_label: String,
    /// What the vertical axis measures, with its unit.
    pub y_label: String,
    /// Scale of the horizontal axis.
    pub x_scale: Scale,
    /// Scale of the vertical axis.
    pub y_scale: Scale,
    /// Whether a linear vertical axis begins at 0 even where no value is near it.
    pub from_zero: bool,
    /// The curves; later ones are drawn over earlier ones.
    pub series: Vec<Series>,
    /// Whether the series are parts of a whole, drawn one on top of the other as areas. Values below 0,
    /// infinite or not a number count as 0, and long series show the mean of each column of pixels.
    pub stacked: bool,
    /// Places of the horizontal axis that have a name.
    pub marks: Vec<Mark>,
}

/// How values are laid out along an axis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Scale {
    /// Equal distances for equal differences.
    #[default]
    Linear,
    /// Equal distances for equal ratios; values of 0 and less have no place.
    Log,
}

/// Named values over the horizontal axis.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Places and values, in any order of places.
    pub points: Vec<(f64, f64)>,
    /// How it is drawn.
    pub style: Style,
    /// Weight of what came before in an exponential moving average, from 0 (none) to below 1. Where
    /// there is one the average is drawn over a faint curve of the values themselves.
    pub smoothing: f64,
}

/// How a series is drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Style {
    /// A curve from point to point.
    #[default]
    Line,
    /// A curve with the area below it filled.
    Area,
    /// A dot for every point.
    Points,
}

/// A place of the horizontal axis that has a name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mark {
    /// Where it is.
    pub x: f64,
    /// What happened there.
    pub label: String,
}

/// Where a picture gets its size and its colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// A file of its own: white, with every colour and its title inside.
    StandAlone,
    /// A part of a page, without the title: its colours are those that [`INLINE_CSS`] gives to its classes.
    Inline,
}

/// Styles of charts inside a page, in a light and a dark scheme.
pub const INLINE_CSS: &str = include_str!("chart/inline.css");

impl Series {
    /// A curve.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.into(), points, ..Self::default() }
    }

    /// A filled curve.
    pub fn area(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Area, ..Self::line(name, points) }
    }

    /// Dots.
    pub fn points(name: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self { style: Style::Points, ..Self::line(name, points) }
    }

    /// Sets the weight of the moving average; see [`smoothing`](Self::smoothing).
    pub fn with_smoothing(self, smoothing: f64) -> Self {
        Self { smoothing, ..self }
    }
}

impl Chart {
    /// Draws the chart. A chart without any place on its horizontal axis says `no data`.
    pub fn to_svg(&self, theme: Theme) -> String {
        draw::svg(self, theme)
    }
}
