//! The error that a runtime gets, and the table of its codes.

use std::fmt;

use serde_json::{Value, json};

use super::CniVersion;

/// The number by which a runtime distinguishes errors (CNI spec, section 5, "Error"). Codes up to
/// 99 are the specification's, those from 100 are podwire's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub u32);

/// Declares the codes: each with its number and its meaning.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident = $number:literal, $meaning:literal;)+) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $code: Self = Self($number);)+

            /// Every code of podwire's errors, and its meaning; docs/ prints this table.
            pub const TABLE: &[(Self, &str)] = &[$((Self::$code, $meaning)),+];
        }
    };
}

codes! {
    /// The configuration's cniVersion is not served, or lacks the verb.
    INCOMPATIBLE_VERSION = 1, "CNI version not supported, or it lacks the verb";
    /// A member of the configuration requests something that podwire can't do.
    UNSUPPORTED_FIELD = 2, "unsupported member of the network configuration";
    /// The container is unknown or gone; the runtime need not clean up.
    UNKNOWN_CONTAINER = 3, "container unknown or gone";
    /// A required environment variable is missing or malformed.
    INVALID_ENVIRONMENT = 4, "missing or invalid environment variable";
    /// Reading or writing failed.
    IO = 5, "reading or writing failed";
    /// The input is not what it should be, such as JSON.
    DECODE = 6, "content could not be decoded";
    /// The network configuration is not valid.
    INVALID_CONFIG = 7, "invalid network configuration";
    /// A temporary condition; the runtime should try again.
    TRY_AGAIN = 11, "try again later";
    /// STATUS: an ADD would not be served.
    NOT_AVAILABLE = 50, "not available: an ADD would not be served";
    /// STATUS: an ADD would not be served, and running containers may have lost connectivity.
    NOT_AVAILABLE_DEGRADED = 51, "not available, and running pods may have lost connectivity";
    /// A newer sandbox of the same pod has taken its place.
    SUPERSEDED = 100, "superseded by a newer sandbox of the same pod";
    /// Another attachment has the requested address.
    ADDRESS_TAKEN = 102, "requested address taken";
    /// CHECK found a difference from prevResult.
    CHECK_MISMATCH = 103, "the attachment differs from prevResult";
    /// The pod's annotation is invalid, or requests the impossible.
    INVALID_ANNOTATION = 104, "invalid pod annotation";
    /// Open vSwitch refused the port.
    PORT_REFUSED = 105, "Open vSwitch refused the port";
    /// The kernel refused a step of the wiring.
    KERNEL_REFUSED = 106, "the kernel refused a step";
    /// An error in podwire itself.
    INTERNAL = 199, "an error in podwire itself";
}

impl ErrorCode {
    /// The meaning, from [`Self::TABLE`].
    pub fn meaning(self) -> Option<&'static str> {
        Self::TABLE
            .iter()
            .find(|(code, _)| *code == self)
            .map(|(_, meaning)| *meaning)
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An error in the form of the specification (section 5, "Error").
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{msg}{}{details}", if .details.is_empty() { "" } else { ": " })]
pub struct SpecError {
    /// The kind of failure.
    pub code: ErrorCode,
    /// One sentence that names the step and the object.
    pub msg: String,
    /// Further details; may be empty.
    pub details: String,
}

impl SpecError {
    /// The maximum length of `msg` and of `details`, in bytes. They may contain another program's
    /// text (an API server's, an IPAM plugin's); longer ones are cut.
    pub const MAX_TEXT: usize = 16 << 10;

    /// An error without details.
    pub fn new(code: ErrorCode, msg: impl Into<String>) -> Self {
        Self {
            code,
            msg: cut(msg.into()),
            details: String::new(),
        }
    }

    /// The same error with details.
    pub fn with_details(mut self, details: impl Into<String>) -> Self {
        self.details = cut(details.into());
        self
    }

    /// The JSON object for stdout. `details` is left out when empty.
    pub fn to_json(&self, version: CniVersion) -> String {
        let mut object = json!({
            "cniVersion": version.as_str(),
            "code": self.code.0,
            "msg": self.msg,
        });
        if !self.details.is_empty() {
            object["details"] = Value::from(self.details.as_str());
        }
        object.to_string()
    }

    /// Parses the error object that another plugin printed, or that the agent answered. `None` if
    /// it isn't an object with at least a number `code` and a string `msg`.
    pub fn from_json(bytes: &[u8]) -> Option<Self> {
        let object: Value = serde_json::from_slice(bytes).ok()?;
        let code = u32::try_from(object.get("code")?.as_u64()?).ok()?;
        let msg = object.get("msg")?.as_str()?;
        let details = object
            .get("details")
            .and_then(Value::as_str)
            .unwrap_or_default();
        Some(Self::new(ErrorCode(code), msg).with_details(details))
    }
}

/// At most [`SpecError::MAX_TEXT`] bytes of a text, with its full length.
fn cut(mut text: String) -> String {
    let length = text.len();
    if length > SpecError::MAX_TEXT {
        text.truncate(text.floor_char_boundary(SpecError::MAX_TEXT));
        text.push_str(&format!("… ({length} bytes)"));
    }
    text
}

/// A caller's text as an error message quotes it: in quotes, escaped, and cut at 80 characters, so
/// that a hostile value can't flood a log or garble a terminal.
pub fn excerpt(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        None => format!("{text:?}"),
        Some((end, _)) => format!("{:?}… ({} bytes)", &text[..end], text.len()),
    }
}

#[cfg(test)]
mod tests;
