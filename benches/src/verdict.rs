//! Several runs as one, the median of each promise's values, and how that stands to a baseline.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bars::{Bar, Good};
use crate::cells::Extent;
use crate::error::{Error, Step};
use crate::report::table::bar_line;
use crate::sample::median;

/// How much worse than the baseline a ratio may be before it counts as a regression. It is one of
/// `make bench-kernel`, which repeats exactly for one build, while another build may take another
/// course, which moves ratios by up to 11 % (docs/decisions/0036).
const TOLERANCE: f64 = 1.15;

/// One promise over all runs.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The promise; its value is the median.
    #[serde(flatten)]
    pub bar: Bar,
    /// What each run measured.
    pub runs: Vec<f64>,
}

/// Each promise with the median of what the runs measured.
pub fn medians(runs: &[Vec<Bar>]) -> Vec<Verdict> {
    let promised = runs.first().map_or(&[][..], Vec::as_slice);
    let verdict = |bar: &Bar| {
        let same = runs.iter().flatten().filter(|other| other.key == bar.key);
        let runs: Vec<f64> = same.filter_map(|bar| bar.value).collect();
        let value = median(runs.iter().copied());
        let bar = Bar {
            value,
            ..bar.clone()
        };
        Verdict { bar, runs }
    };
    promised.iter().map(verdict).collect()
}

/// The promises in lines, with the values that the medians are of.
pub fn table(verdicts: &[Verdict]) -> String {
    let mut text = String::new();
    for Verdict { bar, runs } in verdicts {
        let values: Vec<String> = runs.iter().map(|value| format!("{value:.2}")).collect();
        let _ = writeln!(text, "{:100} {}", bar_line(bar), values.join(" "));
    }
    text
}

/// The ratios of an earlier state of the code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// How much was measured for them.
    pub extent: Extent,
    /// The value of each promise by its key.
    pub ratios: BTreeMap<String, f64>,
}

impl Baseline {
    /// That of these runs. Memory and counts are held by their own limits.
    pub fn of(extent: Extent, verdicts: &[Verdict]) -> Self {
        let ratios = verdicts.iter().filter(|it| it.bar.unit == "×");
        let ratio = |it: &Verdict| {
            let value = it.bar.value?;
            Some((it.bar.key.to_owned(), (value * 100.0).round() / 100.0))
        };
        Self {
            extent,
            ratios: ratios.filter_map(ratio).collect(),
        }
    }

    /// Reads one.
    ///
    /// # Errors
    /// The file can't be read, or is none.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = std::fs::read_to_string(path).step(|| format!("read {}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(std::io::Error::from)
            .step(|| format!("parse {}", path.display()))
    }

    /// Writes it.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let json = serde_json::to_string_pretty(self)
            .map_err(std::io::Error::from)
            .step(|| "serialise the baseline")?;
        std::fs::write(path, json + "\n").step(|| format!("write {}", path.display()))
    }

    /// What is worse than here by more than the noise, in words.
    pub fn regressions(&self, verdicts: &[Verdict]) -> Vec<String> {
        let worse = |verdict: &Verdict| {
            let Bar {
                key,
                what,
                good,
                value,
                ..
            } = &verdict.bar;
            let (before, now) = (*self.ratios.get(*key)?, (*value)?);
            let by = match good {
                Good::AtMost => now / before,
                Good::AtLeast => before / now,
            };
            (by > TOLERANCE).then(|| format!("{what}: {now:.2} ×, was {before:.2} ×"))
        };
        verdicts.iter().filter_map(worse).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(key: &'static str, good: Good, value: Option<f64>) -> Bar {
        Bar {
            key,
            what: key,
            good,
            limit: 1.0,
            value,
            unit: "×",
        }
    }

    #[test]
    fn the_median_is_of_the_runs_that_measured_it() {
        let run = |value| vec![bar("own", Good::AtMost, value)];
        let verdicts = medians(&[run(Some(3.0)), run(None), run(Some(1.0)), run(Some(2.0))]);
        assert_eq!(verdicts[0].bar.value, Some(2.0));
        assert_eq!(verdicts[0].runs, [3.0, 1.0, 2.0]);
    }

    #[test]
    fn a_regression_is_one_towards_the_bad_side_beyond_the_noise() {
        let run = |own, del| {
            let bars = vec![
                bar("own", Good::AtMost, Some(own)),
                bar("del", Good::AtLeast, Some(del)),
            ];
            medians(&[bars])
        };
        let baseline = Baseline::of(Extent::Quick, &run(1.0, 10.0));
        assert!(baseline.regressions(&run(1.1, 9.2)).is_empty());
        assert!(baseline.regressions(&run(0.2, 90.0)).is_empty());
        assert_eq!(baseline.regressions(&run(1.2, 10.0)).len(), 1);
        assert_eq!(baseline.regressions(&run(1.2, 8.5)).len(), 2);
    }
}
