//! Writes to Kubernetes: annotations, conditions, definitions of networks, Events.

use std::collections::VecDeque;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{ObjectMeta, Patch};
use podwire_apiserver::event::{Source, Warning, warn};
use podwire_apiserver::{create_at, delete_at, patch_at, patch_status, patch_status_at};
use podwire_cluster::annotations::{ANSWERS, NODE_SUBNETS, OVN_KUBERNETES, POD_NETWORKS, TO_HOST};
use podwire_cluster::condition::NETWORK_UNAVAILABLE;
use serde_json::{Value, json};
use smol_str::SmolStr;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::cluster::{Name, guard, version};
use crate::key::{Key, Of};
use crate::lease::Lease;

/// The reporter of Events. Without a host, the same one of several leaders is one Event.
pub(crate) const SOURCE: Source = Source {
    component: "podwire-controller",
    host: None,
};

/// Time limit of a request.
const REQUEST: Duration = Duration::from_secs(15);
/// Number of concurrent requests: as many as an API server grants one client without queueing them
/// (priority and fairness, a flow of the default level).
const AT_ONCE: usize = 32;
/// The approximate limit of waiting writes: above it, nothing is computed that would add to them.
const WAITING: usize = 1024;

/// Something to write about an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Write {
    /// The annotation of its addresses, only for the node or pod with this uid, and only while it
    /// has this version: the value repeats what others have written there.
    Annotation {
        uid: Name,
        version: u64,
        value: SmolStr,
    },
    /// The conditions of a policy, only while it has this uid and version, for the list repeats
    /// those of others. The controller's own one gets the time.
    Conditions {
        uid: Name,
        version: u64,
        value: SmolStr,
    },
    /// NetworkUnavailable=False, for a node.
    NetworkAvailable,
    /// The annotation of a node that what its pods answer to clients from outside comes back to its
    /// host, or its removal, and the removal of those of ovn-kubernetes' control plane; only while
    /// the node has this uid.
    Answers { uid: Name, to_host: bool },
    /// A custom resource is made, changed or removed: that of the key, or one that is made for it.
    Object { target: Key, change: Change },
    /// A warning for people.
    Warning {
        uid: Name,
        reason: &'static str,
        message: SmolStr,
    },
}

/// What is done with an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Change {
    /// It is made with this content.
    Create(SmolStr),
    /// A merge patch (RFC 7386), which names the uid and the version that it is for.
    Patch(SmolStr),
    /// It is removed, if it has this uid.
    Delete(Name),
}

impl Change {
    pub(crate) fn create(content: &Value) -> Self {
        Self::Create(content.to_string().into())
    }

    pub(crate) fn patch(patch: &Value) -> Self {
        Self::Patch(patch.to_string().into())
    }
}

impl Write {
    /// For a dry run: what is written about the object with this key, its name if it has one, and
    /// its content.
    pub(crate) fn described(&self, key: &Key) -> (&'static str, Option<String>, Value) {
        let json = |text: &str| serde_json::from_str(text).unwrap_or_else(|_| text.into());
        match self {
            Self::Annotation { value, .. } => {
                let name = match key.of {
                    Of::Node => NODE_SUBNETS,
                    _ => POD_NETWORKS,
                };
                ("annotation", Some(name.into()), json(value))
            }
            Self::Answers { to_host, .. } => {
                ("annotation", Some(ANSWERS.into()), answers(*to_host))
            }
            Self::Conditions { value, .. } => ("conditions", None, json(value)),
            Self::NetworkAvailable => {
                let name = NETWORK_UNAVAILABLE.into();
                ("condition", Some(name), "False".into())
            }
            Self::Object { target, change } => {
                let (what, content) = match change {
                    Change::Create(content) => ("create", json(content)),
                    Change::Patch(patch) => ("patch", json(patch)),
                    Change::Delete(_) => ("delete", Value::Null),
                };
                (what, Some(target.to_string()), content)
            }
            Self::Warning {
                reason, message, ..
            } => ("event", Some((*reason).into()), message.as_str().into()),
        }
    }
}

