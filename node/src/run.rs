//! `podwire node run`: what init does, and from then on everything put back that somebody removes
//! or changes.
//!
//! What others can't bring yet is waited for without an end: it is the service manager that knows
//! how long a machine may take to start. What somebody takes away again and again is put back ten
//! times a minute and then left for a while, as a fight helps neither side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{error, info, warn};

use crate::diff::{self, Finding, State, Step};
use crate::events::Changes;
use crate::keep::{Node, NodeError, awaited, refuse_foreign};
use crate::kept::Kept;
use crate::plan::Item;

/// How often an item is put back within `FIGHT_TIME` before it is left alone for `TRUCE`.
const FIGHTS: usize = 10;
const FIGHT_TIME: Duration = Duration::from_secs(60);
const TRUCE: Duration = Duration::from_secs(60);
/// When a step or look is tried again that failed.
const RETRY: Duration = Duration::from_secs(1);

/// Keeps the node until `stop`. `manager` takes what the service manager is to know (sd_notify(3)).
///
/// # Errors
/// Before the node is ready, what init fails for; later, that there are no more events.
pub(crate) async fn run(
    node: Node,
    kept: Kept,
    manager: &dyn Fn(&str),
    stop: impl Future<Output = ()>,
) -> Result<(), NodeError> {
    let mut keeper = Keeper {
        node,
        kept,
        manager,
        is_ready: false,
        planned: Vec::new(),
        fights: BTreeMap::new(),
        status: String::new(),
    };
    let mut stop = std::pin::pin!(stop);
    let mut changes = Changes::default();
    loop {
        let again = keeper.settle(changes).await?;
        let never = Instant::now() + FIGHT_TIME;
        changes = tokio::select! {
            () = &mut stop => break,
            changes = keeper.node.changes() => changes?,
            () = sleep_until(again.unwrap_or(never)), if again.is_some() => Changes::default(),
        };
    }
    manager("STOPPING=1\nSTATUS=ending; everything stays as it is");
    Ok(())
}

struct Keeper<'a> {
    node: Node,
    kept: Kept,
    manager: &'a dyn Fn(&str),
    is_ready: bool,
    /// The plan's items at the last look.
    planned: Vec<Item>,
    /// When each item was put back last, by its identity.
    fights: BTreeMap<String, Fight>,
    /// What was last said of how it stands.
    status: String,
}

#[derive(Debug, Default)]
struct Fight {
    /// Within the last `FIGHT_TIME`.
    rounds: VecDeque<Instant>,
    /// Until then the item is left alone.
    truce: Option<Instant>,
}

