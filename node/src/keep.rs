//! The one loop: look, compare, take steps, and look again until nothing is left to do or an event
//! has to come first.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::Duration;

use netlink_sys::AsyncSocket as _;
use podwire_ovs::client::{Client, ClientConfig, RemoteError, WaitError};
use podwire_ovs::vswitch::DATABASE;
use tokio::time::{Instant, timeout_at};

use crate::apply::{ApplyError, Counts, Machine};
use crate::diff::{self, Finding, State, Step};
use crate::events::{Changes, Events, Links};
use crate::firewalld::{Firewalld, Rule};
use crate::journal::{Journal, JournalError, Undo};
use crate::observe::{ObserveError, Observed, SwitchSeen, Tables, tables};
use crate::plan::{AGENT_FILE, Item, Plan, UNITS, drop_in};
use crate::preflight::{self, Preflight};
use crate::settings::{Mode, Places, Settings};
use crate::{LINK, TUNNEL, southbound};

/// How long the database may take to answer.
const DATABASE_LIMIT: Duration = Duration::from_secs(10);
/// How long init waits for what others have to bring: ovn-controller the bridge, ovs-vswitchd the
/// link.
const OTHERS_LIMIT: Duration = Duration::from_secs(30);
/// How many rounds may take steps. A change takes two or three rounds; more means that somebody
/// undoes it. Rounds that only wait have a deadline instead.
const MOST_ROUNDS: usize = 20;

/// Why the node is not as it should be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error("{0}")]
    Plan(String),
    #[error("Open vSwitch's database {remote}: {source}; is Open vSwitch running?")]
    Database { remote: String, source: WaitError },
    #[error("listen to the kernel: {0}")]
    Listen(#[from] io::Error),
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error(transparent)]
    Apply(#[from] ApplyError),
    #[error("items that podwire did not create are in the way, so nothing {} changed:\n{}",
        if *.more { "more was" } else { "was" }, .foreign.join("\n"))]
    Foreign { foreign: Vec<String>, more: bool },
    #[error("this machine can't join the network, so nothing was changed:\n  {}", .0.join("\n  "))]
    Preflight(Vec<String>),
    #[error("waited {} ms for other programs:\n{}", .limit.as_millis(), .awaited.join("\n"))]
    Awaited {
        limit: Duration,
        awaited: Vec<String>,
    },
    #[error(
        "something undoes podwire's changes: after {MOST_ROUNDS} rounds there is still something \
         to do:\n{}",
        .0.join("\n")
    )]
    Fight(Vec<String>),
    #[error(
        "{0} pods have ports on this node, and would lose the network: drain the node first, or \
         use --force"
    )]
    Pods(usize),
}

/// What is wanted of the machine.
#[derive(Debug, Clone)]
pub(crate) struct Goal {
    /// None when nothing of ours is to be left.
    pub(crate) settings: Option<Settings>,
    /// Whether what others made is ours from now on.
    pub(crate) take_over: bool,
}

/// One look: the machine, what it should be, and each item.
#[derive(Debug, Default)]
pub(crate) struct Look {
    pub(crate) observed: Observed,
    pub(crate) plan: Plan,
    pub(crate) findings: Vec<Finding>,
}

/// A connection to everything that a look needs.
pub(crate) struct Eyes {
    pub(crate) client: Client,
    /// The southbound database, where there is to be something of ours in it.
    pub(crate) southbound: Option<Client>,
    pub(crate) firewalld: Option<Firewalld>,
    pub(crate) handle: rtnetlink::Handle,
    /// The netlink port of the handle.
    port: u32,
}

impl Eyes {
    /// Connects, and waits for the database; a moment for the southbound one.
    pub(crate) async fn open(places: &Places, goal: &Goal) -> Result<Self, NodeError> {
        let mut config = ClientConfig::new(places.ovsdb.clone(), DATABASE, tables());
        config.connect_timeout = DATABASE_LIMIT;
        let client = Client::start(config);
        let synced = client.synced(Instant::now() + DATABASE_LIMIT).await;
        synced.map_err(|source| NodeError::Database {
            remote: places.ovsdb.to_string(),
            source,
        })?;
        let settings = goal.settings.as_ref();
        let southbound = settings.and_then(|settings| southbound(settings, &client));
        let southbound = southbound
            .transpose()
            .map_err(|error| NodeError::Plan(format!("ovn-remote: {error}")))?;
        if let Some(southbound) = &southbound {
            // Who does not answer yet is waited for as for all that others bring.
            let _ = southbound.synced(Instant::now() + preflight::LIMIT).await;
        }
        let (mut connection, handle, _) = rtnetlink::new_connection()?;
        // Without it the socket has a port only once it has sent something.
        let address = connection.socket_mut().socket_mut().bind_auto()?;
        tokio::spawn(connection);
        Ok(Self {
            client,
            southbound,
            firewalld: Firewalld::connect().await,
            handle,
            port: address.port_number(),
        })
    }

