//! A page of metrics in the OpenMetrics text format, read as a monitoring system reads it.

use std::collections::{BTreeMap, BTreeSet};

/// A page, read.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// Each metric's type by its name.
    pub types: BTreeMap<String, String>,
    /// The series, each with its value.
    pub series: Vec<Series>,
}

/// One series.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its whole name, with the suffix that its type gives it.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

/// The suffixes by which a type's series are told from the metric's name (OpenMetrics 1.0, "Metric
/// Types").
const SUFFIXES: [&str; 5] = ["_total", "_info", "_bucket", "_count", "_sum"];

impl Scrape {
    /// Reads a page.
    ///
    /// # Errors
    /// The first line that breaks the format.
    pub fn parse(page: &str) -> Result<Scrape, String> {
        let mut scrape = Scrape::default();
        let body = page
            .strip_suffix("# EOF\n")
            .ok_or("it does not end with # EOF")?;
        for line in body.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                scrape.comment(comment).ok_or_else(|| line.to_owned())?;
                continue;
            }
            let series = series(line).ok_or_else(|| line.to_owned())?;
            if !scrape.types.contains_key(scrape.metric_of(&series.name)) {
                return Err(format!("{line}: of a metric that was not announced"));
            }
            scrape.series.push(series);
        }
        Ok(scrape)
    }

    /// The value of the one series of this name that has these labels.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let has = |series: &&Series| {
            series.name == name
                && labels.len() == series.labels.len()
                && labels
                    .iter()
                    .all(|(label, value)| series.labels.get(*label).is_some_and(|it| it == value))
        };
        self.series.iter().find(has).map(|series| series.value)
    }

    /// The sum of a name's series that have at least these labels.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |series: &&Series| {
            series.name == name
                && labels
                    .iter()
                    .all(|(label, value)| series.labels.get(*label).is_some_and(|it| it == value))
        };
        self.series
            .iter()
            .filter(has)
            .map(|series| series.value)
            .sum()
    }

    /// The labels of a metric's series, without a histogram's `le`.
    pub fn labels(&self, metric: &str) -> BTreeSet<String> {
        let of_it = |series: &&Series| self.metric_of(&series.name) == metric;
        let labels = self.series.iter().filter(of_it);
        labels
            .flat_map(|series| series.labels.keys().cloned())
            .filter(|label| label != "le")
            .collect()
    }

    /// The metric that a series belongs to.
    pub fn metric_of<'a>(&self, series: &'a str) -> &'a str {
        if self.types.contains_key(series) {
            return series;
        }
        SUFFIXES
            .iter()
            .find_map(|suffix| series.strip_suffix(suffix))
            .unwrap_or(series)
    }

    fn comment(&mut self, comment: &str) -> Option<()> {
        let (kind, rest) = comment.split_once(' ')?;
        let (name, rest) = rest.split_once(' ')?;
        match kind {
            "TYPE" => match self.types.insert(name.to_owned(), rest.to_owned()) {
                None => Some(()),
                Some(_) => None,
            },
            "HELP" => rest.ends_with('.').then_some(()),
            "UNIT" => name.ends_with(rest).then_some(()),
            _ => None,
        }
    }
}

fn series(line: &str) -> Option<Series> {
    let (series, value) = line.rsplit_once(' ')?;
    let (name, labels) = match series.split_once('{') {
        None => (series, BTreeMap::new()),
        Some((name, labels)) => (name, read_labels(labels.strip_suffix('}')?)?),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':';
    name.bytes().all(is_name).then_some(())?;
    Some(Series {
        name: name.to_owned(),
        labels,
        value: value.parse().ok()?,
    })
}

/// Reads `name="value",name="value"`; our values hold no quotes.
fn read_labels(text: &str) -> Option<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"")?;
        let (value, after) = after.split_once('"')?;
        labels.insert(name.to_owned(), value.to_owned());
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Some(labels)
}