impl Keeper<'_> {
    /// Looks and takes steps until nothing is left to do; and when to look again without an event.
    async fn settle(&mut self, mut changes: Changes) -> Result<Option<Instant>, NodeError> {
        loop {
            let look = match self.node.look().await {
                Ok(look) => look,
                Err(error) => return Ok(Some(self.failed(&error))),
            };
            if !self.is_ready {
                refuse_foreign(&look.findings, false)?;
            }
            let steps = self.allowed(&look.findings);
            if steps.is_empty() {
                self.planned = look.plan.items;
                self.report(&look.findings);
                return Ok(self.truce_ends());
            }
            if let Err(error) = self.node.take(&steps, &look.observed).await {
                return Ok(Some(self.failed(&error)));
            }
            if self.is_ready {
                self.note(&look.findings, &steps, &changes);
            }
            changes = Changes::default();
            self.planned = look.plan.items;
        }
    }

    /// What could not be done is tried again soon, and said once.
    fn failed(&mut self, error: &NodeError) -> Instant {
        let text = format!("it failed and is tried again: {error}");
        if self.status != text {
            error!("{text}");
            (self.manager)(&format!("STATUS={}", text.replace('\n', " ")));
            self.status = text;
        }
        Instant::now() + RETRY
    }

    /// The steps that are not left alone for a while.
    fn allowed(&mut self, findings: &[Finding]) -> Vec<Step> {
        let now = Instant::now();
        for fight in self.fights.values_mut() {
            if fight.truce.is_some_and(|end| end <= now) {
                *fight = Fight::default();
            }
        }
        let in_truce = |step: &Step| {
            let item = match step {
                Step::Make(item) | Step::Remove(item) => item,
            };
            let fight = self.fights.get(&item.identity());
            fight.is_some_and(|fight| fight.truce.is_some())
        };
        let steps = diff::steps(findings).into_iter();
        steps.filter(|step| !in_truce(step)).collect()
    }

    /// Counts and tells what is put back, and by what it became necessary. What only follows a
    /// change of the machine, such as another address, is no fight.
    fn note(&mut self, findings: &[Finding], steps: &[Step], changes: &Changes) {
        let now = Instant::now();
        for step in steps {
            let item = match step {
                Step::Make(item) if self.planned.contains(item) => item,
                Step::Make(item) | Step::Remove(item) => {
                    info!("changed with the machine: {item}");
                    continue;
                }
            };
            let state = findings.iter().find(|finding| finding.item == *item);
            let was = match state.map(|finding| &finding.state) {
                Some(State::Differs(seen)) => format!("was {seen}"),
                _ => "was gone".to_owned(),
            };
            let by = by_whom(item, changes);
            warn!("put back {item}, which {was}; changed by {by}");
            let identity = item.identity();
            self.kept.put_back(kind(item), &identity, &was, &by);
            let fight = self.fights.entry(identity.clone()).or_default();
            fight.rounds.retain(|round| now - *round < FIGHT_TIME);
            fight.rounds.push_back(now);
            if fight.rounds.len() > FIGHTS {
                fight.truce = Some(now + TRUCE);
                let text = format!(
                    "{identity} was put back {FIGHTS} times within {} s, last against {by}; it is \
                     left alone for {} s",
                    FIGHT_TIME.as_secs(),
                    TRUCE.as_secs()
                );
                error!("{text}");
                self.kept.fight(text);
            }
        }
    }

    fn truce_ends(&self) -> Option<Instant> {
        self.fights.values().filter_map(|fight| fight.truce).min()
    }

    /// Says how it stands, when that has changed; and once, that the node is ready.
    fn report(&mut self, findings: &[Finding]) {
        let foreign = refuse_foreign(findings, true).err();
        let awaited = awaited(findings);
        let left: BTreeSet<&String> = self
            .fights
            .iter()
            .filter(|(_, fight)| fight.truce.is_some())
            .map(|(identity, _)| identity)
            .collect();
        let mut status = Vec::new();
        status.extend(foreign.map(|error| error.to_string()));
        status.extend(
            awaited
                .iter()
                .map(|line| format!("waiting for {}", line.trim())),
        );
        status.extend(
            left.iter()
                .map(|identity| format!("left alone: {identity}")),
        );
        let is_well = status.is_empty();
        if is_well {
            status.push(format!(
                "all {} items are as they should be",
                findings.len()
            ));
        }
        self.kept.well(is_well);
        let status = status.join("; ");
        if status != self.status {
            match is_well {
                true => info!("{status}"),
                false => warn!("{status}"),
            }
            (self.manager)(&format!("STATUS={}", status.replace('\n', " ")));
            self.status = status;
        }
        if is_well && !std::mem::replace(&mut self.is_ready, true) {
            info!("ready");
            (self.manager)("READY=1");
        }
    }
}

/// Which kind of item, for the metric.
fn kind(item: &Item) -> &'static str {
    match item {
        Item::Key { .. } => "key",
        Item::Port(_) => "port",
        Item::LinkUp => "link",
        Item::Address(_) => "address",
        Item::Neighbour { .. } => "neighbour",
        Item::Route { .. } => "route",
        Item::Sysctl { .. } => "sysctl",
        Item::Table(_) => "table",
    }
}

/// Who may have changed an item, by what the kernel says of the changes that came together.
fn by_whom(item: &Item, changes: &Changes) -> String {
    let names = match item {
        Item::Key { .. } | Item::Port(_) => {
            return "a client of Open vSwitch's database".to_owned();
        }
        Item::Table(_) => &changes.firewall,
        _ => &changes.processes,
    };
    match names.len() {
        0 => "somebody whom the kernel does not name".to_owned(),
        _ => names.iter().cloned().collect::<Vec<_>>().join(" or "),
    }
}
