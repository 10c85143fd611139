//! Plots as SVG: curves over a linear or logarithmic axis, and a waterfall. Colours are classes of
//! the page's style sheet, so that a plot follows the reader's light or dark.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 120.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 44.0;

/// A line of a plot.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What it shows.
    pub name: String,
    /// Its class in the style sheet.
    pub class: String,
    /// Its points, by x.
    pub points: Vec<(f64, f64)>,
}

/// A bar of a waterfall.
#[derive(Clone, Debug)]
pub struct Span {
    /// What was done.
    pub name: String,
    /// Its class in the style sheet.
    pub class: String,
    /// Where it begins.
    pub start: f64,
    /// How long it is.
    pub took: f64,
}

/// How an axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Evenly, from 0.
    Linear,
    /// By powers of ten.
    Log,
}

/// An axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis<'a> {
    /// What it shows, with its unit.
    pub title: &'a str,
    /// How.
    pub scale: Scale,
}

/// Curves in one plot; empty without any.
pub fn plot(curves: &[Curve], x: Axis<'_>, y: Axis<'_>) -> String {
    let all = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let (Some(xs), Some(ys)) = (
        Range::of(all().map(|point| point.0), x.scale),
        Range::of(all().map(|point| point.1), y.scale),
    ) else {
        return String::new();
    };
    let across = |value: f64| LEFT + xs.share(value) * (WIDTH - LEFT - RIGHT);
    let down = |value: f64| HEIGHT - BOTTOM - ys.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut svg = open(HEIGHT);
    for tick in xs.ticks() {
        let at = across(tick);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{:.1}"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            HEIGHT - BOTTOM,
            HEIGHT - BOTTOM + 16.0,
            number(tick)
        );
    }
    for tick in ys.ticks() {
        let at = down(tick);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            WIDTH - RIGHT,
            LEFT - 6.0,
            at + 4.0,
            number(tick)
        );
    }
    let _ = write!(
        svg,
        r#"<text class="axis" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text><text class="axis" x="14" y="{:.1}" text-anchor="middle" transform="rotate(-90 14 {:.1})">{}</text>"#,
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 6.0,
        escape(x.title),
        (TOP + HEIGHT - BOTTOM) / 2.0,
        (TOP + HEIGHT - BOTTOM) / 2.0,
        escape(y.title)
    );
    for (row, curve) in curves.iter().enumerate() {
        let points: Vec<String> = curve
            .points
            .iter()
            .map(|(x, y)| format!("{:.1},{:.1}", across(*x), down(*y)))
            .collect();
        let (name, class) = (escape(&curve.name), &curve.class);
        let _ = write!(
            svg,
            r#"<polyline class="line {class}" points="{}"><title>{name}</title></polyline>"#,
            points.join(" ")
        );
        // With few points each is worth a mark.
        if curve.points.len() <= 12 {
            for (x, y) in &curve.points {
                let _ = write!(
                    svg,
                    r#"<circle class="dot {class}" cx="{:.1}" cy="{:.1}" r="3.5"><title>{name}: {} at {}</title></circle>"#,
                    across(*x),
                    down(*y),
                    number(*y),
                    number(*x)
                );
            }
        }
        let at = TOP + 8.0 + row as f64 * 18.0;
        let _ = write!(
            svg,
            r#"<line class="line {class}" x1="{0:.1}" y1="{at}" x2="{1:.1}" y2="{at}"/><text x="{2:.1}" y="{3}">{name}</text>"#,
            WIDTH - RIGHT + 8.0,
            WIDTH - RIGHT + 28.0,
            WIDTH - RIGHT + 34.0,
            at + 4.0
        );
    }
    svg.push_str("</svg>");
    svg
}

