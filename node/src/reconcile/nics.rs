//! NICs that change by themselves: the default route goes by another one, or one that is to be
//! moved is just being configured. Both are waited for before anything follows.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::OTHERS_LIMIT;
use crate::items::Item;
use crate::snapshot::{Goal, Snapshot};

/// How long the default route must be by another link alone before that becomes the uplink.
const EVIDENCE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(super) struct Nics {
    /// The link that the default route prefers to the uplink.
    preferred: Option<String>,
    /// Since when the uplink has none, and another link has.
    left: Option<Instant>,
    /// What a NIC lacks that is to be moved again, and since when.
    unsettled: Option<(Vec<String>, Instant)>,
}

impl Nics {
    /// Sets in the goal what has been so for long enough; returns whether the plan is another now.
    pub(super) fn settle(&mut self, goal: &mut Goal, snapshot: &Snapshot) -> bool {
        self.uplink(goal, snapshot) | self.moved(goal, snapshot)
    }

    /// Whether a NIC that is to be moved is waited for.
    pub(super) fn awaits(&self) -> bool {
        self.unsettled.is_some()
    }

    /// When one of them has been so for long enough.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let follows = self.left.map(|left| left + EVIDENCE);
        let moves = self.unsettled.as_ref();
        let moves = moves.map(|(_, since)| *since + OTHERS_LIMIT);
        follows.into_iter().chain(moves).min()
    }

    /// Keeps the uplink; follows the default route to another link once that alone has had one for
    /// a while. Returns whether it does now.
    fn uplink(&mut self, goal: &mut Goal, snapshot: &Snapshot) -> bool {
        let settings = goal.settings.as_ref();
        let is_named = settings
            .is_some_and(|settings| settings.interface.is_some() || settings.gateway().is_some());
        let Some(uplink) = snapshot.plan.uplink.clone().filter(|_| !is_named) else {
            return false;
        };
        let links = &snapshot.actual.default_links;
        let Some(first) = links.first().filter(|first| **first != uplink) else {
            (self.left, self.preferred) = (None, None);
            goal.uplink = Some(uplink);
            return false;
        };
        if self.preferred.as_ref() != Some(first) {
            let evidence = EVIDENCE.as_secs();
            warn!(
                "the default route is by {first}: {uplink} stays the uplink, unless it has none \
                 for {evidence} s"
            );
            self.preferred = Some(first.clone());
        }
        if links.contains(&uplink) {
            self.left = None;
            goal.uplink = Some(uplink);
            return false;
        }
        let left = *self.left.get_or_insert_with(Instant::now);
        let moves = left + EVIDENCE <= Instant::now();
        if moves {
            warn!("the uplink is {first} now, and no longer {uplink}");
            (self.left, self.preferred) = (None, None);
        }
        goal.uplink = Some(if moves { first.clone() } else { uplink });
        moves
    }

    /// Waits for what a NIC had when its move was confirmed, in an earlier boot: somebody is just
    /// configuring it, or it is configured otherwise now, if it lacks the same for a while. Returns
    /// whether it is that.
    fn moved(&mut self, goal: &mut Goal, snapshot: &Snapshot) -> bool {
        let lacks = snapshot.plan.items.iter().find_map(|item| match item {
            Item::Uplink(uplink) => Some(&uplink.lacks).filter(|it| !it.is_empty()),
            _ => None,
        });
        let before = self.unsettled.take();
        let Some(lacks) = lacks else {
            return false;
        };
        let before = before.filter(|(before, _)| before == lacks);
        let (_, since) = self
            .unsettled
            .insert(before.unwrap_or_else(|| (lacks.clone(), Instant::now())));
        goal.nic_is_settled = *since + OTHERS_LIMIT <= Instant::now();
        if goal.nic_is_settled {
            warn!(
                "the NIC no longer has {}: it is moved without",
                lacks.join(", ")
            );
        }
        goal.nic_is_settled
    }
}