/// Its outcome.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) key: Key,
    pub(crate) write: Write,
    /// The resulting version of the object.
    pub(crate) result: Result<u64, WriteError>,
}

/// Why nothing was written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("{0}")]
    Api(#[from] kube::Error),
    #[error("the API server did not answer in {} s", REQUEST.as_secs())]
    Deadline,
    #[error("the lease may be another controller's by now")]
    Lease,
}

impl WriteError {
    /// The object is gone, or another has its name.
    pub(crate) fn is_too_late(&self) -> bool {
        matches!(self, Self::Api(error) if podwire_apiserver::is_too_late(error))
    }
}

/// Writes, a few at a time, the others in turn.
pub(crate) struct Writer {
    client: Client,
    lease: Lease,
    tasks: JoinSet<Written>,
    waiting: VecDeque<(Key, Write)>,
    /// The number sent.
    pub(crate) count: u64,
}

impl Writer {
    pub(crate) fn new(client: Client, lease: Lease) -> Self {
        Self {
            client,
            lease,
            tasks: JoinSet::new(),
            waiting: VecDeque::new(),
            count: 0,
        }
    }

    pub(crate) fn start(&mut self, key: Key, write: Write) {
        self.count += 1;
        self.waiting.push_back((key, write));
        self.fill();
    }

