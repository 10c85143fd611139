//! The operator's gateway bridge: found and checked, and never changed.

use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, State, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Adopted {
    pub(crate) bridge: String,
    /// The pods' bridge, whose packets come by patch ports.
    pub(crate) pods: String,
}

impl Kind for Adopted {
    fn identity(&self) -> String {
        format!("adopted bridge {}", self.bridge)
    }

    fn details(&self) -> String {
        ", as it is".to_owned()
    }

    fn state(&self, view: &View<'_>) -> State {
        let Self { bridge, pods } = self;
        let Actual { switch, links, .. } = view.actual;
        let Some(seen) = switch.bridges.get(bridge) else {
            return State::Waits(format!(
                "bridge {bridge} of Open vSwitch, which is the operator's"
            ));
        };
        if let Some(pods) = switch.bridges.get(pods)
            && pods.datapath != seen.datapath
        {
            return State::Waits(format!(
                "datapath_type {} of {bridge}, which has {}: there are no patch ports between \
                 datapaths",
                pods.datapath, seen.datapath
            ));
        }
        match links.get(bridge) {
            Some(link) if link.up => State::Well { ours: false },
            Some(_) => State::Waits(format!("link {bridge} up, which is the operator's")),
            None => State::Waits(format!("link {bridge}, which ovs-vswitchd creates")),
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        Vec::new()
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        Vec::new()
    }

    fn marked(_: &View<'_>) -> Vec<Item> {
        Vec::new()
    }
}
