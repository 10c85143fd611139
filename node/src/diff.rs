//! Compares the actual state with the plan: pure.

use std::collections::BTreeSet;

use crate::items::{Actual, Item, State, Undo, View};
use crate::plan::Plan;

/// An item and its state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) item: Item,
    pub(crate) state: State,
}

impl Finding {
    pub(crate) fn is_well(&self) -> bool {
        matches!(self.state, State::Well { .. })
    }
}

/// One change of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Make(Item),
    Remove(Item),
}

impl Step {
    pub(crate) fn item(&self) -> &Item {
        let (Self::Make(item) | Self::Remove(item)) = self;
        item
    }
}

/// Every item of the plan in order, then those of podwire's that are not in it. What exists stays
/// in a conflict, and what is missing is not made.
pub(crate) fn findings(
    plan: &Plan,
    actual: &Actual,
    journal: &[Undo],
    take_over: bool,
) -> Vec<Finding> {
    let view = View {
        items: &plan.items,
        actual,
        journal,
        take_over,
    };
    let wanted = plan.items.iter().map(|item| {
        let state = item.kind().state(&view);
        let mut conflicts = plan.conflicts.iter();
        let state = match conflicts.find(|conflict| conflict.blocks(item)) {
            Some(conflict) if !matches!(state, State::Well { .. }) => {
                State::Refused(conflict.setting.clone())
            }
            _ => state,
        };
        let item = item.clone();
        Finding { item, state }
    });
    let identities: BTreeSet<String> = plan.items.iter().map(Item::identity).collect();
    let surplus = Item::marked(&view).into_iter();
    let surplus = surplus
        .filter(|item| !identities.contains(&item.identity()))
        .map(|item| Finding {
            item,
            state: State::Surplus,
        });
    wanted.chain(surplus).collect()
}

/// The steps that can be executed now: removals first, in reverse order of creation.
pub(crate) fn steps(findings: &[Finding]) -> Vec<Step> {
    let removals = findings.iter().rev();
    let removals = removals.filter(|finding| finding.state == State::Surplus);
    let made = findings.iter();
    let made = made.filter(|finding| matches!(finding.state, State::Missing | State::Differs(_)));
    removals
        .map(|finding| Step::Remove(finding.item.clone()))
        .chain(made.map(|finding| Step::Make(finding.item.clone())))
        .collect()
}
