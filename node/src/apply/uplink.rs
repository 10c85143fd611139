//! A change that cuts the machine off if it stays half made: executed under a guard, verified, and
//! undone at once if any of it fails.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use netlink_packet_core::NLM_F_REPLACE;
use netlink_packet_route::RouteNetlinkMessage;
use podwire_ovs::client::State;
use podwire_ovs::transact::TransactError;
use tracing::warn;

use super::{ApplyError, Machine};
use crate::actual::{gateways, switch};
use crate::diff::Step;
use crate::guard;
use crate::items::{Actual, Change, Item, Kind as _, Uplink};
use crate::manager::{self, Tells};
use crate::moved::{self, Deadline, Moved, MovedError, NicConfig, Phase};
use crate::reach;
use crate::settings::Places;

/// How a move is guarded.
#[derive(Clone)]
pub(crate) struct Moving {
    pub(crate) places: Places,
    /// After this time the guard undoes what is not confirmed.
    pub(crate) within: Duration,
    /// Whether a person confirms, and not this process once it has verified the new path.
    pub(crate) by_hand: bool,
    pub(crate) api: Option<kube::Client>,
}

/// Without its client, which has nothing to show.
impl std::fmt::Debug for Moving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            places,
            within,
            by_hand,
            api: _,
        } = self;
        let mut shown = f.debug_struct("Moving");
        shown.field("places", places).field("within", within);
        shown.field("by_hand", by_hand).finish_non_exhaustive()
    }
}

impl Moving {
    /// For what this process itself completes.
    pub(crate) const WITHIN: Duration = Duration::from_secs(60);

    pub(crate) fn of(places: &Places) -> Self {
        Self {
            places: places.clone(),
            within: Self::WITHIN,
            by_hand: false,
            api: None,
        }
    }
}

impl Machine {
    /// Executes a step of which `moved` is the record.
    pub(super) async fn guarded(
        &mut self,
        step: &Step,
        mut moved: Moved,
        actual: &Actual,
    ) -> Result<(), ApplyError> {
        let Moving {
            places,
            within,
            by_hand,
            ..
        } = self.moving.clone();
        let directory = &places.directory;
        let Some(_lock) = moved::lock(directory)? else {
            return Err(ApplyError::Moving);
        };
        // What was seen may be another's doing, who has ended meanwhile.
        if Moved::read(directory)? != actual.moved {
            return Err(ApplyError::Moving);
        }
        let makes = matches!(step, Step::Make(_));
        if let Some(why) = manager::hidden(&moved.nic) {
            return Err(ApplyError::Unsafe(why));
        }
        let deadline = Deadline::within(if makes { within } else { Moving::WITHIN });
        moved.phase = Phase::Moving(deadline.clone());
        moved.write(directory)?;
        super::fault();
        if let Err(error) = guard::start(&places, &deadline).await {
            Self::as_before(actual, directory)?;
            return Err(error.into());
        }
        super::fault();
        let kind = step.item().kind();
        if !makes {
            // What others have added since is in the record's new one.
            let own = actual.moved.as_ref().unwrap_or(&moved);
            let mut changes = kind.remove(actual);
            if let Err(error) = self.take_out(&mut changes).await {
                Self::as_before(actual, directory)?;
                return Err(error);
            }
            let (failed, left) = self.all(changes, &own.config).await;
            if let Some(error) = failed {
                return Err(error);
            }
            for text in left {
                warn!("{}: {text}", moved.nic);
            }
            Moved::forget(directory)?;
            return Ok(());
        }
        let made = self.moved_in(step, &moved, actual).await;
        let Err(error) = made else {
            if by_hand {
                moved.phase = Phase::Awaits(deadline);
                return Ok(moved.write(directory)?);
            }
            return self.confirm(moved).await;
        };
        warn!("moving {} back: {error}", moved.nic);
        // If this fails, too, the guard does it.
        for text in self.move_back(moved, &error.to_string(), actual).await? {
            warn!("{text}");
        }
        Err(ApplyError::MovedBack(Box::new(error)))
    }

    /// The record is again what it was: nothing was changed.
    fn as_before(actual: &Actual, directory: &Path) -> Result<(), MovedError> {
        match &actual.moved {
            Some(before) => before.write(directory),
            None => Moved::forget(directory),
        }
    }

    /// Takes the NIC out of its bridge before the rest of these changes, if the database answers.
    /// If it can't write that down, as on a full disk, nothing else may be changed: the NIC would
    /// stay in the bridge, without the addresses by which the machine is reached there.
    async fn take_out(&mut self, changes: &mut Vec<Change>) -> Result<(), ApplyError> {
        let mut all = changes.iter().enumerate();
        let switched = all.find_map(|(at, it)| match it {
            Change::Switch(change) => Some((at, change)),
            _ => None,
        });
        let Some((at, change)) = switched.filter(|_| self.client.state() == State::Synced) else {
            return Ok(());
        };
        match self.transact(change).await {
            Err(error @ ApplyError::Database(TransactError::Commit { .. })) => Err(error),
            // The kernel's part does not wait for an answer.
            Err(_) => Ok(()),
            Ok(()) => {
                changes.remove(at);
                super::fault();
                Ok(())
            }
        }
    }

