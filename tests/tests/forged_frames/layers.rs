//! What stops a forgery: found by taking away one layer after the other.

use std::collections::{BTreeMap, BTreeSet};

use crate::catalogue::Forgery;
use crate::ears::{Ears, Heard, told};

/// The agent's flows in the pods' bridge.
pub(crate) const FLOWS: &str = "the agent's flows";
/// OVN's port security.
pub(crate) const PORT_SECURITY: &str = "OVN's port security";
/// Whatever OVN is told.
pub(crate) const OVN: &str = "OVN, always";
/// The node role's table.
pub(crate) const NFTABLES: &str = "nftables of its node";
/// Of the host's end of a pod's link, on the userspace datapath.
pub(crate) const REVERSE_PATH: &str = "the kernel's reverse path filter";

/// A layer, and how to take it away.
pub(crate) type Layer<'a> = (&'static str, &'a dyn Fn());

/// Makes sure that nobody hears any of it, and says for each kind of forgery which layers stop it:
/// those without which it is heard. What nobody hears without any layer is stopped by `always`.
pub(crate) fn stopped_by(
    ears: &Ears<'_>,
    forgeries: &[Forgery],
    layers: &[Layer<'_>],
    always: Option<&'static str>,
) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let heard = told(&ears.hear(forgeries), forgeries);
    assert!(
        heard.is_empty(),
        "{} of {}: {heard:#?}",
        heard.len(),
        forgeries.len()
    );
    let mut before = Heard::new();
    let mut stopped = BTreeMap::<_, BTreeSet<_>>::new();
    for (layer, take_away) in layers {
        take_away();
        let heard = ears.hear(forgeries);
        for number in heard.keys().filter(|number| !before.contains_key(number)) {
            let what = forgeries[*number].what;
            stopped.entry(what).or_default().insert(*layer);
        }
        before = heard;
    }
    for Forgery { what, .. } in forgeries {
        let by = stopped.entry(*what).or_default();
        if let (true, Some(always)) = (by.is_empty(), always) {
            by.insert(always);
        }
        assert!(
            !by.is_empty(),
            "{what}: nobody hears it whatever is taken away"
        );
    }
    stopped
}

/// Makes sure that the table in docs/security.md says the same in this column.
pub(crate) fn assert_documented(
    stopped: &BTreeMap<&'static str, BTreeSet<&'static str>>,
    column: usize,
) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/security.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows: BTreeMap<&str, Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").collect::<Vec<_>>())
        .filter_map(|cells| Some((*cells.first()?, cells)))
        .collect();
    for (what, by) in stopped {
        let by: Vec<&str> = by.iter().copied().collect();
        let cell = rows.get(what).and_then(|cells| cells.get(column));
        assert_eq!(cell, Some(&&*by.join(", ")), "docs/security.md, {what}");
    }
}
