//! Bundles for somebody elsewhere: files in one archive, without secrets.

mod files;
mod redact;

pub use files::{Files, Lack, Missing, Text, is_other_archive};
pub use redact::{REMOVED, Redactor, names_secret};
