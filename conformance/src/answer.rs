//! A plugin's answer, parsed with as few assumptions as possible.

use serde_json::Value;

use crate::case::{Held, Verdict, broken, require};
use crate::exec::{End, Ended};

/// One exec of the plugin, ended.
#[derive(Debug)]
pub(crate) struct Ran {
    verb: String,
    ended: Ended,
}

/// An exec that ended with another status than 0.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) error: Option<CniError>,
    story: String,
}

/// The error structure (section 5, "Error").
#[derive(Clone, Debug)]
pub(crate) struct CniError {
    pub(crate) version: Option<String>,
    pub(crate) code: u64,
    pub(crate) msg: String,
    pub(crate) details: String,
}

impl Ran {
    pub(crate) fn new(verb: &str, ended: Ended) -> Ran {
        Ran {
            verb: verb.into(),
            ended,
        }
    }

    pub(crate) fn is_success(&self) -> bool {
        self.ended.end == End::Exit(0)
    }

    pub(crate) fn stdout(&self) -> &[u8] {
        &self.ended.stdout
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.ended.stderr).into_owned()
    }

    /// It must have exited with status 0.
    pub(crate) fn success(&self) -> Held {
        require(self.is_success(), || self.story())
    }

    /// It must have exited with status 0 and printed one JSON object, and nothing else.
    pub(crate) fn object(&self) -> Result<Value, Verdict> {
        self.success()?;
        match serde_json::from_slice(&self.ended.stdout) {
            Ok(object @ Value::Object(_)) => Ok(object),
            Ok(_) => broken(format!("{}, not an object", self.story())),
            Err(error) => broken(format!("{}, not one JSON object: {error}", self.story())),
        }
    }

    /// It must have exited, by itself, with another status than 0.
    pub(crate) fn refusal(&self) -> Result<Refusal, Verdict> {
        match self.ended.end {
            End::Exit(0) => broken(format!("{}; an error was due", self.story())),
            End::Exit(_) => Ok(Refusal {
                error: error(&self.ended.stdout),
                story: self.story(),
            }),
            End::Signal(_) | End::Late(_) => broken(self.story()),
        }
    }

    /// What happened, for a reader who has nothing else.
    pub(crate) fn story(&self) -> String {
        let printed = match error(&self.ended.stdout) {
            Some(error) => error.shown(),
            None if self.ended.stdout.is_empty() => {
                let stderr = self.stderr();
                match stderr.trim() {
                    "" => "nothing printed".into(),
                    said => format!("stderr {}", excerpt(said)),
                }
            }
            None => format!(
                "stdout {}",
                excerpt(&String::from_utf8_lossy(&self.ended.stdout))
            ),
        };
        format!("{} {}: {printed}", self.verb, self.ended.end)
    }
}

impl Refusal {
    /// Standard output must have been the error structure.
    pub(crate) fn error(&self) -> Result<&CniError, Verdict> {
        match &self.error {
            Some(error) => Ok(error),
            None => broken(format!(
                "{}; that is no object with `code` and `msg`",
                self.story
            )),
        }
    }

    /// The error must bear one of these codes.
    pub(crate) fn coded(&self, codes: &[u64]) -> Held {
        let error = self.error()?;
        let wanted: Vec<String> = codes.iter().map(u64::to_string).collect();
        require(codes.contains(&error.code), || {
            format!("{}; code {} was due", self.story, wanted.join(" or "))
        })
    }
}

impl CniError {
    fn shown(&self) -> String {
        let details = match self.details.as_str() {
            "" => String::new(),
            details => format!(" ({})", excerpt(details)),
        };
        format!("code {}, {}{details}", self.code, excerpt(&self.msg))
    }
}

fn error(stdout: &[u8]) -> Option<CniError> {
    let object: Value = serde_json::from_slice(stdout).ok()?;
    let text = |member: &str| object[member].as_str().map(str::to_owned);
    Some(CniError {
        version: text("cniVersion"),
        code: object["code"].as_u64()?,
        msg: text("msg")?,
        details: text("details").unwrap_or_default(),
    })
}

/// A text in quotes and on one line, cut where it gets long.
pub(crate) fn excerpt(text: &str) -> String {
    const LONGEST: usize = 160;
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        None => format!("“{line}”"),
        Some((end, _)) => format!("“{}…”", &line[..end]),
    }
}
