//! Why a list or a watch ended.

use std::error::Error;
use std::time::Duration;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::bounds::TooLarge;
use crate::{brief, with_causes};

/// Time limit for the server's answer to a request.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// The longest resourceVersion, in bytes: it is part of a request's URL. Servers use numbers.
const LONGEST_VERSION: usize = 256;
/// HTTP 410: the server no longer has the requested resourceVersion.
const GONE: u16 = 410;

/// Why a list or a watch ended.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    text: String,
    /// The HTTP status of the server's refusal.
    status: Option<u16>,
}

impl Failure {
    /// Whether the server does not have this kind of objects.
    pub fn is_missing(&self) -> bool {
        self.status == Some(404)
    }

    /// Whether the server no longer has a resourceVersion.
    pub(super) fn is_gone(&self) -> bool {
        self.status == Some(GONE)
    }

    /// Whether the server's answer was larger than allowed; kube hides the error's type.
    pub(super) fn is_too_large(&self) -> bool {
        self.text.contains(&TooLarge::Answer.to_string())
    }

    pub(super) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            status: None,
        }
    }

    pub(super) fn of(error: &dyn Error) -> Self {
        Self::new(with_causes(error))
    }

    /// Of a Status that the server sent in a watch.
    pub(super) fn of_status(status: &RawValue) -> Self {
        let status: Value = serde_json::from_str(status.get()).unwrap_or_default();
        let text = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
        let code = status["code"].as_u64();
        let code = code.and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
        Self::refused("ended the watch", code, &text("reason"), &text("message"))
    }

    pub(crate) fn refused(what: &str, code: u16, reason: &str, message: &str) -> Self {
        let said = [reason, message].map(|text| brief(&text));
        let said = match said.each_ref().map(String::as_str) {
            ["", ""] => "it gave no reason".to_owned(),
            ["", one] | [one, ""] => one.to_owned(),
            [reason, message] => format!("{reason}: {message}"),
        };
        Self {
            text: format!("the server {what} with status {code}: {said}"),
            status: Some(code),
        }
    }

    pub(super) fn too_long(what: &str, value: &str) -> Self {
        Self::new(format!("the server sent a {what} of {} bytes", value.len()))
    }
}

/// A resourceVersion that can be sent back.
pub(super) fn bounded(version: String) -> Result<String, Failure> {
    match version.len() > LONGEST_VERSION {
        true => Err(Failure::too_long("resourceVersion", &version)),
        false => Ok(version),
    }
}

/// The answer to a request, or why there is none.
pub(super) async fn in_time<T>(
    answer: impl Future<Output = kube::Result<T>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(ANSWER_DEADLINE, answer).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(kube::Error::Api(status))) => Err(Failure::refused(
            "refused the request",
            status.code,
            &status.reason,
            &status.message,
        )),
        Ok(Err(error)) => Err(Failure::of(&error)),
        Err(_) => Err(Failure::new(format!(
            "the server did not answer within {} s",
            ANSWER_DEADLINE.as_secs()
        ))),
    }
}
