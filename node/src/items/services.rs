//! The nftables table of services, which `run` maintains itself; an item only for its removal.

use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, State, View};
use crate::firewall::delete;
use crate::nft::{SERVICES as NAME, SERVICES_CHECK as CHECK};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Services;

impl Kind for Services {
    fn identity(&self) -> String {
        format!("nftables table {NAME}")
    }

    /// It is never planned.
    fn state(&self, _: &View<'_>) -> State {
        State::Surplus
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        Vec::new()
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        let script = delete(NAME) + &delete(CHECK);
        vec![Change::Nft("to delete our table", script)]
    }

    /// Whoever keeps the node role keeps its services.
    fn marked(view: &View<'_>) -> Vec<Item> {
        let is_surplus = view.actual.services && view.items.is_empty();
        is_surplus.then_some(Self.into()).into_iter().collect()
    }
}