    /// Looks at everything and compares; at the nftables table unless it is `known`.
    pub(crate) async fn look(
        &self,
        goal: &Goal,
        journal: &[Undo],
        known: Option<Tables>,
    ) -> Result<Look, NodeError> {
        let settings = goal.settings.as_ref();
        let interface = settings.and_then(|settings| settings.interface.as_deref());
        let southbound = self.southbound.as_ref();
        let firewalld = self.firewalld.as_ref();
        let (client, handle) = (&self.client, &self.handle);
        let observed = Observed::all(client, southbound, firewalld, handle, interface, known);
        let mut observed = observed.await?;
        let plan = match settings {
            Some(settings) => Plan::of(settings, &observed).map_err(NodeError::Plan)?,
            None => Plan::default(),
        };
        let planned = plan.items.iter().filter_map(|item| match item {
            Item::Sysctl { path, .. } => Some(path.as_str()),
            _ => None,
        });
        let noted = journal.iter().filter_map(|undo| match undo {
            Undo::Sysctl { path, .. } => Some(path.as_str()),
            Undo::Made(_) | Undo::Replaced(_) => None,
        });
        observed.see_sysctls(planned.chain(noted));
        let made = journal.iter().filter_map(|undo| match undo {
            Undo::Made(item) => Some(item),
            Undo::Sysctl { .. } | Undo::Replaced(_) => None,
        });
        let files = plan
            .items
            .iter()
            .chain(made.clone())
            .filter_map(|item| match item {
                Item::File { path, .. } => Some(path.as_str()),
                _ => None,
            });
        let items = plan.items.iter().chain(made.clone());
        let rules = items.filter_map(|item| match item {
            Item::Firewalld(rule) => Some(rule.clone()),
            _ => None,
        });
        let owned = observed.switch.owned.keys();
        let owned = owned.filter_map(|key| Rule::of_mark(key)).flatten();
        let rules: BTreeSet<Rule> = rules.chain(owned).collect();
        observed.see_rules(firewalld, rules.iter()).await;
        let drop_ins = UNITS.map(drop_in);
        observed.see_files(files.chain(drop_ins.iter().map(String::as_str)));
        let findings = diff::findings(&plan, &observed, journal, goal.take_over);
        Ok(Look {
            observed,
            plan,
            findings,
        })
    }
}

/// The machine, what it is to be, and when to look again.
pub(crate) struct Node {
    goal: Goal,
    machine: Machine,
    events: Events,
    eyes: Eyes,
    /// The nftables tables as last seen, until something happens to them.
    tables: Option<Tables>,
    /// Open vSwitch's database as last seen.
    switch: SwitchSeen,
}

impl Node {
    /// Takes the journal, and listens.
    pub(crate) async fn open(goal: Goal, places: &Places) -> Result<Self, NodeError> {
        let journal = Journal::hold(&places.directory)?;
        Self::with_journal(goal, places, journal).await
    }

    /// Listens, and goes on with a journal.
    pub(crate) async fn with_journal(
        goal: Goal,
        places: &Places,
        journal: Journal,
    ) -> Result<Self, NodeError> {
        let eyes = Eyes::open(places, &goal).await?;
        let is_plain = |settings: &Settings| settings.mode == Mode::Plain;
        let file = goal.settings.as_ref().filter(|settings| is_plain(settings));
        let file = file.map(|_| Path::new(AGENT_FILE));
        if let Some(directory) = file.and_then(Path::parent) {
            std::fs::create_dir_all(directory)?;
        }
        let clients = std::iter::once(&eyes.client).chain(&eyes.southbound);
        let signals = match &eyes.firewalld {
            Some(firewalld) => firewalld.signals().await.ok(),
            None => None,
        };
        let events = Events::listen(clients, eyes.port, file, signals)?;
        let machine = Machine {
            client: eyes.client.clone(),
            southbound: eyes.southbound.clone(),
            firewalld: eyes.firewalld.clone(),
            handle: eyes.handle.clone(),
            journal,
            owned: Default::default(),
            counts: Counts::default(),
        };
        Ok(Self {
            goal,
            machine,
            events,
            eyes,
            tables: None,
            switch: SwitchSeen::default(),
        })
    }

