//! The two formats of the metrics page: OpenMetrics, and the text format that Prometheus has read
//! since its beginning.
//!
//! The text format is the default, as it is with every Prometheus client library: only who asks for
//! OpenMetrics gets it.

use std::borrow::Cow;

/// A format of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus' text format 0.0.4.
    Text,
}

impl PageFormat {
    /// The format that a request's `Accept` prefers.
    pub fn accepted(header: Option<&str>) -> Self {
        let quality = |name: &str| -> Option<f32> {
            let mut ranges = header?.split(',');
            ranges.find_map(|range| {
                let mut parts = range.split(';').map(str::trim);
                if !parts.next()?.eq_ignore_ascii_case(name) {
                    return None;
                }
                let quality = parts.find_map(|part| part.strip_prefix("q="));
                Some(quality.and_then(|text| text.parse().ok()).unwrap_or(1.0))
            })
        };
        let text = quality("text/plain").unwrap_or(0.0);
        match quality("application/openmetrics-text") {
            Some(open) if open > 0.0 && open >= text => Self::OpenMetrics,
            _ => Self::Text,
        }
    }

    /// Its media type.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// A page that is in OpenMetrics, in this format.
    pub fn of(self, page: String) -> String {
        match self {
            Self::OpenMetrics => page,
            Self::Text => text(&page),
        }
    }
}

/// The series are the same in both. What describes a counter or an info has their names' suffix in
/// the text format; it knows neither units nor an end.
fn text(page: &str) -> String {
    let mut text = String::with_capacity(page.len());
    let mut help = None;
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), said) => help = said,
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (name, kind) = described(name, kind);
                if let Some(help) = help.take() {
                    text.push_str(&format!("# HELP {name} {help}\n"));
                }
                text.push_str(&format!("# TYPE {name} {kind}\n"));
            }
            (Some("#"), ..) => {}
            _ => {
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    text
}

fn described<'a>(name: &'a str, kind: &'a str) -> (Cow<'a, str>, &'a str) {
    match kind {
        "counter" => (format!("{name}_total").into(), kind),
        "info" => (format!("{name}_info").into(), "gauge"),
        "unknown" => (name.into(), "untyped"),
        _ => (name.into(), kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_format_is_for_all_who_do_not_prefer_openmetrics() {
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.8, \
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (header, format) in [
            (None, PageFormat::Text),
            (Some("*/*"), PageFormat::Text),
            (Some("text/plain"), PageFormat::Text),
            (
                Some("text/plain, application/openmetrics-text;q=0.5"),
                PageFormat::Text,
            ),
            (Some("application/openmetrics-text; q=0"), PageFormat::Text),
            (
                Some("Application/OpenMetrics-Text"),
                PageFormat::OpenMetrics,
            ),
            (Some(prometheus), PageFormat::OpenMetrics),
        ] {
            assert_eq!(PageFormat::accepted(header), format, "{header:?}");
        }
    }

    #[test]
    fn counters_and_infos_are_described_by_the_names_of_their_series() {
        let page = "# HELP podwire_a A.\n# TYPE podwire_a counter\npodwire_a_total 1\n\
                    # HELP podwire_b B.\n# TYPE podwire_b info\npodwire_b_info{v=\"1\"} 1\n\
                    # HELP podwire_c C.\n# TYPE podwire_c gauge\n# UNIT podwire_c seconds\n\
                    podwire_c 1.5\n# EOF\n";
        let text = "# HELP podwire_a_total A.\n# TYPE podwire_a_total counter\npodwire_a_total \
                    1\n# HELP podwire_b_info B.\n# TYPE podwire_b_info \
                    gauge\npodwire_b_info{v=\"1\"} 1\n# HELP podwire_c C.\n# TYPE podwire_c \
                    gauge\npodwire_c 1.5\n";
        assert_eq!(PageFormat::Text.of(page.to_owned()), text);
    }
}
