//! Roll-back of an ADD: its steps are undone in reverse order.

use std::net::IpAddr;
use std::time::Instant;

use super::intent::owner;
use super::{Agent, Call, Error};
use crate::ipam::Owner;
use crate::journal::State;
use crate::netns::HostLink;
use crate::observe::Trace;
use crate::plan::AttachmentKey;
use crate::ports::PortRecord;

/// What an ADD has done so far.
#[derive(Debug, Default)]
pub(super) struct Undo {
    done: Vec<Done>,
    /// The state in which the intent log has the ADD, once it has it.
    pub(super) noted: Option<State>,
    /// Ports of older sandboxes that gave way to this one's, and are not removed yet.
    pub(super) replaced: Vec<PortRecord>,
}

/// A step that can be undone.
#[derive(Debug)]
pub(super) enum Done {
    /// An address of the node's own subnets is held, which that older sandbox of the pod had
    /// before.
    Address(IpAddr, Option<Owner>),
    /// A delegated IPAM plugin was asked.
    Delegated,
    /// Pairs were made; these are their host ends.
    Links(Vec<HostLink>),
    /// Rows were sent. They may be there whatever the answer was.
    Rows,
}

impl Undo {
    pub(super) fn push(&mut self, done: Done) {
        self.done.push(done);
    }
}

impl Agent {
    /// Undoes what an ADD did. What can't be undone now stays in the intent log, and is undone when
    /// OVSDB is there again.
    pub(super) async fn roll_back(&self, call: &Call, mut undo: Undo, trace: &mut Trace) {
        let began = Instant::now();
        let mut errors = Vec::new();
        while let Some(done) = undo.done.pop() {
            errors.extend(self.undo(call, done, &mut undo.replaced).await.err());
        }
        let closed = match (undo.noted, errors.is_empty()) {
            (None, _) => Ok(()),
            (Some(State::Live), true) => self.journal.forget(&call.key),
            (Some(_), true) => self.journal.abandon(&call.key),
            (Some(_), false) => {
                let key = &call.key;
                self.journal.advance(key, State::Adding, State::Deleting)
            }
        };
        errors.extend(closed.err().map(Error::from));
        for error in errors {
            tracing::warn!(attachment = %call.key, %error, "roll-back is not complete");
        }
        trace.phase("roll back", began);
    }

    async fn undo(
        &self,
        call: &Call,
        done: Done,
        replaced: &mut Vec<PortRecord>,
    ) -> Result<(), Error> {
        match done {
            Done::Rows => {
                let removed = self.remove_rows(&call.key).await;
                self.put_back(std::mem::take(replaced)).await;
                removed?;
            }
            Done::Links(links) => {
                let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
                self.journal.retire_names(&names);
                self.netlink.delete(links).await?;
            }
            Done::Delegated => self.delegated_del(call).await?,
            Done::Address(address, older) => {
                let owner = owner(call);
                match older.filter(|older| self.is_wired(older)) {
                    Some(older) => self.addresses.hand_back(address, &owner, &older),
                    None => self.addresses.release(address, &owner),
                }
            }
        }
        Ok(())
    }

    fn is_wired(&self, owner: &Owner) -> bool {
        let key = AttachmentKey {
            network: owner.network.clone(),
            container_id: owner.container_id.clone(),
            ifname: owner.ifname.clone(),
        };
        !self.ports.find(&key).is_empty()
    }
}