    fn fill(&mut self) {
        while self.tasks.len() < AT_ONCE
            && let Some((key, write)) = self.waiting.pop_front()
        {
            let (client, lease) = (self.client.clone(), self.lease.clone());
            self.tasks.spawn(async move {
                let sent = match lease.is_held() {
                    true => timeout(REQUEST, send(&client, &key, &write)).await,
                    false => Ok(Err(WriteError::Lease)),
                };
                let result = sent.unwrap_or(Err(WriteError::Deadline));
                Written { key, write, result }
            });
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() < WAITING
    }

    /// The next completed one; pending while there is none.
    pub(crate) async fn next(&mut self) -> Written {
        loop {
            match self.tasks.join_next().await {
                Some(Ok(written)) => {
                    self.fill();
                    return written;
                }
                // Nobody cancels them, and they don't panic; the next pass would find a lost one.
                Some(Err(_)) => self.fill(),
                None => std::future::pending().await,
            }
        }
    }
}

async fn send(client: &Client, key: &Key, write: &Write) -> Result<u64, WriteError> {
    let Key {
        namespace, name, ..
    } = key;
    match (key.of, write) {
        (
            Of::Node,
            Write::Annotation {
                uid,
                version,
                value,
            },
        ) => {
            let patch = Patch::Merge(annotation(NODE_SUBNETS, uid, *version, value));
            let node = patch_status::<Node>(client, None, name, &patch).await?;
            Ok(version_of(&node))
        }
        (
            Of::Pod,
            Write::Annotation {
                uid,
                version,
                value,
            },
        ) => {
            let patch = Patch::Merge(annotation(POD_NETWORKS, uid, *version, value));
            let pod = patch_status::<Pod>(client, Some(namespace), name, &patch).await?;
            Ok(version_of(&pod))
        }
        (
            _,
            Write::Conditions {
                uid,
                version,
                value,
            },
        ) => {
            let Some(path) = key.path() else {
                return Ok(0);
            };
            let patch = Patch::Merge(conditions(uid, *version, value));
            let policy = patch_status_at(client, path, name, &patch).await?;
            Ok(version_of(&policy))
        }
        (Of::Node, Write::Answers { uid, to_host }) => {
            let mut annotations = json!({ ANSWERS: answers(*to_host) });
            for key in OVN_KUBERNETES {
                annotations[key] = Value::Null;
            }
            let metadata = json!({ "uid": &**uid, "annotations": annotations });
            let patch = Patch::Merge(json!({ "metadata": metadata }));
            let node = patch_status::<Node>(client, None, name, &patch).await?;
            Ok(version_of(&node))
        }
        (_, Write::Object { target, change }) => {
            let Some(path) = target.path() else {
                return Ok(0);
            };
            let name = &target.name;
            let object = match change {
                Change::Create(content) => create_at(client, path, content.to_string()).await?,
                Change::Patch(patch) => {
                    let patch = serde_json::from_str(patch).unwrap_or_default();
                    patch_at(client, path, name, &Patch::Merge(patch)).await?
                }
                Change::Delete(uid) => {
                    delete_at(client, path, name, uid).await?;
                    return Ok(0);
                }
            };
            Ok(version_of(&object))
        }
        (Of::Node, Write::NetworkAvailable) => {
            let condition = json!({ "status": { "conditions": [{
                "type": NETWORK_UNAVAILABLE,
                "status": "False",
                "reason": "PodwireSubnet",
                "message": "podwire-controller has given the node its subnet and its logical \
                            switch",
            }] } });
            let patch = Patch::Strategic(condition);
            let node = patch_status::<Node>(client, None, name, &patch).await?;
            Ok(version_of(&node))
        }
        (
            _,
            Write::Warning {
                uid,
                reason,
                message,
            },
        ) => Ok(warn_of(client, key, uid, reason, message)
            .await
            .map(|()| 0)?),
        _ => Ok(0),
    }
}

/// The annotation's value; null removes it (RFC 7396).
fn answers(to_host: bool) -> Value {
    to_host.then_some(TO_HOST).into()
}

fn version_of(object: &ObjectMeta) -> u64 {
    version(object.resource_version.as_deref().unwrap_or_default())
}

/// Because of the uid, the server refuses it for another object with the same name; because of the
/// version, if anyone has changed the object since.
fn annotation(name: &str, uid: &str, version: u64, value: &str) -> Value {
    let mut metadata = guard(uid, version);
    metadata["annotations"] = json!({ name: value });
    json!({ "metadata": metadata })
}

/// As [`annotation`], with the time for conditions that have none: the controller's own.
fn conditions(uid: &str, version: u64, value: &str) -> Value {
    let mut all: Value = serde_json::from_str(value).unwrap_or_default();
    for condition in all.as_array_mut().into_iter().flatten() {
        if condition["lastTransitionTime"].is_null() {
            condition["lastTransitionTime"] = now();
        }
    }
    json!({ "metadata": guard(uid, version), "status": { "conditions": all } })
}

/// In whole seconds, as the API has times.
fn now() -> Value {
    let now = Timestamp::now().as_second();
    let now = Timestamp::from_second(now).unwrap_or_default();
    now.to_string().into()
}

async fn warn_of(
    client: &Client,
    key: &Key,
    uid: &str,
    reason: &'static str,
    message: &str,
) -> Result<(), kube::Error> {
    let Some((api, kind)) = key.of.kind() else {
        return Ok(());
    };
    let warning = Warning {
        api,
        kind,
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        uid: uid.to_owned(),
        reason,
        message: message.to_owned(),
    };
    warn(client, &SOURCE, &warning).await
}

#[cfg(test)]
mod tests {
    use podwire_ovs::client::{Client as Ovsdb, ClientConfig, Remote};

    use super::*;

    /// As after SIGCONT, when a successor has had the time to take the lease.
    #[tokio::test]
    async fn who_may_have_lost_the_lease_sends_nothing_that_waited() {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        server.set_nonblocking(true).unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        let client = Client::try_from(kube::Config::new(url.parse().unwrap())).unwrap();
        let nowhere = ClientConfig::new(Remote::Unix("/none".into()), "None", Vec::new());
        let lease = Lease::new(client.clone(), "default", "me", Ovsdb::start(nowhere));
        let mut writer = Writer::new(client, lease);
        writer.start(Key::node("node-a".into()), Write::NetworkAvailable);
        let written = writer.next().await;
        assert!(
            matches!(written.result, Err(WriteError::Lease)),
            "{written:?}"
        );
        assert!(server.accept().is_err(), "it connected");
    }
}
