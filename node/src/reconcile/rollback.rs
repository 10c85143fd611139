//! Moves a NIC back, with as little as possible: the kernel, Open vSwitch's database, the record.

use super::NodeError;
use crate::actual::switch;
use crate::apply::{ApplyError, Counts, Failure, Machine, Moving};
use crate::diff::Step;
use crate::items::{Actual, Item, Uplink};
use crate::journal::Journal;
use crate::moved::{Moved, NicConfig, Phase};
use crate::settings::Places;
use crate::snapshot::{Connections, Goal, SnapshotError};

/// A machine of which a NIC can be moved back.
pub(crate) struct Rollback {
    machine: Machine,
}

impl Rollback {
    /// Opens all that it needs. A database that does not answer is no error.
    pub(crate) async fn with_journal(places: &Places, journal: Journal) -> Result<Self, NodeError> {
        let goal = Goal::default();
        let connections = Connections::open(places, &goal).await?;
        let machine = Machine {
            client: connections.client,
            southbound: None,
            firewalld: None,
            handle: connections.handle,
            journal,
            owned: Default::default(),
            counts: Counts::default(),
            moving: Moving::of(places),
        };
        Ok(Self { machine })
    }

    /// A NIC in a bridge of podwire's, of which there is no record: it was moved before a boot, and
    /// its addresses are not on the bridge.
    pub(crate) fn left_over(&self) -> Option<Moved> {
        let uplink = switch(&self.machine.client, None).uplink?;
        Some(Moved {
            nic: uplink.nic,
            bridge: uplink.bridge,
            phase: Phase::Confirmed,
            config: NicConfig::default(),
        })
    }

    /// Records that it stays. Call this with the record's lock.
    pub(crate) async fn confirm(&mut self, moved: Moved) -> Result<(), NodeError> {
        let done = self.machine.confirm(moved.clone()).await;
        done.map_err(|error| failed(&moved, Step::Make, error))
    }

    /// Moves it back, and records why. Returns what of others' could not be moved. Call this with
    /// the record's lock.
    pub(crate) async fn back(&mut self, moved: Moved, why: &str) -> Result<Vec<String>, NodeError> {
        let Machine { client, handle, .. } = &self.machine;
        let actual = Actual::links_of_gateway(client, handle, &moved).await;
        let actual = actual.map_err(SnapshotError::from)?;
        let done = self.machine.move_back(moved.clone(), why, &actual).await;
        done.map_err(|error| failed(&moved, Step::Remove, error))
    }
}

fn failed(moved: &Moved, step: fn(Item) -> Step, error: ApplyError) -> NodeError {
    let uplink = Uplink {
        nic: moved.nic.clone(),
        bridge: moved.bridge.clone(),
        moves: true,
        lacks: Vec::new(),
    };
    let steps = vec![step(Item::Uplink(uplink))];
    NodeError::Apply(vec![Failure { steps, error }])
}
