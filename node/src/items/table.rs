//! podwire's own nftables table.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Actual, Change, Item, Kind, State, View};
use crate::firewall::{NAME, Table, delete};
use crate::nft::objects;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableSeen {
    /// The names of its chains.
    chains: Vec<String>,
    /// Rules: chain and comment.
    rules: Vec<(String, String)>,
}

impl TableSeen {
    /// The table as nft(8) lists it.
    pub(crate) fn of(listed: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut seen = Self::default();
        for object in objects(listed) {
            if let Some(chain) = object.get("chain") {
                seen.chains.push(text(&chain["name"]));
            } else if let Some(rule) = object.get("rule") {
                let rule = (text(&rule["chain"]), text(&rule["comment"]));
                seen.rules.push(rule);
            }
        }
        seen
    }
}

impl Kind for Table {
    fn identity(&self) -> String {
        format!("nftables table {NAME}")
    }

    fn details(&self) -> String {
        format!(", {} rules", self.rules.len())
    }

    fn state(&self, view: &View<'_>) -> State {
        let Some(seen) = &view.actual.table else {
            return State::Missing;
        };
        let chains: BTreeSet<&String> = self.chains.iter().map(|(name, _)| name).collect();
        // nft lists chains in its own order, but a chain's rules in theirs.
        let of = |rules: &[(String, String)]| -> Vec<(String, String)> {
            let mut rules = rules.to_vec();
            rules.sort_by(|a, b| a.0.cmp(&b.0));
            rules
        };
        let is_well = seen.chains.iter().collect::<BTreeSet<_>>() == chains
            && of(&seen.rules) == of(&self.marks());
        match is_well {
            true => State::Well { ours: true },
            false => State::Differs("its rules are others".to_owned()),
        }
    }

    fn make(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Nft("our table", self.script())]
    }

    fn remove(&self, _: &Actual) -> Vec<Change> {
        vec![Change::Nft("to delete our table", delete(NAME))]
    }

    fn marked(view: &View<'_>) -> Vec<Item> {
        let there = view.actual.table.as_ref();
        there.map(|_| Self::default().into()).into_iter().collect()
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
            {"chain": {"name": "output", "hook": "output"}},
            {"rule": {"chain": "output", "handle": 9, "comment": "podwire 01", "expr": []}},
        ]});
        let seen = TableSeen::of(&listed);
        assert_eq!(seen.chains, ["output"]);
        assert_eq!(seen.rules, [("output".to_owned(), "podwire 01".to_owned())]);
    }
}
