//! What operations of podwire took in an earlier run's report.json, beside what they take now.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::Report;
use crate::error::{Error, Step};
use crate::sample::{TOTAL, median};

/// One quantity in one situation, in both reports.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// The cell's title; of the cell `ports` with the number of other pods.
    pub situation: String,
    /// How many other pods were there, in the cell `ports`.
    pub present: Option<usize>,
    /// What was measured.
    pub quantity: Quantity,
    /// Milliseconds in the earlier report.
    pub before: f64,
    /// Milliseconds in this one.
    pub now: f64,
}

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Quantity {
    /// The whole ADD, p50.
    Add,
    /// The whole DEL, p50.
    Del,
    /// ovs-vswitchd's processor time of one ADD, of the median batch.
    AddVswitchd,
    /// The same of one DEL.
    DelVswitchd,
}

impl Quantity {
    /// All, in the order in which they are shown.
    pub const ALL: [Self; 4] = [Self::Add, Self::Del, Self::AddVswitchd, Self::DelVswitchd];

    /// What it is, for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::Add => "whole ADD",
            Self::Del => "whole DEL",
            Self::AddVswitchd => "ovs-vswitchd's processor time of an ADD",
            Self::DelVswitchd => "ovs-vswitchd's processor time of a DEL",
        }
    }
}

/// What [`changes`] needs of a report.json. Everything else may differ between the two, so that a
/// report of an older podwire-bench will do.
#[derive(Debug, Deserialize)]
struct Costs {
    cells: Vec<CellCosts>,
    ports: Vec<PortsCosts>,
}

#[derive(Debug, Deserialize)]
struct CellCosts {
    cell: CellName,
    measured: Vec<SubjectCosts>,
}

#[derive(Debug, Deserialize)]
struct CellName {
    title: String,
}

#[derive(Debug, Deserialize)]
struct PortsCosts {
    present: usize,
    measured: Vec<SubjectCosts>,
}

#[derive(Debug, Deserialize)]
struct SubjectCosts {
    subject: String,
    add: Vec<Parts>,
    del: Vec<Parts>,
    add_cpu: BTreeMap<String, Vec<f64>>,
    del_cpu: BTreeMap<String, Vec<f64>>,
    pods: usize,
}

#[derive(Debug, Deserialize)]
struct Parts {
    parts: BTreeMap<String, f64>,
}

/// The situations of a report, each with podwire's costs.
type Situations = Vec<(String, Option<usize>, SubjectCosts)>;

impl Costs {
    fn situations(self) -> Situations {
        let cells = self.cells.into_iter();
        let cells = cells.map(|it| (it.cell.title, None, it.measured));
        let ports = self.ports.into_iter().map(|it| {
            let title = format!("one at a time beside {} pods", it.present);
            (title, Some(it.present), it.measured)
        });
        let of_podwire = |(title, present, measured): (_, _, Vec<SubjectCosts>)| {
            let podwire = measured.into_iter().find(|it| it.subject == "podwire")?;
            Some((title, present, podwire))
        };
        cells.chain(ports).filter_map(of_podwire).collect()
    }
}

impl SubjectCosts {
    /// Milliseconds; `None` if it was not measured.
    fn of(&self, quantity: Quantity) -> Option<f64> {
        let whole = |operations: &[Parts]| {
            let times = operations.iter().filter_map(|it| it.parts.get(TOTAL));
            Some(median(times.copied())? / 1e3)
        };
        let of_vswitchd = |cpu: &BTreeMap<String, Vec<f64>>| {
            let batches = cpu.get("ovs-vswitchd")?;
            Some(median(batches.iter().copied())? * 1e3 / self.pods.max(1) as f64)
        };
        match quantity {
            Quantity::Add => whole(&self.add),
            Quantity::Del => whole(&self.del),
            Quantity::AddVswitchd => of_vswitchd(&self.add_cpu),
            Quantity::DelVswitchd => of_vswitchd(&self.del_cpu),
        }
    }
}

/// Compares a report with an earlier report.json, in the situations that both have.
///
/// # Errors
/// The file can't be read, or is no report.
pub fn changes(earlier: &Path, report: &Report) -> Result<Vec<Change>, Error> {
    let text = std::fs::read_to_string(earlier).step(|| format!("read {}", earlier.display()))?;
    // The same way for both, so that they are comparable.
    let now = serde_json::to_string(report);
    now.and_then(|now| compare(&text, &now))
        .map_err(std::io::Error::from)
        .step(|| format!("compare with {}", earlier.display()))
}

/// Compares two reports in JSON.
fn compare(before: &str, now: &str) -> Result<Vec<Change>, serde_json::Error> {
    let [before, now] = [before, now].map(serde_json::from_str::<Costs>);
    let (before, now) = (before?.situations(), now?.situations());
    let mut changes = Vec::new();
    for (situation, present, now) in &now {
        let Some((_, _, before)) = before.iter().find(|it| it.0 == *situation) else {
            continue;
        };
        for quantity in Quantity::ALL {
            if let Some((before, now)) = before.of(quantity).zip(now.of(quantity)) {
                changes.push(Change {
                    situation: situation.clone(),
                    present: *present,
                    quantity,
                    before,
                    now,
                });
            }
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A report with one cell and one level of ports, whose ADDs take these milliseconds.
    fn report(cell: &str, add: f64, present: usize, beside: f64) -> Value {
        let measured = |add: f64| {
            let operations = |took: f64| json!([{ "parts": { "total": took * 1e3, "own": 1.0 } }]);
            json!([
                { "subject": "floor", "add": operations(0.1), "del": [], "add_cpu": {},
                  "del_cpu": {}, "pods": 2 },
                { "subject": "podwire", "add": operations(add), "del": operations(add / 2.0),
                  "add_cpu": { "ovs-vswitchd": [0.01, add / 1e3, 1.0], "podwire": [7.0] },
                  "del_cpu": {}, "pods": 2, "of a later version": true },
            ])
        };
        json!({
            "cells": [{ "cell": { "title": cell }, "measured": measured(add) }],
            "ports": [{ "present": present, "measured": measured(beside) }],
        })
    }

    #[test]
    fn what_both_reports_measured_of_podwire_is_compared() {
        let before = report("one at a time", 20.0, 100, 60.0).to_string();
        let now = report("one at a time", 12.0, 100, 30.0);
        let changes = compare(&before, &now.to_string()).unwrap();
        let shown = |it: &Change| (it.present, it.quantity, it.before, it.now);
        assert_eq!(
            changes.iter().map(shown).collect::<Vec<_>>(),
            [
                (None, Quantity::Add, 20.0, 12.0),
                (None, Quantity::Del, 10.0, 6.0),
                (None, Quantity::AddVswitchd, 10.0, 6.0),
                (Some(100), Quantity::Add, 60.0, 30.0),
                (Some(100), Quantity::Del, 30.0, 15.0),
                (Some(100), Quantity::AddVswitchd, 30.0, 15.0),
            ]
        );
        // Neither the cell nor the number of pods is in both.
        let other = report("8 at a time", 12.0, 300, 30.0).to_string();
        assert_eq!(compare(&before, &other).unwrap(), []);
        assert!(compare("{}", &before).is_err());
    }
}