    /// Records that the NIC stays, first where it outlives a boot.
    pub(crate) async fn confirm(&mut self, mut moved: Moved) -> Result<(), ApplyError> {
        let seen = switch(&self.client, None).uplink;
        let lasting = seen.and_then(|seen| seen.confirm(&moved.config));
        if let Some(change) = lasting {
            self.transact(&change).await?;
            super::fault();
        }
        moved.phase = Phase::Confirmed;
        Ok(moved.write(&self.moving.places.directory)?)
    }

    async fn moved_in(
        &mut self,
        step: &Step,
        moved: &Moved,
        actual: &Actual,
    ) -> Result<(), ApplyError> {
        for change in step.item().kind().make(actual) {
            self.change(change).await?;
            super::fault();
        }
        let places = self.moving.places.clone();
        guard::check(&places)?;
        let bridge = &moved.bridge;
        let index = actual.index(bridge).unwrap_or_default();
        for ip in gateways(&moved.config) {
            self.ask_gateway(bridge, index, ip).await?;
        }
        if let Some(api) = self.moving.api.clone() {
            reach::api_server(&api).await?;
        }
        super::fault();
        Ok(guard::check(&places)?)
    }

    /// Asks twice: the first answer may be lost while the bridge learns.
    async fn ask_gateway(&self, link: &str, index: u32, ip: IpAddr) -> Result<(), ApplyError> {
        if reach::gateway(link, index, ip).await.is_ok() {
            return Ok(());
        }
        Ok(reach::gateway(link, index, ip).await?)
    }

    /// Executes all changes, whatever fails, and returns the first failure. What the kernel refuses
    /// is tried again after the others: it may have waited for one of them. What it still refuses
    /// then, and the machine can be reached without, is no failure but named: others have added it,
    /// and nobody could undo a move that waits for it.
    async fn all(
        &mut self,
        changes: Vec<Change>,
        own: &NicConfig,
    ) -> (Option<ApplyError>, Vec<String>) {
        let (mut failed, mut refused, mut left) = (None, Vec::new(), Vec::new());
        for change in changes {
            let again = match &change {
                Change::Kernel(message, flags) => Some((message.clone(), *flags)),
                _ => None,
            };
            if let Err(error) = self.change(change).await {
                match again {
                    Some(again) => refused.push(again),
                    None => drop(failed.get_or_insert(error)),
                }
            }
            super::fault();
        }
        for (message, flags) in refused {
            let what = own.dispensable(&message);
            let Err(error) = self.change(Change::Kernel(message, flags)).await else {
                continue;
            };
            match what {
                Some(what) => left.push(format!("{what} is not moved back: {error}")),
                None => drop(failed.get_or_insert(error)),
            }
        }
        (failed, left)
    }

    /// Moves a NIC back, removes its bridge, and records why. All is tried, whatever fails; the
    /// first failure is returned, or what of others' could not be moved.
    pub(crate) async fn move_back(
        &mut self,
        mut moved: Moved,
        why: &str,
        actual: &Actual,
    ) -> Result<Vec<String>, ApplyError> {
        let mut actual = actual.clone();
        actual.switch = switch(&self.client, None);
        actual.moved = Some(moved.clone());
        actual.tells = Tells::look();
        let uplink = Uplink {
            nic: moved.nic.clone(),
            bridge: moved.bridge.clone(),
            moves: true,
            lacks: Vec::new(),
        };
        let mut changes = uplink.remove(&actual);
        self.take_out(&mut changes).await?;
        let mut all = changes.iter();
        let renewed = all.position(|it| matches!(it, Change::RenewedBack(_)));
        let renewals = changes.split_off(renewed.unwrap_or(changes.len()));
        let bridge = actual.switch.uplink.is_some();
        if bridge {
            let bridge = crate::items::Bridge {
                name: moved.bridge.clone(),
                ..Default::default()
            };
            changes.extend(Item::Bridge(bridge).kind().remove(&actual));
        }
        let (failed, left) = self.all(changes, &moved.config).await;
        if let Some(error) = failed {
            return Err(error);
        }
        moved.phase = Phase::RolledBack {
            why: why.to_owned(),
        };
        moved.write(&self.moving.places.directory)?;
        // It is back. A server that does not answer must not keep it waiting until the guard takes
        // this process for one that hangs.
        for change in renewals {
            if let Err(error) = self.change(change).await {
                warn!("{}: {error}", moved.nic);
            }
        }
        Ok(left)
    }
}

/// Whether the kernel's answer that something exists is success: what a request would create, or
/// change the other one into, is there as it should be.
pub(super) fn may_exist(message: &RouteNetlinkMessage, flags: u16) -> bool {
    match message {
        RouteNetlinkMessage::NewRule(_) => true,
        RouteNetlinkMessage::NewRoute(_) => flags & NLM_F_REPLACE != 0,
        _ => false,
    }
}
