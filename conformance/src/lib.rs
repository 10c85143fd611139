//! A conformance suite for CNI plugins.
//!
//! It takes any plugin's binary and configuration (one that makes an interface, one that comes
//! later in a chain, or one that manages addresses), runs it as a runtime would, in namespaces of
//! its own, and checks it against the specification, versions 0.3.0 to 1.1.0: one [`Case`] for each
//! MUST and SHOULD that can be seen from outside, judged in every version that the plugin says it
//! speaks. It knows nothing of any particular plugin, and reads answers with a parser that is
//! nobody's own.
//!
//! ```no_run
//! use cni_conformance::{Selection, Subject, report, run};
//!
//! # fn main() -> Result<(), cni_conformance::Trouble> {
//! let conf = br#"{"name": "pods", "type": "ptp", "ipam": {"type": "host-local", "subnet":
//! "10.1.0.0/24"}}"#; let subject = Subject::new("/usr/lib/cni/ptp", conf)?; let report =
//! run(&subject, &Selection::default(), &mut |_, _| {})?; print!("{}", report::table(&report,
//! false)); assert!(report.conforms());
//! # Ok(())
//! # }
//! ```
//!
//! The rooms: [`spec`] has the words of the specification, `cases` what is asked of a plugin,
//! `bench` what a case works with (containers, calls, what is on the host), [`report`] the forms in
//! which the answer is told.

mod answer;
mod bench;
mod case;
mod cases;
mod chain;
mod container;
mod exec;
mod host;
mod ip;
pub mod ipam;
pub mod report;
mod run;
pub mod spec;
mod subject;
mod trouble;

pub use case::{Case, Outcome};
pub use cases::all as cases;
pub use run::{Finding, Report, Selection, run};
pub use subject::{Kind, Outage, Subject};
pub use trouble::Trouble;
