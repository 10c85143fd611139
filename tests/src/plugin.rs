//! The plugin's side of a runtime: network configurations, and what came of an exec.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::{Value, json};

use crate::Failure;
use crate::process::Finished;

/// The capability by which containerd hands a pod's annotations over.
pub(crate) const ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";

/// A minimal network configuration of CNI 1.1.0.
pub fn conf() -> Value {
    conf_of_version("1.1.0")
}

/// A minimal network configuration of a CNI version.
pub fn conf_of_version(version: &str) -> Value {
    json!({"cniVersion": version, "name": "pods", "type": "podwire-cni",
        "capabilities": {(ANNOTATIONS): true}})
}

/// One exec of the plugin, ended.
#[derive(Debug)]
pub struct PluginRun {
    /// CNI_COMMAND.
    pub command: String,
    /// CNI_CONTAINERID.
    pub container: String,
    /// How it ended and what it printed.
    pub finished: Finished,
}

/// An error as the specification has plugins print it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CniError {
    /// The CNI version that it is printed in.
    pub cni_version: String,
    /// The error code.
    pub code: u64,
    /// The short message.
    pub msg: String,
    /// The details; empty when there are none.
    pub details: String,
}

impl CniError {
    /// Panics unless message and details together name all of these.
    #[track_caller]
    pub fn assert_names(&self, words: &[&str]) {
        let text = format!("{} {}", self.msg, self.details);
        assert!(
            words.iter().all(|word| text.contains(word)),
            "{self:?} does not name {words:?}"
        );
    }
}

/// The addresses of an ADD's result, without their prefix lengths.
///
/// # Errors
/// [`Failure::Unlike`] for a result without `ips`, or in which one has no address.
pub fn addresses(result: &Value) -> Result<Vec<IpAddr>, Failure> {
    let address = |ip: &Value| ip["address"].as_str()?.split('/').next()?.parse().ok();
    let ips = result["ips"].as_array();
    let addresses = ips.and_then(|ips| ips.iter().map(address).collect());
    addresses.ok_or_else(|| Failure::Unlike {
        object: "an ADD's result".into(),
        expected: "ips with an address each".into(),
        seen: result.to_string(),
    })
}

impl PluginRun {
    /// From just before the fork until the plugin was reaped.
    pub fn duration(&self) -> Duration {
        self.finished.duration
    }

    /// Whether it succeeded.
    pub fn succeeded(&self) -> bool {
        self.finished.status.success()
    }

    /// The result of a plugin that must have succeeded; `null` when it printed nothing.
    #[track_caller]
    pub fn success(&self) -> Value {
        assert!(
            self.succeeded(),
            "{}",
            self.wrong("it should have succeeded")
        );
        match serde_json::from_str(&self.finished.stdout) {
            _ if self.finished.stdout.is_empty() => Value::Null,
            Ok(result) => result,
            Err(error) => panic!(
                "{}",
                self.wrong(&format!("its output is not JSON: {error}"))
            ),
        }
    }

    /// The error of a plugin that must have failed, with nothing but one error on its output.
    #[track_caller]
    pub fn error(&self) -> CniError {
        assert!(!self.succeeded(), "{}", self.wrong("it should have failed"));
        let error = || {
            let printed: Value = serde_json::from_str(&self.finished.stdout).ok()?;
            let text = |member: &str| printed[member].as_str().map(str::to_owned);
            Some(CniError {
                cni_version: text("cniVersion")?,
                code: printed["code"].as_u64()?,
                msg: text("msg").filter(|msg| !msg.is_empty())?,
                details: text("details").unwrap_or_default(),
            })
        };
        match error() {
            Some(error) => error,
            None => panic!(
                "{}",
                self.wrong("its output is no JSON with cniVersion, code and msg")
            ),
        }
    }

    fn wrong(&self, detail: &str) -> String {
        let Finished {
            status,
            stdout,
            stderr,
            ..
        } = &self.finished;
        let container: String = self.container.chars().take(12).collect();
        format!(
            "{} of {container}: {detail}: {status}, stdout {stdout:?}, stderr {stderr:?}",
            self.command
        )
    }
}
