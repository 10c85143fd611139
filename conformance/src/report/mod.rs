//! A report in the forms that people and machines read.

mod comparison;
mod junit;
mod table;
mod tap;

pub use comparison::comparison;
pub use junit::junit;
pub use table::{list, table};
pub use tap::tap;

use crate::case::Outcome;
use crate::run::Report;
use crate::spec::Level;

/// How many findings there are of each outcome, in a line.
pub fn summary(report: &Report) -> String {
    let count = |wanted: fn(&Outcome) -> bool| {
        let findings = report.findings.iter();
        findings.filter(|finding| wanted(&finding.outcome)).count()
    };
    format!(
        "{} passed, {} failed ({} of them a MUST), {} not applicable, {} not judged",
        count(|outcome| matches!(outcome, Outcome::Pass)),
        count(|outcome| matches!(outcome, Outcome::Fail(_))),
        report.broken(Level::Must).count(),
        count(|outcome| matches!(outcome, Outcome::NotApplicable(_))),
        count(|outcome| matches!(outcome, Outcome::Skipped(_))),
    )
}
