//! The error that a runtime gets, and the table of its codes.

use std::fmt;

use serde_json::{Value, json};

use super::CniVersion;

/// The number by which a runtime distinguishes errors (CNI spec, section 5, "Error"). Codes up to
/// 99 are the specification's, those from 100 are podwire's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ErrorCode(pub u32);

impl ErrorCode {
    /// The configuration's cniVersion is not served, or lacks the verb.
    pub const INCOMPATIBLE_VERSION: Self = Self(1);
    /// A member of the configuration requests something that podwire can't do.
    pub const UNSUPPORTED_FIELD: Self = Self(2);
    /// The container is unknown or gone; the runtime need not clean up.
    pub const UNKNOWN_CONTAINER: Self = Self(3);
    /// A required environment variable is missing or malformed.
    pub const INVALID_ENVIRONMENT: Self = Self(4);
    /// Reading or writing failed.
    pub const IO: Self = Self(5);
    /// The input is not what it should be, such as JSON.
    pub const DECODE: Self = Self(6);
    /// The network configuration is not valid.
    pub const INVALID_CONFIG: Self = Self(7);
    /// A temporary condition; the runtime should try again.
    pub const TRY_AGAIN: Self = Self(11);
    /// STATUS: an ADD would not be served.
    pub const NOT_AVAILABLE: Self = Self(50);
    /// STATUS: an ADD would not be served, and running containers may have lost connectivity.
    pub const NOT_AVAILABLE_DEGRADED: Self = Self(51);
    /// A newer sandbox of the same pod has taken its place.
    pub const SUPERSEDED: Self = Self(100);
    /// Another attachment has the requested address.
    pub const ADDRESS_TAKEN: Self = Self(102);
    /// CHECK found a difference from prevResult.
    pub const CHECK_MISMATCH: Self = Self(103);
    /// The pod's annotation is invalid, or requests the impossible.
    pub const INVALID_ANNOTATION: Self = Self(104);
    /// Open vSwitch refused the port.
    pub const PORT_REFUSED: Self = Self(105);
    /// The kernel refused a step of the wiring.
    pub const KERNEL_REFUSED: Self = Self(106);
    /// An error in podwire itself.
    pub const INTERNAL: Self = Self(199);

    /// Every code of podwire's errors, and its meaning; docs/ prints this table.
    pub const TABLE: &[(Self, &str)] = &[
        (
            Self::INCOMPATIBLE_VERSION,
            "CNI version not supported, or it lacks the verb",
        ),
        (
            Self::UNSUPPORTED_FIELD,
            "unsupported member of the network configuration",
        ),
        (Self::UNKNOWN_CONTAINER, "container unknown or gone"),
        (
            Self::INVALID_ENVIRONMENT,
            "missing or invalid environment variable",
        ),
        (Self::IO, "reading or writing failed"),
        (Self::DECODE, "content could not be decoded"),
        (Self::INVALID_CONFIG, "invalid network configuration"),
        (Self::TRY_AGAIN, "try again later"),
        (
            Self::NOT_AVAILABLE,
            "not available: an ADD would not be served",
        ),
        (
            Self::NOT_AVAILABLE_DEGRADED,
            "not available, and running pods may have lost connectivity",
        ),
        (
            Self::SUPERSEDED,
            "superseded by a newer sandbox of the same pod",
        ),
        (Self::ADDRESS_TAKEN, "requested address taken"),
        (
            Self::CHECK_MISMATCH,
            "the attachment differs from prevResult",
        ),
        (Self::INVALID_ANNOTATION, "invalid pod annotation"),
        (Self::PORT_REFUSED, "Open vSwitch refused the port"),
        (Self::KERNEL_REFUSED, "the kernel refused a step"),
        (Self::INTERNAL, "an error in podwire itself"),
    ];

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
