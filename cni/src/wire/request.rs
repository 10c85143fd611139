//! The request.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{MAX_CONFIG, MAX_REQUEST, WIRE_VERSION, WIRE_VERSIONS};
use crate::env::{EnvError, Invocation};
use crate::spec::{ErrorCode, SpecError, excerpt};

/// One call of the plugin, for the agent to serve.
#[derive(Debug, Clone)]
pub struct Request {
    /// The environment, checked.
    pub invocation: Invocation,
    /// The network configuration from stdin, byte for byte.
    pub config: Box<RawValue>,
    /// The other variables of the plugin's environment, if the configuration delegates: the
    /// delegated plugin must get them all (CNI spec, section 4).
    pub environment: BTreeMap<String, String>,
    /// The runtime's trace context (W3C Trace Context, from the variable TRACEPARENT).
    pub traceparent: Option<String>,
    /// Whether the reply may have bytes for stderr (see [`STDERR_HEADER`](super::STDERR_HEADER)).
    pub takes_stderr: bool,
}

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// It is larger than [`MAX_REQUEST`], or its configuration than [`MAX_CONFIG`]. Code 6.
    #[error("the {what} has {size} bytes, and at most {limit} are allowed")]
    TooLarge {
        /// "request" or "network configuration".
        what: &'static str,
        /// Its size in bytes.
        size: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The body is not JSON, or not in the format of its version. Code 6.
    #[error("the request is not of wire version {WIRE_VERSION}: {0}")]
    Malformed(String),
    /// The agent does not support the plugin's version. Code 1.
    #[error(
        "the plugin uses wire version {theirs}, but this agent supports {} to {}: install the \
         plugin that came with the agent",
        WIRE_VERSIONS.start(), WIRE_VERSIONS.end()
    )]
    Version {
        /// The request's version.
        theirs: u32,
    },
    /// The verb is unknown. Code 4.
    #[error("{} is not a CNI verb", excerpt(.0))]
    Command(String),
    /// What the plugin should have refused. Code 4.
    #[error(transparent)]
    Env(#[from] EnvError),
}

/// The request in its JSON form.
#[derive(Serialize, Deserialize)]
struct Body<'a> {
    version: u32,
    #[serde(borrow)]
    command: Cow<'a, str>,
    #[serde(borrow, default)]
    container_id: Cow<'a, str>,
    #[serde(borrow, default)]
    netns: Cow<'a, str>,
    #[serde(borrow, default)]
    ifname: Cow<'a, str>,
    #[serde(borrow, default)]
    args: Cow<'a, str>,
    #[serde(borrow, default)]
    path: Cow<'a, str>,
    #[serde(borrow, skip_serializing)]
    config: Cow<'a, RawValue>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    environment: BTreeMap<Cow<'a, str>, Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    traceparent: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    stderr: bool,
}

impl Request {
    /// The body of the POST.
    pub fn encode(&self) -> Vec<u8> {
        let (before, after) = self.envelope();
        [&before, self.config.get().as_bytes(), after].concat()
    }

    /// The body of the POST without the configuration: the parts before and after it. So the plugin
    /// can send a large one without a copy.
    pub fn envelope(&self) -> (Vec<u8>, &'static [u8]) {
        let call = &self.invocation;
        let body = Body {
            version: WIRE_VERSION,
            command: call.command.as_str().into(),
            container_id: call.container_id.as_str().into(),
            netns: call.netns.as_str().into(),
            ifname: call.ifname.as_str().into(),
            args: call.args.as_str().into(),
            path: call.path.as_str().into(),
            config: Cow::Borrowed(&self.config),
            environment: self
                .environment
                .iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            traceparent: self.traceparent.as_deref().map(Cow::from),
            stderr: self.takes_stderr,
        };
        let mut before = serde_json::to_vec(&body).expect("strings and a number always serialise");
        before.pop();
        before.extend_from_slice(b",\"config\":");
        (before, b"}")
    }

    /// Parses the body of a POST. Unknown members are ignored, so that a plugin of a later version
    /// can add some.
    ///
    /// # Errors
    /// See [`WireError`]. The version is checked first.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        limit("request", bytes.len(), MAX_REQUEST)?;
        let malformed = |error: serde_json::Error| WireError::Malformed(error.to_string());
        let Versioned { version } = serde_json::from_slice(bytes).map_err(malformed)?;
        if !WIRE_VERSIONS.contains(&version) {
            return Err(WireError::Version { theirs: version });
        }
        let body: Body<'_> = serde_json::from_slice(bytes).map_err(malformed)?;
        limit("network configuration", body.config.get().len(), MAX_CONFIG)?;
        let command = body
            .command
            .parse()
            .map_err(|()| WireError::Command(body.command.into_owned()))?;
        let invocation = Invocation {
            command,
            container_id: body.container_id.into_owned(),
            netns: body.netns.into_owned(),
            ifname: body.ifname.into_owned(),
            args: body.args.into_owned(),
            path: body.path.into_owned(),
        };
        Ok(Self {
            invocation: invocation.checked()?,
            config: body.config.into_owned(),
            environment: body
                .environment
                .into_iter()
                .map(|(name, value)| (name.into_owned(), value.into_owned()))
                .collect(),
            traceparent: body.traceparent.map(Cow::into_owned),
            takes_stderr: body.stderr,
        })
    }
}

/// All that is read of a request whose version is not known yet.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn limit(what: &'static str, size: usize, limit: usize) -> Result<(), WireError> {
    if size > limit {
        return Err(WireError::TooLarge { what, size, limit });
    }
    Ok(())
}

impl WireError {
    /// The code for the runtime.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::TooLarge { .. } | Self::Malformed(_) => ErrorCode::DECODE,
            Self::Version { .. } => ErrorCode::INCOMPATIBLE_VERSION,
            Self::Command(_) | Self::Env(_) => ErrorCode::INVALID_ENVIRONMENT,
        }
    }

    /// Its HTTP status: 413 for size, 426 for a version, 400 for the rest.
    pub fn status(&self) -> u16 {
        match self {
            Self::TooLarge { .. } => 413,
            Self::Version { .. } => 426,
            Self::Malformed(_) | Self::Command(_) | Self::Env(_) => 400,
        }
    }
}

impl From<WireError> for SpecError {
    fn from(error: WireError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests;
