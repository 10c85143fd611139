//! Rollback of an ADD: its steps are undone in reverse order.

use std::net::IpAddr;

use podwire_netns::HostLink;

use super::Error;
use super::call::Add;
use super::removal::{delegated_del, remove_rows};
use super::renewal::release_lease;
use crate::ipam::dhcp::Lease;
use crate::ipam::dhcp6::Lease6;
use crate::ipam::{Owner, Place};
use crate::journal::State;
use crate::plan::AttachmentKey;
use crate::ports::PortRecord;

/// What an ADD has done so far.
#[derive(Debug, Default)]
pub(super) struct Undo {
    done: Vec<Done>,
    /// The ADD's state in the intent log, once it is there.
    pub(super) noted: Option<State>,
    /// Ports of older sandboxes that this one's replaced, and that are not removed yet.
    pub(super) replaced: Vec<PortRecord>,
}

/// A step that can be undone.
#[derive(Debug)]
pub(super) enum Done {
    /// An address of the node's own subnets was allocated; the older sandbox of the pod, if any,
    /// had it before.
    Address(IpAddr, Option<Owner>),
    /// A delegated IPAM plugin was called.
    Delegated,
    /// A lease of an IPv4 address was taken.
    Lease(Place, Box<Lease>),
    /// A lease of an IPv6 address was taken.
    Lease6(Place, Box<Lease6>),
    /// Pairs were created; these are their host ends.
    Links(Vec<HostLink>),
    /// Rows were sent. They may exist whatever the answer was.
    Rows,
}

impl From<(Place, Lease)> for Done {
    fn from((place, lease): (Place, Lease)) -> Self {
        Self::Lease(place, Box::new(lease))
    }
}

impl From<(Place, Lease6)> for Done {
    fn from((place, lease): (Place, Lease6)) -> Self {
        Self::Lease6(place, Box::new(lease))
    }
}

impl Undo {
    pub(super) fn push(&mut self, done: Done) {
        self.done.push(done);
    }

    /// Leaves out the last step, which is undone already.
    pub(super) fn drop_last(&mut self) {
        self.done.pop();
    }

    /// The older sandboxes that had an address of the ADD until now.
    pub(super) fn older_sandboxes(&self) -> impl Iterator<Item = AttachmentKey> {
        self.done.iter().filter_map(|done| match done {
            Done::Address(_, Some(older)) => Some(key_of(older)),
            _ => None,
        })
    }
}

impl Add<'_> {
    /// Undoes what an ADD did. What can't be undone now stays in the intent log, and is undone when
    /// OVSDB is back.
    pub(super) async fn roll_back(&self, mut undo: Undo) {
        let (journal, key) = (&self.node.journal, &self.call.key);
        let mut errors = Vec::new();
        while let Some(done) = undo.done.pop() {
            errors.extend(self.undo(done, &mut undo.replaced).await.err());
        }
        let closed = match (undo.noted, errors.is_empty()) {
            (None, _) => Ok(()),
            (Some(State::Live), true) => journal.forget(key),
            (Some(_), true) => journal.abandon(key),
            (Some(_), false) => journal.advance(key, State::Adding, State::Deleting),
        };
        errors.extend(closed.err().map(Error::from));
        for error in errors {
            tracing::warn!(attachment = %key, %error, "roll-back is not complete");
        }
    }

    async fn undo(&self, done: Done, replaced: &mut Vec<PortRecord>) -> Result<(), Error> {
        match done {
            Done::Rows => {
                let removed = remove_rows(self.node, &self.call.key).await;
                self.note_ports_gone();
                self.put_back(std::mem::take(replaced)).await;
                removed?;
            }
            Done::Links(links) => {
                let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
                self.node.journal.retire_names(&names);
                self.node.netlink.delete(links).await?;
            }
            Done::Lease(place, lease) => {
                release_lease(self.node, &self.call.key, &place, &*lease).await;
            }
            Done::Lease6(place, lease) => {
                release_lease(self.node, &self.call.key, &place, &*lease).await;
            }
            Done::Delegated => delegated_del(self.node, self.call).await?,
            Done::Address(address, older) => {
                let owner = self.call.owner();
                match older.filter(|older| self.is_wired(older)) {
                    Some(older) => self.node.addresses.hand_back(address, &owner, &older),
                    None => self.node.addresses.release(address, &owner),
                }
            }
        }
        Ok(())
    }

    /// Neighbours may have learnt the addresses while the ports existed.
    fn note_ports_gone(&self) {
        if let Ok(Some((_, entry))) = self.node.journal.find(&self.call.key) {
            let ids = entry.ports.iter().map(|port| &port.external_ids);
            ids.for_each(|ids| self.node.last_holders.gone(ids));
        }
    }

    fn is_wired(&self, owner: &Owner) -> bool {
        !self.node.ports.find(&key_of(owner)).is_empty()
    }
}

fn key_of(owner: &Owner) -> AttachmentKey {
    AttachmentKey {
        network: owner.network.clone(),
        container_id: owner.container_id.clone(),
        ifname: owner.ifname.clone(),
    }
}
