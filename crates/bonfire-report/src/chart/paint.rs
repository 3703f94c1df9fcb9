//! How the parts of a chart look.

use super::Theme;

/// Okabe and Ito's colours, which people who see few colours can tell apart, in an order that puts those
/// with the most contrast first. Their yellow is a little darker here, to be seen on white.
///
/// # Reference
/// Okabe and Ito, "Color Universal Design", 2008.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#222222", "#c9b81a"];

/// A part of a chart; the number is that of its series.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ink {
    Grid,
    Axis,
    Words,
    FadedWords,
    Mark,
    Line(usize),
    /// The values behind a moving average.
    Faint(usize),
    Dots(usize),
    Lost(usize),
    Area(usize),
    /// A layer of a stack.
    Part(usize),
}

impl Ink {
    /// The attributes of an element: its classes, and without a page around it its looks.
    pub(super) fn attributes(self, theme: Theme) -> String {
        let classes = self.classes();
        match theme {
            Theme::Inline if classes.is_empty() => String::new(),
            Theme::Inline => format!("class=\"{classes}\""),
            Theme::StandAlone if classes.is_empty() => self.looks(),
            Theme::StandAlone => format!("class=\"{classes}\" {}", self.looks()),
        }
    }

    fn classes(self) -> String {
        let kind = match self {
            Ink::Words => "",
            Ink::Grid => "grid",
            Ink::Axis => "axis",
            Ink::FadedWords => "faded",
            Ink::Mark => "mark",
            Ink::Line(_) => "line",
            Ink::Faint(_) => "faint",
            Ink::Dots(_) => "dots",
            Ink::Lost(_) => "lost",
            Ink::Area(_) => "area",
            Ink::Part(_) => "part",
        };
        let colour = self.series().map(|index| format!(" c{}", index % COLOURS.len()));
        let dashed = if self.is_dashed() { " dashed" } else { "" };
        format!("{kind}{}{dashed}", colour.unwrap_or_default())
    }

    fn looks(self) -> String {
        let colour = self.series().map_or("", |index| COLOURS[index % COLOURS.len()]);
        let stroke = |width: f64| {
            let dashes = if self.is_dashed() { " stroke-dasharray=\"6 4\"" } else { "" };
            format!(
                "fill=\"none\" stroke=\"{colour}\" stroke-width=\"{width}\" stroke-linejoin=\"round\" \
                 stroke-linecap=\"round\"{dashes}"
            )
        };
        match self {
            Ink::Words => "fill=\"#333333\"".to_string(),
            Ink::FadedWords => "fill=\"#666666\"".to_string(),
            Ink::Grid => "fill=\"none\" stroke=\"#e4e4e7\"".to_string(),
            Ink::Axis => "fill=\"none\" stroke=\"#a1a1aa\"".to_string(),
            Ink::Mark => "fill=\"none\" stroke=\"#666666\" stroke-dasharray=\"3 3\"".to_string(),
            Ink::Line(_) => stroke(2.0),
            Ink::Faint(_) => stroke(1.0) + " stroke-opacity=\"0.3\"",
            Ink::Dots(_) => stroke(5.0),
            Ink::Lost(_) => stroke(1.5),
            Ink::Area(_) => format!("fill=\"{colour}\" fill-opacity=\"0.25\""),
            Ink::Part(_) => format!("fill=\"{colour}\" fill-opacity=\"0.85\""),
        }
    }

    fn series(self) -> Option<usize> {
        match self {
            Ink::Line(index) | Ink::Faint(index) | Ink::Dots(index) => Some(index),
            Ink::Lost(index) | Ink::Area(index) | Ink::Part(index) => Some(index),
            Ink::Grid | Ink::Axis | Ink::Words | Ink::FadedWords | Ink::Mark => None,
        }
    }

    /// Whether the colour has been used before.
    fn is_dashed(self) -> bool {
        matches!(self, Ink::Line(index) if index >= COLOURS.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_repeat_with_dashes() {
        assert_eq!(Ink::Line(1).attributes(Theme::Inline), "class=\"line c1\"");
        assert_eq!(Ink::Line(9).attributes(Theme::Inline), "class=\"line c1 dashed\"");
        assert!(Ink::Line(9).attributes(Theme::StandAlone).contains("#d55e00"));
        assert!(Ink::Line(9).attributes(Theme::StandAlone).contains("dasharray"));
        assert!(!Ink::Dots(9).attributes(Theme::Inline).contains("dashed"));
    }

    #[test]
    fn pages_use_the_same_colours() {
        for (index, colour) in COLOURS.iter().enumerate() {
            assert!(
                super::super::INLINE_CSS.contains(&format!("--c{index}: {colour};")),
                "{colour}"
            );
        }
    }
}
