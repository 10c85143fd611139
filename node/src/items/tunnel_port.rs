//! The UDP port of this chassis' tunnels, in the southbound database.

use serde::{Deserialize, Serialize};

use super::{Actual, Change, Item, Kind, State, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TunnelPort {
    pub(crate) chassis: String,
    pub(crate) port: u16,
}

impl Kind for TunnelPort {
    fn identity(&self) -> String {
        format!("tunnels' UDP port of chassis {}", self.chassis)
    }

    fn details(&self) -> String {
        format!(" = {}", self.port)
    }

    fn state(&self, view: &View<'_>) -> State {
        let Some(ends) = &view.actual.switch.ends else {
            return State::Waits("the southbound database, which does not answer".to_owned());
        };
        let mut own = ends
            .iter()
            .filter(|end| end.chassis == self.chassis)
            .peekable();
        if own.peek().is_none() {
            let chassis = &self.chassis;
            return State::Waits(format!("chassis {chassis}, as which ovn-controller joins"));
        }
        let wanted = self.port.to_string();
        match own.find(|end| end.port.as_deref() != Some(&wanted)) {
            None => State::Well { ours: true },
            Some(end) => State::Differs(end.port.as_deref().unwrap_or("6081").to_owned()),
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        vec![Change::TunnelPort(self.clone())]
    }

    /// It is removed with the chassis.
    fn remove(&self, _: &Actual) -> Vec<Change> {
        Vec::new()
    }

    fn marked(_: &View<'_>) -> Vec<Item> {
        Vec::new()
    }
}
