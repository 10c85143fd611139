//! Removes attachments for which no DEL will come, without a runtime's list: containerd never calls
//! GC, and forgets sandboxes whose state it has lost.
//!
//! Two signs make an attachment a suspect: its port's link is gone, or the API server no longer has
//! its pod. Neither is proof. If no DEL comes within the grace period, everything is checked again:
//! a suspect of the first kind is removed only if it has neither link nor namespace, one of the
//! second only if the server, queried for this pod, does not have it (docs/decisions/0030).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::leftovers::leftover;
use crate::attach::{Error, Handles, remove};
use crate::journal::State;
use crate::observe::Repair;
use crate::plan::{AttachmentKey, ids};
use crate::pods::sources::PodName;
use crate::ports::PortRecord;

/// The result for a suspect.
enum Verdict {
    /// It is gone already, or live.
    Cleared,
    /// An operation works on it, or the API server can't be queried.
    Undecided,
    /// It can be removed, for this reason.
    Abandoned(String),
}

/// Removes abandoned attachments after the grace period. Never returns.
pub async fn collect_abandoned(node: Arc<Handles>) {
    let Some(grace) = node.config.gc_grace else {
        return;
    };
    let mut links = node.netlink.link_departures();
    let mut departures = node.sources.departures();
    node.settled().await;
    let mut suspects = Suspects::default();
    // Those that had lost their link earlier are gone by now (`stale`).
    let mut lost = departed(&node);
    loop {
        suspects.add(lost.drain(..));
        tokio::select! {
            link = links.recv() => match link {
                Ok(name) => lost.extend(node.ports.attachment_named(&name)),
                Err(RecvError::Lagged(_)) => {
                    lost.extend(node.ports.all().into_iter().filter_map(|record| record.key));
                }
                Err(RecvError::Closed) => return,
            },
            () = next_departure(&mut departures) => lost.extend(departed(&node)),
            () = suspects.next_due(grace) => {
                for key in suspects.take_due(grace) {
                    if judge_and_remove(&node, &key).await {
                        lost.push(key);
                    }
                }
            }
        }
    }
}

/// Since when each one is suspected.
#[derive(Default)]
struct Suspects(HashMap<AttachmentKey, Instant>);

impl Suspects {
    fn add(&mut self, keys: impl Iterator<Item = AttachmentKey>) {
        for key in keys {
            self.0.entry(key).or_insert_with(Instant::now);
        }
    }

    async fn next_due(&self, grace: Duration) {
        match self.0.values().min() {
            Some(since) => sleep_until(*since + grace).await,
            None => std::future::pending().await,
        }
    }

    fn take_due(&mut self, grace: Duration) -> Vec<AttachmentKey> {
        let due = |since: &Instant| since.elapsed() >= grace;
        self.0
            .extract_if(|_, since| due(since))
            .map(|(key, _)| key)
            .collect()
    }
}

async fn next_departure(departures: &mut Option<watch::Receiver<()>>) {
    if let Some(departures) = departures
        && departures.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

/// The attachments whose pod the API server is not known to have, judged by their rows alone,
/// because this runs at each departure. Whether the server had the pod before is checked later.
fn departed(node: &Handles) -> Vec<AttachmentKey> {
    let is_gone = |record: &PortRecord| {
        let uid = record.external_ids.get(ids::IFACE_ID_VER);
        let pod = record.pod.as_deref().and_then(PodName::parse);
        pod.zip(uid)
            .is_some_and(|(pod, uid)| node.sources.has(&pod, uid) == Some(false))
    };
    let records = node.ports.all().into_iter();
    records
        .filter(is_gone)
        .filter_map(|record| record.key)
        .collect()
}

/// Returns whether to check it again after another grace period.
async fn judge_and_remove(node: &Handles, key: &AttachmentKey) -> bool {
    if node.lines.is_busy(key) {
        return true;
    }
    // Outside the queue: a DEL that comes meanwhile need not wait for the API server.
    let gone_pod = gone_pod(node, key).await;
    let place = node.lines.join_sandbox(key);
    place.turn().await;
    match judge(node, key, gone_pod).await {
        Ok(Verdict::Cleared) => false,
        Ok(Verdict::Undecided) => true,
        Ok(Verdict::Abandoned(reason)) => match remove(node, key).await {
            Ok(()) => {
                node.metrics.repaired(Repair::Abandoned, 1);
                tracing::warn!(attachment = %key, reason, "removed, because no DEL came for it");
                false
            }
            Err(error) => {
                tracing::error!(attachment = %key, %error, "abandoned attachments stay for now");
                true
            }
        },
        Err(error) => {
            tracing::debug!(attachment = %key, %error, "can't find out whether it was abandoned");
            true
        }
    }
}

/// The uid and name of the attachment's pod, if the API server does not have it.
async fn gone_pod(
    node: &Handles,
    key: &AttachmentKey,
) -> Result<Option<(String, PodName)>, String> {
    let found = node.journal.find(key).map_err(|error| error.to_string())?;
    let Some((State::Live, entry)) = found else {
        return Ok(None);
    };
    let pod = entry.pod.as_deref().and_then(PodName::parse);
    let (Some(pod), Some(uid), Some(config)) = (pod, entry.api_uid, &node.config.sources.kube)
    else {
        return Ok(None);
    };
    match node.sources.has(&pod, &uid) {
        Some(true) => Ok(None),
        Some(false) => {
            let is_there = node.sources.ask_whether_there(config, &pod, &uid).await?;
            Ok((!is_there).then_some((uid, pod)))
        }
        None => Err("the API server's pods are not known just now".to_owned()),
    }
}

/// Decides about an attachment, in its turn.
async fn judge(
    node: &Handles,
    key: &AttachmentKey,
    gone_pod: Result<Option<(String, PodName)>, String>,
) -> Result<Verdict, Error> {
    if let Some(leftover) = leftover(node, key).await? {
        return Ok(Verdict::Abandoned(leftover.reason));
    }
    let (uid, pod) = match gone_pod {
        Ok(Some(gone)) => gone,
        Ok(None) => return Ok(Verdict::Cleared),
        Err(error) => {
            tracing::debug!(attachment = %key, error, "can't find out whether its pod is gone");
            return Ok(Verdict::Undecided);
        }
    };
    // Container ids are reused: it must still be the attachment that the server was queried about.
    Ok(match node.journal.find(key)? {
        Some((State::Live, entry)) if entry.api_uid.as_ref() == Some(&uid) => {
            Verdict::Abandoned(format!("the API server no longer has pod {pod} ({uid})"))
        }
        Some(_) => Verdict::Undecided,
        None => Verdict::Cleared,
    })
}
