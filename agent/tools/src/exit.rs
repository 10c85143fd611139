//! Exit codes, which depend on the health of what was checked.

use std::process::ExitCode;

/// The codes, for the help texts.
pub const EXIT_CODES: &str = "\
Exit codes: 0 all is well, 1 something is wrong, 2 wrong usage,
3 the agent does not answer, 4 no such pod.";

/// The result of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Well = 0,
    /// Something is wrong.
    Unwell = 1,
    /// The agent does not answer, or answers with an error.
    NoAgent = 3,
    /// There is no such pod.
    NotFound = 4,
}

impl Exit {
    /// [`Exit::Well`] or [`Exit::Unwell`].
    pub fn by_health(is_well: bool) -> Self {
        if is_well { Self::Well } else { Self::Unwell }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}
