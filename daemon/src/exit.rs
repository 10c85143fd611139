//! What the exit code of a command means: the same in all of podwire's.

use std::process::ExitCode;

/// The codes, for the help texts.
pub const EXIT_CODES: &str = "\
Exit codes: 0 all is well, 1 something is wrong or to be done, 2 wrong usage,
3 who must be asked does not answer, 4 there is no such object.";

/// The end of a command that was used rightly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// All is well.
    Well = 0,
    /// Something is wrong, or there is something to do.
    Unwell = 1,
    /// A flag, a variable, or a file that was given has a mistake.
    Usage = 2,
    /// Who must be asked does not answer, or answers with an error: nothing is known.
    Blind = 3,
    /// There is no such pod, policy or network.
    NotFound = 4,
}

impl Exit {
    /// [`Exit::Well`] or [`Exit::Unwell`].
    #[must_use]
    pub fn by_health(is_well: bool) -> Self {
        if is_well { Self::Well } else { Self::Unwell }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
