//! podwire's own nftables table.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Actual, Change, Item, Kind, State, View, link};
use crate::firewall::{Table, delete, mark};
use crate::nft::{lasting, objects};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedTable {
    is_dormant: bool,
    /// The index of its link then: what the kernel has hooked to a link goes with it.
    link: Option<u32>,
    /// Chains: name and policy.
    chains: Vec<(String, String)>,
    /// Rules: chain and comment.
    rules: Vec<(String, String)>,
    /// Of all that nft lists of it, except handles and counters. Only nft knows how it lists what
    /// podwire has written; so what it lists at once afterwards is recorded, for comparison.
    pub(crate) digest: String,
}

impl ObservedTable {
    /// The table as nft(8) lists it.
    pub(crate) fn of(listed: &Value, link: Option<u32>) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut seen = Self {
            link,
            ..Self::default()
        };
        for object in objects(listed) {
            if let Some(table) = object.get("table") {
                // podwire's table has none, and nft 1.0.6 lists another text in place of dormant.
                seen.is_dormant = table.get("flags").is_some();
            } else if let Some(chain) = object.get("chain") {
                seen.chains
                    .push((text(&chain["name"]), text(&chain["policy"])));
            } else if let Some(rule) = object.get("rule") {
                let rule = (text(&rule["chain"]), text(&rule["comment"]));
                seen.rules.push(rule);
            }
        }
        let lasting: Vec<Value> = objects(listed)
            .filter_map(lasting)
            .map(Value::from)
            .collect();
        seen.digest = mark(&Value::from(lasting).to_string());
        seen
    }

    /// How it differs from what podwire has written, if it does.
    fn difference(&self, wanted: &Table, recorded: Option<&str>) -> Option<String> {
        if self.is_dormant {
            return Some("it is dormant".to_owned());
        }
        let not_accept = self.chains.iter().find(|(_, policy)| policy != "accept");
        if let Some((name, policy)) = not_accept {
            return Some(format!("chain {name} has policy {policy}"));
        }
        let seen: BTreeSet<&String> = self.chains.iter().map(|(name, _)| name).collect();
        let chains: BTreeSet<&String> = wanted.chains.iter().map(|(name, _)| name).collect();
        // nft lists chains in its own order, but a chain's rules in theirs.
        let of = |rules: &[(String, String)]| -> Vec<(String, String)> {
            let mut rules = rules.to_vec();
            rules.sort_by(|a, b| a.0.cmp(&b.0));
            rules
        };
        let is_it = seen == chains && of(&self.rules) == of(&wanted.marks());
        let is_it = is_it && recorded.is_none_or(|digest| digest == self.digest);
        (!is_it).then(|| "its rules are others".to_owned())
    }
}

impl Kind for Table {
    fn identity(&self) -> String {
        format!("nftables table {}", self.name)
    }

    fn details(&self) -> String {
        format!(", {} rules", self.rules.len())
    }

    fn state(&self, view: &View<'_>) -> State {
        let link = Self::link(&self.name);
        if let Some(awaited) = link.and_then(|link| link::lacks(view, link)) {
            return State::Waits(awaited);
        }
        let name = self.name.as_str();
        let Some(seen) = view.actual.tables.get(name) else {
            return State::Missing;
        };
        if let Some(link) = link.filter(|link| seen.link != view.actual.index(link)) {
            return State::Differs(format!("link {link} is another one"));
        }
        let recorded = view.actual.recorded_tables.get(name);
        match seen.difference(self, recorded.map(String::as_str)) {
            None => State::Well { ours: true },
            Some(difference) => State::Differs(difference),
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Nft("our table", self.script())]
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Nft("to delete our table", delete(&self.name))]
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let there = view.actual.tables.keys();
        there.map(|name| Self::named(name).into()).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nft_lists_is_read_as_it_was_written() {
        // In the format of nft 1.0.6.
        let listed = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"table": {"family": "inet", "name": "podwire-node", "handle": 1}},
            {"chain": {"name": "output", "hook": "output", "policy": "accept"}},
            {"rule": {"chain": "output", "handle": 9, "comment": "podwire 01", "expr": []}},
        ]});
        let seen = ObservedTable::of(&listed, None);
        let output = || "output".to_owned();
        assert_eq!(seen.chains, [(output(), "accept".to_owned())]);
        assert_eq!(seen.rules, [(output(), "podwire 01".to_owned())]);
    }
}
