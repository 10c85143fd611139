//! What is done to one attachment without a request of its own: finishing what was interrupted, bringing back a port that
//! the database lost, and carrying out a DEL that was left in the spool.

use std::sync::Arc;

use super::call::{pod_line, sandbox_line};
use super::del::{is_ours, namespace_of, pod_ends};
use super::turns::Place;
use super::{Agent, Call, Error};
use crate::journal::{Entry, State};
use crate::plan::AttachmentKey;

/// What became of an attachment whose port may have been lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// Its port was made again.
    Again,
    /// It was there, or somebody else sees to it.
    Untouched,
    /// Its link has gone, or a newer sandbox of its pod has its place: what was left of it was removed.
    Stale,
}

impl Agent {
    /// Finishes what the intent log says was begun, or removed without the database, if it still says so when its turn comes.
    pub(crate) async fn finish(&self, key: &AttachmentKey) -> Vec<Error> {
        let _place = self.quiet_turn(key).await;
        match self.journal.find(key) {
            Ok(Some((State::Live, _)) | None) => Vec::new(),
            Ok(Some((State::Adding | State::Deleting, _))) => self.remove(key).await,
            Err(error) => vec![error.into()],
        }
    }

    /// Looks after an attachment one of whose rows came or went, once the verbs that work on it have ended.
    ///
    /// A row that a living pod has lost, as by `ovs-vsctl del-port`, is made again. One that came for an attachment that
    /// is gone was sent by an ADD that failed, and ovsdb-server took it up late: it is removed.
    ///
    /// # Errors
    /// The kernel or the database refused; the attachment is left as it is.
    pub(crate) async fn look_after(&self, key: &AttachmentKey) -> Result<Restored, Error> {
        let place = self.quiet_turn(key).await;
        let rows = self.ports.find(key);
        match self.journal.state(key) {
            Some(State::Live) => match self.journal.find(key)? {
                Some((State::Live, entry)) if rows.len() < entry.ports.len() => {
                    drop(place);
                    self.restore(&entry).await
                }
                _ => Ok(Restored::Untouched),
            },
            Some(State::Adding) => Ok(Restored::Untouched),
            None if rows.is_empty() || self.has_link(&rows, None).await? => Ok(Restored::Untouched),
            Some(State::Deleting) | None => {
                Error::gather(self.remove(key).await)?;
                Ok(Restored::Stale)
            }
        }
    }

    /// Makes the ports of a living attachment again that the database no longer has.
    ///
    /// # Errors
    /// The kernel or the database refused; the attachment is left as it is.
    pub(crate) async fn restore(&self, known: &Entry) -> Result<Restored, Error> {
        let key = &known.key;
        let sandbox_line = sandbox_line(key);
        // An ADD that waits for us to end must not be waited for.
        if !self.is_settled() && self.sandbox_lines.is_busy(&sandbox_line) {
            return Ok(Restored::Untouched);
        }
        let pod = self
            .pod_lines
            .join_quietly(pod_line(key, known.pod.clone()), &key.container_id);
        let sandbox = self
            .sandbox_lines
            .join_quietly(sandbox_line, &key.container_id);
        if self.is_settled() {
            pod.turn().await;
        }
        sandbox.turn().await;
        match self.journal.find(key)? {
            Some((State::Live, entry)) => self.restore_in_turn(&entry).await,
            _ => Ok(Restored::Untouched),
        }
    }

    async fn restore_in_turn(&self, entry: &Entry) -> Result<Restored, Error> {
        let there = self.ports.find(&entry.key);
        let mut lost = Vec::new();
        let mut links = 0;
        for port in &entry.ports {
            let mut link = None;
            for name in &port.host_names {
                let found = self.netlink.host_link(name).await?;
                link = link.or(found.filter(|link| is_ours(link, Some(entry))));
            }
            let Some(link) = link else { continue };
            links += 1;
            if !there.iter().any(|record| record.name == link.name) {
                lost.push((link.name, port));
            }
        }
        if links == 0 && there.is_empty() {
            if self.has_pod_end(entry).await? {
                tracing::warn!(attachment = %entry.key, "it has lost its port, and its host end was renamed or moved: nothing is removed before its DEL");
                return Ok(Restored::Untouched);
            }
            Error::gather(self.remove(&entry.key).await)?;
            return Ok(Restored::Stale);
        }
        if lost.is_empty() {
            return Ok(Restored::Untouched);
        }
        let iface_ids = lost
            .iter()
            .filter_map(|(_, port)| port.external_ids.get(crate::plan::ids::IFACE_ID));
        let mut bearers = iface_ids.flat_map(|id| self.ports.bearing(id));
        if bearers.any(|record| record.key.as_ref() != Some(&entry.key)) {
            Error::gather(self.remove(&entry.key).await)?;
            return Ok(Restored::Stale);
        }
        for (name, port) in lost {
            self.ports
                .restore(&name, &port.external_ids, port.bandwidth)
                .await?;
        }
        Ok(Restored::Again)
    }

    /// Whether the pod still has its end of a pair.
    async fn has_pod_end(&self, entry: &Entry) -> Result<bool, Error> {
        let Some(netns) = namespace_of(entry) else {
            return Ok(false);
        };
        for (name, mac) in pod_ends(entry) {
            let seen = self.netlink.observe(Arc::clone(&netns), name).await?;
            if seen.is_some_and(|seen| seen.link.mac == Some(mac)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Carries out a DEL that was spooled at this time since boot, unless it is older than the attachment that it names:
    /// container ids come again with podman and cnitool.
    ///
    /// # Errors
    /// As those of a DEL.
    pub(crate) async fn carry_out(&self, del: &Call, written: u64) -> Result<(), Error> {
        let _place = self.quiet_turn(&del.key).await;
        match self.journal.find(&del.key) {
            Ok(Some((State::Adding | State::Live, entry))) if entry.since > written => {
                tracing::info!(attachment = %del.key, "a spooled DEL is older than the attachment: dropped");
                Ok(())
            }
            _ => Error::gather(self.remove_by(&del.key, Some(del)).await),
        }
    }

    /// A place in the sandbox's line, when its turn has come. At start there is none: only DELs do anything then, and they
    /// bear with each other; an ADD that waits in that line waits for us.
    async fn quiet_turn(&self, key: &AttachmentKey) -> Option<Place<(String, String)>> {
        if !self.is_settled() {
            return None;
        }
        let line = sandbox_line(key);
        let place = self.sandbox_lines.join_quietly(line, &key.container_id);
        place.turn().await;
        Some(place)
    }

    fn is_settled(&self) -> bool {
        *self.settled.borrow()
    }
}
