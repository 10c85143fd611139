//! A CNI request as the verbs get it: checked, but not yet executed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use podwire_cni::env::{Args, EnvError, Invocation};
use podwire_cni::spec::{CniVersion, Command, NetConf, Preamble, SpecError};
use podwire_cni::wire::{self, WireError};

use super::Handles;
use super::deadline::Deadline;
use super::on_bridge::OnBridge;
use super::turns::Cancel;
use crate::ipam::Owner;
use crate::ipam::delegate::{self, Delegate, DelegateError, Remarks};
use crate::observe::TraceParent;
use crate::plan::{AttachmentKey, PodRef, Subject};

/// Time limit of a delegated plugin.
pub(super) const DELEGATE_DEADLINE: Duration = Duration::from_secs(30);

/// One call of the plugin.
#[derive(Debug)]
pub struct Call {
    /// The verb.
    pub verb: Command,
    /// The attachment; container id and interface are empty for GC and STATUS.
    pub key: AttachmentKey,
    /// The pod, if the runtime passed one.
    pub pod: Option<PodRef>,
    /// The parameters, unchanged; CNI_NETNS may be empty for DEL.
    pub invocation: Invocation,
    /// CNI_ARGS, parsed.
    pub args: Args,
    /// The network configuration.
    pub conf: NetConf,
    /// The runtime's other variables, if the configuration delegates.
    pub environment: BTreeMap<String, String>,
    /// TRACEPARENT, if it is valid.
    pub traceparent: Option<TraceParent>,
    /// What IPAM plugins wrote to standard error.
    pub remarks: Remarks,
    /// Whether the plugin passes that on.
    pub takes_stderr: bool,
}

/// One ADD.
#[derive(Debug, Clone, Copy)]
pub(super) struct Add<'a> {
    pub(super) node: &'a Handles,
    pub(super) call: &'a Call,
    pub(super) cancel: &'a Arc<Cancel>,
    /// Where the port goes, if the configuration says so.
    pub(super) on_bridge: Option<&'a OnBridge>,
    pub(super) deadline: Deadline,
}

/// A refusal, and the version in which to report it.
#[derive(Debug)]
pub struct Refused {
    /// The configuration's version, if it could be read.
    pub version: CniVersion,
    /// The error.
    pub error: SpecError,
    /// Whether it is a DEL of what no attachment can have, which is a success.
    pub is_moot: bool,
}

impl Add<'_> {
    /// The bridge, if it is not the node's own.
    pub(super) fn other_bridge(&self) -> Option<&str> {
        self.on_bridge.and_then(OnBridge::other_bridge)
    }
}

impl Call {
    /// The attachment as the owner of addresses.
    pub(super) fn owner(&self) -> Owner {
        Owner::of(&self.key, self.pod.as_ref().map(ToString::to_string))
    }

    /// The plugin named in the configuration's `ipam` section, if it has one.
    pub(super) fn delegate<'a>(
        &'a self,
        node: &'a Handles,
    ) -> Result<Option<Delegate<'a>>, DelegateError> {
        let Some(ipam) = self.conf.ipam.as_ref().filter(|_| self.is_delegated()) else {
            return Ok(None);
        };
        let delegated = delegate::Call {
            invocation: &self.invocation,
            config: self.conf.raw.get(),
            environment: &self.environment,
            remarks: &self.remarks,
            timeout: DELEGATE_DEADLINE,
        };
        Delegate::find(&ipam.plugin_type, delegated, &node.spawner).map(Some)
    }

    /// Parses a request's body.
    ///
    /// # Errors
    /// The body is not of a supported wire version, the environment or the configuration is
    /// invalid, or the configuration's version lacks the verb.
    pub fn parse(body: &[u8]) -> Result<Self, Refused> {
        let request = wire::Request::decode(body).map_err(|error| Refused {
            version: CniVersion::LATEST,
            is_moot: matches!(error, WireError::Env(EnvError::NothingToDelete { .. })),
            error: error.into(),
        })?;
        let invocation = request.invocation;
        let text = request.config.get().as_bytes();
        // DEL must not fail where an ADD was refused: it would be repeated for ever.
        let conf = match invocation.command {
            Command::Del => NetConf::parse_for_del(text),
            _ => NetConf::parse(text),
        }
        .map_err(|error| Refused {
            version: Preamble::version(request.config.get()),
            error: error.into(),
            is_moot: false,
        })?;
        let version = conf.cni_version;
        let refused = |error| Refused {
            version,
            error,
            is_moot: false,
        };
        version
            .allows(invocation.command)
            .map_err(|error| refused(error.into()))?;
        let args = match (Args::parse(&invocation.args), invocation.command) {
            (Ok(args), _) => args,
            (Err(_), Command::Del | Command::Gc | Command::Status) => Args::default(),
            (Err(error), _) => return Err(refused(error.into())),
        };
        let pod = args.pod_name().map(|name| PodRef {
            namespace: args.pod_namespace().map(str::to_owned),
            name: name.to_owned(),
            uid: args.pod_uid().map(str::to_owned),
        });
        Ok(Self {
            verb: invocation.command,
            key: AttachmentKey {
                network: conf.name.clone(),
                container_id: invocation.container_id.clone(),
                ifname: invocation.ifname.clone(),
            },
            pod,
            invocation,
            args,
            conf,
            environment: request.environment,
            traceparent: request.traceparent.as_deref().and_then(traceparent),
            remarks: Remarks::default(),
            takes_stderr: request.takes_stderr,
        })
    }

    /// The DEL that undoes this ADD, in a form that [`Self::parse`] reads.
    pub fn as_del(&self) -> String {
        let request = wire::Request {
            invocation: Invocation {
                command: Command::Del,
                ..self.invocation.clone()
            },
            config: self.conf.raw.clone(),
            environment: self.environment.clone(),
            traceparent: None,
            takes_stderr: false,
        };
        String::from_utf8_lossy(&request.encode()).into_owned()
    }

    /// What the plan needs of it.
    pub fn subject(&self) -> Subject<'_> {
        Subject {
            key: &self.key,
            pod: self.pod.as_ref(),
            netns: &self.invocation.netns,
        }
    }
}

/// An invalid trace context counts as none (W3C Trace Context §3.2).
fn traceparent(text: &str) -> Option<TraceParent> {
    let parsed = TraceParent::parse(text);
    if let Err(error) = &parsed {
        tracing::debug!(text, %error, "TRACEPARENT passed over");
    }
    parsed.ok()
}