    /// Looks beside the machine, before anything is changed, and gives what may become a problem.
    ///
    /// # Errors
    /// [`NodeError::Preflight`]; what a look fails for.
    pub(crate) async fn preflight(
        &mut self,
        api: Option<&kube::Client>,
    ) -> Result<Vec<String>, NodeError> {
        let Some(settings) = self.goal.settings.clone() else {
            return Ok(Vec::new());
        };
        if settings.node_subnets.is_empty() {
            return Ok(Vec::new());
        }
        // What it lacks for a look, the first round says.
        let Ok(look) = self.look().await else {
            return Ok(Vec::new());
        };
        let found = Preflight::look(&settings, &look, api).await;
        match found.refusals.is_empty() {
            true => Ok(found.warnings),
            false => Err(NodeError::Preflight(found.refusals)),
        }
    }

    /// What the node is to be, from now on.
    pub(crate) fn settings(&mut self) -> Option<&mut Settings> {
        self.goal.settings.as_mut()
    }

    /// What was done so far.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = self.machine.counts;
        counts.files += self.machine.journal.writes;
        counts
    }

    /// Makes the machine what it should be, and waits for what others have to bring to that.
    pub(crate) async fn init(&mut self) -> Result<Vec<Step>, NodeError> {
        let deadline = Instant::now() + OTHERS_LIMIT;
        let mut done = Vec::new();
        let mut rounds = 0;
        while rounds < MOST_ROUNDS {
            let look = self.look().await?;
            refuse_foreign(&look.findings, !done.is_empty())?;
            let steps = diff::steps(&look.findings);
            if !steps.is_empty() {
                rounds += 1;
                self.take(&steps, &look.observed).await?;
                done.extend(steps);
                continue;
            }
            let awaited = awaited(&look.findings);
            if awaited.is_empty() {
                return Ok(done);
            }
            self.await_event(deadline, awaited).await?;
        }
        self.fight().await
    }

    /// Removes all that is ours and puts back what was there, whatever state an interrupted run
    /// left.
    pub(crate) async fn cleanup(&mut self, force: bool) -> Result<Vec<Step>, NodeError> {
        let deadline = Instant::now() + OTHERS_LIMIT;
        let look = self.look().await?;
        let removes_port = |step: &Step| match step {
            Step::Remove(Item::Port(_)) => true,
            Step::Remove(Item::File { path, .. }) => path == AGENT_FILE,
            _ => false,
        };
        if diff::steps(&look.findings).iter().any(removes_port) && look.observed.pods > 0 && !force
        {
            return Err(NodeError::Pods(look.observed.pods));
        }
        let mut done = Vec::new();
        let mut rounds = 0;
        while rounds < MOST_ROUNDS {
            let look = self.look().await?;
            let steps = diff::steps(&look.findings);
            if !steps.is_empty() {
                rounds += 1;
                self.take(&steps, &look.observed).await?;
                done.extend(steps);
                continue;
            }
            if !look.observed.switch.answers {
                let awaited = "  Open vSwitch's database, which does not answer".to_owned();
                self.await_event(deadline, vec![awaited]).await?;
                continue;
            }
            let switch = &look.observed.switch;
            let mut noted = self.machine.journal.undos().iter();
            let left = noted.find_map(|undo| {
                let (link, has_row) = match undo {
                    Undo::Made(Item::Port(_)) => (LINK, switch.port.is_some()),
                    Undo::Made(Item::Bridge(_)) => (TUNNEL, switch.bridges.contains_key(TUNNEL)),
                    _ => return None,
                };
                (!has_row && look.observed.links.contains_key(link)).then_some(link)
            });
            if let Some(link) = left {
                let awaited = format!("  ovs-vswitchd to remove link {link}");
                self.await_event(deadline, vec![awaited]).await?;
                continue;
            }
            self.machine.journal.forget()?;
            return Ok(done);
        }
        self.fight().await
    }

    /// Says what is still to do after the most rounds.
    async fn fight(&mut self) -> Result<Vec<Step>, NodeError> {
        let look = self.look().await?;
        let left = diff::steps(&look.findings);
        Err(NodeError::Fight(
            left.iter().map(|step| format!("  {step:?}")).collect(),
        ))
    }

    /// Looks at everything; at the nftables table when something may have happened to it.
    pub(crate) async fn look(&mut self) -> Result<Look, NodeError> {
        let known = self.tables.take();
        let journal = self.machine.journal.undos();
        let look = self.eyes.look(&self.goal, journal, known).await?;
        let index = |name: &str| look.observed.links.get(name).map(|link| link.index);
        let planned = look.plan.items.iter().filter_map(|item| match item {
            Item::Route(route) => Some(route.link.as_str()),
            _ => None,
        });
        let settings = self.goal.settings.as_ref();
        let bridge = settings.map(|settings| settings.bridge.as_str());
        let others = planned.chain(bridge).chain(look.plan.uplink.as_deref());
        let names = others.clone().chain([LINK, TUNNEL]);
        self.events.links_are(Links {
            names: names.map(str::to_owned).collect(),
            own: [LINK, TUNNEL].into_iter().filter_map(index).collect(),
            others: others.filter_map(index).collect(),
        });
        self.tables = Some((look.observed.table.clone(), look.observed.services));
        self.switch = look.observed.switch.clone();
        Ok(look)
    }

    /// Takes steps, last looked at this way.
    pub(crate) async fn take(
        &mut self,
        steps: &[Step],
        observed: &Observed,
    ) -> Result<(), NodeError> {
        let of_table = |step: &Step| {
            matches!(
                step,
                Step::Make(Item::Table(_)) | Step::Remove(Item::Table(_) | Item::Services)
            )
        };
        if steps.iter().any(of_table) {
            self.tables = None;
        }
        Ok(self.machine.take(steps, observed).await?)
    }

    /// Waits until something has happened that calls for another look.
    pub(crate) async fn changes(&mut self) -> io::Result<Changes> {
        loop {
            let changes = self.events.next().await?;
            if !changes.firewall.is_empty() {
                self.tables = None;
            }
            let only_switch = Changes {
                switch: true,
                ..Changes::default()
            };
            // Pods' ports come and go all the time.
            let Eyes {
                client, southbound, ..
            } = &self.eyes;
            if changes != only_switch || SwitchSeen::of(client, southbound.as_ref()) != self.switch
            {
                return Ok(changes);
            }
        }
    }

    async fn await_event(
        &mut self,
        deadline: Instant,
        awaited: Vec<String>,
    ) -> Result<(), NodeError> {
        match timeout_at(deadline, self.changes()).await {
            Ok(changes) => Ok(changes.map(drop)?),
            Err(_) => Err(NodeError::Awaited {
                limit: OTHERS_LIMIT,
                awaited,
            }),
        }
    }
}

