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

/// How many findings of each outcome: passed, failed, not applicable, skipped.
fn counts(report: &Report) -> [usize; 4] {
    let count = |wanted: fn(&Outcome) -> bool| {
        let findings = report.findings.iter();
        findings.filter(|finding| wanted(&finding.outcome)).count()
    };
    [
        count(|outcome| matches!(outcome, Outcome::Pass)),
        count(|outcome| matches!(outcome, Outcome::Fail(_))),
        count(|outcome| matches!(outcome, Outcome::NotApplicable(_))),
        count(|outcome| matches!(outcome, Outcome::Skipped(_))),
    ]
}
