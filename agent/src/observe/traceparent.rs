//! TRACEPARENT: the trace that an operation belongs to, as the W3C's Trace Context has it (§3.2,
//! "Traceparent Header").
//!
//! A runtime may hand one over in the plugin's environment. One that breaks the format's rules is
//! passed over, as the specification demands: it must not cost a pod its network.

use std::fmt;

use serde::{Serialize, Serializer};

/// A trace context that keeps the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceParent {
    text: String,
}

/// What is wrong with a trace context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceParentError {
    /// It has not the four fields, each of its length.
    #[error("it is not of the form VERSION-TRACE_ID-PARENT_ID-FLAGS, in 2, 32, 16 and 2 digits")]
    Form,
    /// A digit is none, or in capitals.
    #[error("its {0} has characters other than 0-9 and a-f")]
    Digits(&'static str),
    /// The version that is none.
    #[error("its version is ff")]
    Version,
    /// An identifier that means nobody.
    #[error("its {0} is all zeros")]
    Zero(&'static str),
    /// Version 00 ends with the flags.
    #[error("it has more fields after its flags, which version 00 does not allow")]
    Trailing,
}

/// The fields, each with its place in the text.
const VERSION: Field = ("version", 0, 2);
const TRACE_ID: Field = ("trace id", 3, 35);
const PARENT_ID: Field = ("parent id", 36, 52);
const FLAGS: Field = ("flags", 53, 55);

type Field = (&'static str, usize, usize);

impl TraceParent {
    /// Reads a trace context. Of a later version the fields of version 00 are read, and what
    /// follows them is kept.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn parse(text: &str) -> Result<Self, TraceParentError> {
        let bytes = text.as_bytes();
        let dashes = [VERSION.2, TRACE_ID.2, PARENT_ID.2];
        if bytes.len() < FLAGS.2 || dashes.iter().any(|at| bytes[*at] != b'-') {
            return Err(TraceParentError::Form);
        }
        for (name, from, to) in [VERSION, TRACE_ID, PARENT_ID, FLAGS] {
            let digits = &bytes[from..to];
            if !digits
                .iter()
                .all(|it| matches!(it, b'0'..=b'9' | b'a'..=b'f'))
            {
                return Err(TraceParentError::Digits(name));
            }
        }
        for (name, from, to) in [TRACE_ID, PARENT_ID] {
            if bytes[from..to].iter().all(|it| *it == b'0') {
                return Err(TraceParentError::Zero(name));
            }
        }
        let goes_on = bytes.get(FLAGS.2);
        match (&bytes[..VERSION.2], goes_on) {
            (b"ff", _) => Err(TraceParentError::Version),
            (b"00", Some(_)) => Err(TraceParentError::Trailing),
            (_, None | Some(b'-')) => Ok(Self {
                text: text.to_owned(),
            }),
            (_, Some(_)) => Err(TraceParentError::Form),
        }
    }

    /// The whole trace's identifier, 32 digits.
    pub fn trace_id(&self) -> &str {
        self.field(TRACE_ID)
    }

    /// The identifier of the span that the operation is part of, 16 digits.
    pub fn parent_id(&self) -> &str {
        self.field(PARENT_ID)
    }

    fn field(&self, (_, from, to): Field) -> &str {
        // Checked to be ASCII and long enough when it was parsed.
        self.text.get(from..to).unwrap_or_default()
    }
}

impl fmt::Display for TraceParent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Serialize for TraceParent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_good_one_is_read_and_written_as_it_came() {
        let parent = TraceParent::parse(GOOD).unwrap();
        assert_eq!(parent.trace_id(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(parent.parent_id(), "b7ad6b7169203331");
        assert_eq!(parent.to_string(), GOOD);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_version_00_goes() {
        for later in [GOOD.replace("00-", "cc-"), format!("cc{}-more", &GOOD[2..])] {
            let parent = TraceParent::parse(&later).unwrap();
            assert_eq!(parent.parent_id(), "b7ad6b7169203331");
            assert_eq!(parent.to_string(), later);
        }
    }

    #[test]
    fn what_breaks_a_rule_is_refused_with_the_rule() {
        let zeros = |count| "0".repeat(count);
        for (text, problem) in [
            (String::new(), TraceParentError::Form),
            (GOOD[..54].to_owned(), TraceParentError::Form),
            (GOOD.replace('-', "_"), TraceParentError::Form),
            (format!("cc{}x", &GOOD[2..]), TraceParentError::Form),
            (format!("{GOOD}-more"), TraceParentError::Trailing),
            (format!("{GOOD}0"), TraceParentError::Trailing),
            (GOOD.replace("00-", "ff-"), TraceParentError::Version),
            (
                GOOD.replace("0af7", "0AF7"),
                TraceParentError::Digits("trace id"),
            ),
            (
                GOOD.replace("b7ad", "g7ad"),
                TraceParentError::Digits("parent id"),
            ),
            (
                GOOD.replace("-01", "-0é"),
                TraceParentError::Digits("flags"),
            ),
            (
                format!("00-{}-b7ad6b7169203331-01", zeros(32)),
                TraceParentError::Zero("trace id"),
            ),
            (
                GOOD.replace("b7ad6b7169203331", &zeros(16)),
                TraceParentError::Zero("parent id"),
            ),
        ] {
            assert_eq!(TraceParent::parse(&text), Err(problem), "{text}");
        }
    }
}
