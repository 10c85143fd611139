//! What lets packets pass firewalld.

use super::{Actual, Change, Item, KeyChange, Kind, State, View};
use crate::firewalld::Rule;

impl Kind for Rule {
    fn identity(&self) -> String {
        format!("firewalld: {self}")
    }

    fn state(&self, view: &View<'_>) -> State {
        let Some(seen) = view.actual.firewalld.as_ref() else {
            return State::Waits("firewalld".to_owned());
        };
        match seen.rules.get(self) {
            _ if seen.uplink_zone.is_none() => {
                State::Waits("firewalld, which does not answer".to_owned())
            }
            None => State::Missing,
            // Somebody may have decided what may pass there.
            Some(zone) => State::Well {
                ours: *zone == self.zone && self.is_ours(view),
            },
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        let own = Change::Key(KeyChange::Own(self.mark()));
        let own = self.permanent.then_some(own);
        own.into_iter()
            .chain([Change::Firewalld(self.clone(), true)])
            .collect()
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        let disown = Change::Key(KeyChange::Disown(self.mark()));
        let disown = self.permanent.then_some(disown);
        [Change::Firewalld(self.clone(), false)]
            .into_iter()
            .chain(disown)
            .collect()
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let rules = view.actual.firewalld.iter().flat_map(|seen| &seen.rules);
        rules
            .filter(|(rule, zone)| **zone == rule.zone && rule.is_ours(view))
            .map(|(rule, _)| rule.clone().into())
            .collect()
    }
}

impl Rule {
    fn is_ours(&self, view: &View<'_>) -> bool {
        view.made(self.clone()) || view.actual.switch.owned.contains_key(&self.mark())
    }
}