/// The southbound database, where the plan has an item in it and its remote is known.
fn southbound(settings: &Settings, client: &Client) -> Option<Result<Client, RemoteError>> {
    settings.encap_port?;
    let seen = SwitchSeen::of(client, None);
    let remote = settings.ovn_remote.as_deref();
    let remote = remote.or(seen.keys.get("ovn-remote").map(String::as_str))?;
    let tls = settings.tls.clone().or_else(|| seen.tls());
    Some(southbound::follow(remote, tls))
}

pub(crate) fn refuse_foreign(findings: &[Finding], more: bool) -> Result<(), NodeError> {
    let foreign = findings.iter().filter_map(|finding| match &finding.state {
        State::Foreign(whose) => Some(format!("  {}: {whose}", finding.item.identity())),
        _ => None,
    });
    let foreign: Vec<String> = foreign.collect();
    if foreign.is_empty() {
        return Ok(());
    }
    Err(NodeError::Foreign { foreign, more })
}

/// What others have to bring, each thing once, with what waits for it.
pub(crate) fn awaited(findings: &[Finding]) -> Vec<String> {
    let mut awaited: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for finding in findings {
        if let State::Waits(what) = &finding.state {
            awaited
                .entry(what)
                .or_default()
                .push(finding.item.identity());
        }
    }
    let lines = awaited.into_iter();
    lines
        .map(|(what, items)| format!("  {what} (for {})", items.join(", ")))
        .collect()
}