/// Spans below each other over one axis of time in milliseconds; empty without any.
pub fn waterfall(spans: &[Span]) -> String {
    const ROW: f64 = 22.0;
    const NAMES: f64 = 190.0;
    let ends = spans.iter().map(|span| span.start + span.took);
    let Some(range) = Range::of(ends.chain([0.0]), Scale::Linear) else {
        return String::new();
    };
    let height = TOP + BOTTOM + ROW * spans.len() as f64;
    let across = |value: f64| NAMES + range.share(value) * (WIDTH - NAMES - 70.0);
    let mut svg = open(height);
    for tick in range.ticks() {
        let at = across(tick);
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{:.1}"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            height - BOTTOM,
            height - BOTTOM + 16.0,
            number(tick)
        );
    }
    for (row, span) in spans.iter().enumerate() {
        let top = TOP + ROW * row as f64;
        let (from, to) = (across(span.start), across(span.start + span.took));
        let _ = write!(
            svg,
            r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{}</text><rect class="span {}" x="{from:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="2"/><text x="{:.1}" y="{:.1}">{:.2}</text>"#,
            NAMES - 8.0,
            top + 15.0,
            escape(&span.name),
            span.class,
            top + 4.0,
            (to - from).max(1.5),
            ROW - 8.0,
            to.max(from + 1.5) + 5.0,
            top + 15.0,
            span.took
        );
    }
    let _ = write!(
        svg,
        r#"<text class="axis" x="{:.1}" y="{:.1}" text-anchor="middle">milliseconds since the exec</text></svg>"#,
        (NAMES + WIDTH) / 2.0,
        height - 6.0
    );
    svg
}

/// Text that may stand in HTML and SVG.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

fn open(height: f64) -> String {
    format!(r#"<svg viewBox="0 0 {WIDTH} {height}" role="img">"#)
}

/// What an axis spans.
#[derive(Clone, Copy, Debug)]
struct Range {
    low: f64,
    high: f64,
    scale: Scale,
}

impl Range {
    fn of(values: impl Iterator<Item = f64>, scale: Scale) -> Option<Self> {
        let values: Vec<f64> = values
            .filter(|value| value.is_finite() && (scale == Scale::Linear || *value > 0.0))
            .collect();
        let low = values.iter().copied().reduce(f64::min)?;
        let high = values.iter().copied().reduce(f64::max)?;
        Some(match scale {
            Scale::Linear => {
                let step = step(high);
                Self {
                    low: 0.0,
                    high: ((high / step).ceil() * step).max(step),
                    scale,
                }
            }
            Scale::Log => Self {
                low: low * 0.9,
                high: (high * 1.1).max(low * 2.0),
                scale,
            },
        })
    }

    /// Where a value lies, from 0 to 1.
    fn share(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        share.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let step = step(self.high);
                let count = (self.high / step).round() as usize;
                (0..=count).map(|n| n as f64 * step).collect()
            }
            Scale::Log => {
                let (first, last) = (
                    self.low.log10().floor() as i32,
                    self.high.log10().ceil() as i32,
                );
                (first..=last)
                    .flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10f64.powi(power)))
                    .filter(|tick| (self.low..=self.high).contains(tick))
                    .collect()
            }
        }
    }
}

/// A round step that divides 0 to `high` into about five.
fn step(high: f64) -> f64 {
    let rough = (high / 5.0).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .find(|digit| digit * power >= rough);
    digit.unwrap_or(10.0) * power
}

fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_covers_its_values_with_few_round_ticks() {
        let linear = Range::of([3.0, 47.0].into_iter(), Scale::Linear).unwrap();
        assert_eq!(linear.ticks(), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]);
        assert_eq!((linear.share(0.0), linear.share(50.0)), (0.0, 1.0));
        let log = Range::of([0.4, 0.0, 120.0].into_iter(), Scale::Log).unwrap();
        assert_eq!(log.ticks(), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert!(log.share(0.4) < log.share(1.0) && log.share(120.0) <= 1.0);
    }

    #[test]
    fn a_name_cannot_break_the_page() {
        let spans = [Span {
            name: "<b>&\"".into(),
            class: "own".into(),
            start: 0.0,
            took: 1.0,
        }];
        assert!(waterfall(&spans).contains("&lt;b&gt;&amp;&quot;"));
        assert_eq!(waterfall(&[]).matches("<rect").count(), 0);
    }
}
