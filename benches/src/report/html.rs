//! The report as one page that needs nothing else.

use super::{Report, table};

/// The page.
pub fn page(report: &Report) -> String {
    format!("<pre>{}</pre>", table::table(report))
}
