//! One snapshot: reads the machine's state and compares it with the plan.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use netlink_sys::AsyncSocket as _;
use podwire_ovs::client::{Client, ClientConfig, WaitError};
use podwire_ovs::vswitch::DATABASE;
use tokio::time::Instant;

use crate::actual::{ReadError, UNITS, switch, watched_tables};
use crate::diff::{self, Finding};
use crate::firewalld::{Firewalld, Rule};
use crate::flows;
use crate::items::{Actual, File, Item, Led, ObservedSwitch, ObservedUplink, Sysctl, Tables, Undo};
use crate::journal::Journal;
use crate::moved::{self, Moved, MovedError};
use crate::nft;
use crate::overlap::InUse;
use crate::plan::{Plan, boot_file, drop_in};
use crate::servers::{Server, addresses, database, name_servers};
use crate::settings::{Mode, Places, Settings};
use crate::southbound;
use crate::{DOOR, GATEWAY};

/// Time limit of the database's answer.
const DATABASE_LIMIT: Duration = Duration::from_secs(10);

/// Why the comparison failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SnapshotError {
    #[error("{0}")]
    Plan(String),
    #[error("Open vSwitch's database {remote}: {source}; is Open vSwitch running?")]
    Database { remote: String, source: WaitError },
    #[error("listen to the kernel: {0}")]
    Listen(#[from] io::Error),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Moved(#[from] MovedError),
}

/// The goal for the machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Goal {
    /// None if nothing of podwire's should remain.
    pub(crate) settings: Option<Settings>,
    /// Whether to take over what others created.
    pub(crate) take_over: bool,
    /// The API server, if there is one.
    pub(crate) api_server: Option<Server>,
    /// The link that was the uplink at the last snapshot.
    pub(crate) uplink: Option<String>,
    /// Whether a NIC that lacks some of what it had is moved without that.
    pub(crate) nic_is_settled: bool,
    /// What a gateway router leads to pods; none while that is not known.
    pub(crate) led: Option<BTreeSet<Led>>,
}

/// One snapshot: the machine, the plan, and each item.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) actual: Actual,
    pub(crate) plan: Plan,
    pub(crate) findings: Vec<Finding>,
}

impl Snapshot {
    /// The MAC address of the door, if all that it takes is there.
    pub(crate) fn door(&self) -> Option<&str> {
        let port = self.actual.switch.ports.get(DOOR)?;
        let mut findings = self.findings.iter();
        let is_whole = findings.all(|it| !it.item.is_of_door() || it.is_well());
        let mut items = self.plan.items.iter();
        let mac = items.find_map(|item| match item {
            Item::Port(port) if port.link == DOOR => Some(port.mac.as_str()),
            _ => None,
        });
        mac.filter(|_| port.is_installed && is_whole)
    }
}

/// The connections that a snapshot needs.
pub(crate) struct Connections {
    pub(crate) client: Client,
    /// The southbound database, if podwire has something to do in it.
    pub(crate) southbound: Option<Client>,
    pub(crate) firewalld: Option<Firewalld>,
    /// Where ovs-vswitchd takes the flows of the gateway bridge.
    pub(crate) flows: PathBuf,
    /// The API server and OVN's databases.
    servers: Vec<InUse>,
    pub(crate) handle: rtnetlink::Handle,
    /// The netlink port of the handle.
    pub(crate) port: u32,
}

impl Connections {
    /// Connects, and waits for the database; for a moment for the southbound one.
    pub(crate) async fn open(places: &Places, goal: &Goal) -> Result<Self, SnapshotError> {
        let mut config = ClientConfig::new(places.ovsdb.clone(), DATABASE, watched_tables());
        config.connect_timeout = DATABASE_LIMIT;
        let client = Client::start(config);
        let synced = client.synced(Instant::now() + DATABASE_LIMIT).await;
        let settings = goal.settings.as_ref();
        // Without settings, all is undone that can be.
        if let (Err(source), Some(_)) = (synced, settings) {
            let remote = places.ovsdb.to_string();
            return Err(SnapshotError::Database { remote, source });
        }
        let mut servers: Vec<Server> = goal.api_server.clone().into_iter().collect();
        if let Some(settings) = settings {
            let seen = switch(&client, None);
            let key = |key: &str| seen.keys.get(key).map(String::as_str);
            let southbound = settings.ovn_remote.as_deref().or(key("ovn-remote"));
            let northbound = key("ovn-nb");
            servers.extend(
                southbound
                    .iter()
                    .flat_map(|it| database("southbound database", it)),
            );
            servers.extend(
                northbound
                    .iter()
                    .flat_map(|it| database("northbound database", it)),
            );
        }
        let (mut connection, handle, _) = rtnetlink::new_connection()?;
        // Otherwise the socket gets a port only when it sends something.
        let address = connection.socket_mut().socket_mut().bind_auto()?;
        tokio::spawn(connection);
        let mut connections = Self {
            client,
            southbound: None,
            firewalld: Firewalld::connect().await,
            flows: flows::socket(&places.ovsdb),
            servers: addresses(&servers).await,
            handle,
            port: address.port_number(),
        };
        if let Some(settings) = settings.filter(|settings| settings.encap_port.is_some()) {
            connections.ask_southbound(settings).await?;
        }
        Ok(connections)
    }

    /// Follows the southbound database, or no longer: each of its clients costs all nodes'.
    pub(crate) fn follow_southbound(
        &mut self,
        settings: Option<&Settings>,
    ) -> Result<(), SnapshotError> {
        self.southbound = None;
        let settings = settings.filter(|settings| settings.mode == Mode::Ovn);
        if let Some((settings, remotes)) = settings.and_then(|it| Some((it, self.remotes(it)?))) {
            let tls = settings.tls.clone().or_else(|| self.switch().tls());
            let client = southbound::follow(&remotes, tls);
            let failed = |error| SnapshotError::Plan(format!("ovn-remote: {error}"));
            self.southbound = Some(client.map_err(failed)?);
        }
        Ok(())
    }

    /// Follows it, and waits for its answer for a moment. One that does not answer yet is waited
    /// for like everything that others provide.
    pub(crate) async fn ask_southbound(
        &mut self,
        settings: &Settings,
    ) -> Result<(), SnapshotError> {
        self.follow_southbound(Some(settings))?;
        if let (Some(client), Some(remotes)) = (&self.southbound, self.remotes(settings)) {
            southbound::await_first(client, &remotes).await;
        }
        Ok(())
    }

    /// The southbound database's remotes.
    fn remotes(&self, settings: &Settings) -> Option<String> {
        let key = || self.switch().keys.remove("ovn-remote");
        settings.ovn_remote.clone().or_else(key)
    }

    /// Open vSwitch's database first, and the southbound one while podwire asks it.
    pub(crate) fn databases(&self) -> impl Iterator<Item = &Client> {
        std::iter::once(&self.client).chain(&self.southbound)
    }

    /// The links of which a snapshot reads everything: those of a gateway bridge.
    fn links_of_gateway(&self, settings: Option<&Settings>, moved: Option<&Moved>) -> Vec<String> {
        let mut links: Vec<String> = Vec::new();
        let seen = self.client.read(ObservedUplink::find);
        links.extend(seen.into_iter().flat_map(|it| [it.nic, it.bridge]));
        links.extend(
            moved
                .iter()
                .flat_map(|it| [it.nic.clone(), it.bridge.clone()]),
        );
        let gateway = settings.and_then(|it| Some((it, it.gateway()?)));
        if let Some((settings, gateway)) = gateway {
            links.push(gateway.to_owned());
            links.extend(settings.interface.clone());
        }
        links
    }

    /// The present state of the switch's database.
    pub(crate) fn switch(&self) -> ObservedSwitch {
        switch(&self.client, self.southbound.as_ref())
    }

    /// Reads everything and compares; reads the nftables tables unless they are `known`.
    pub(crate) async fn snapshot(
        &self,
        goal: &Goal,
        journal: &Journal,
        known: Option<Tables>,
    ) -> Result<Snapshot, SnapshotError> {
        let settings = goal.settings.as_ref();
        let interface = settings.and_then(|settings| settings.interface.as_deref());
        let interface = interface.or(goal.uplink.as_deref());
        let gateway = settings.and_then(Settings::gateway);
        let interface = gateway.or(interface);
        let moved = Moved::read(journal.directory())?;
        let holds = self.links_of_gateway(settings, moved.as_ref());
        let southbound = self.southbound.as_ref();
        let firewalld = self.firewalld.as_ref();
        let (client, handle) = (&self.client, &self.handle);
        let links = (interface, &*holds);
        let actual = Actual::all(client, southbound, firewalld, handle, links, known);
        let mut actual = actual.await?;
        let has_door = settings.is_some_and(|settings| settings.doors.is_some());
        if has_door || !actual.switch.locked.is_empty() {
            actual.has_egress = nft::has_egress().await;
        }
        actual.recorded_tables = journal.tables().clone();
        actual.moved = moved;
        actual.nic_is_settled = goal.nic_is_settled;
        actual.led.clone_from(&goal.led);
        actual.record = moved::file(journal.directory());
        let journal = journal.undos();
        let kept = goal.uplink.clone().or_else(|| actual.tunnels_link());
        if let Some(kept) = kept.filter(|link| actual.links.contains_key(link)) {
            actual.default_link = Some(kept);
        }
        actual.in_use.extend(self.servers.iter().cloned());
        actual.in_use.extend(name_servers());
        let plan = match settings {
            Some(settings) => {
                Plan::of(settings, &actual, goal.take_over).map_err(SnapshotError::Plan)?
            }
            None => Plan::default(),
        };
        if actual.switch.bridges.contains_key(GATEWAY) {
            let planned = plan.flows().cloned().unwrap_or_default();
            actual.flows = flows::observe(&self.flows, &planned).await;
        }
        let made = journal.iter().filter_map(|undo| match undo {
            Undo::Made(item) => Some(item),
            Undo::Sysctl { .. } | Undo::Replaced(_) => None,
        });
        let mut sysctls: Vec<&str> = Vec::new();
        let mut files: Vec<String> = UNITS.map(drop_in).into();
        files.push(boot_file());
        let mut rules: BTreeSet<Rule> = BTreeSet::new();
        for item in plan.items.iter().chain(made) {
            match item {
                Item::Sysctl(Sysctl { path, .. }) => sysctls.push(path),
                Item::File(File { path, .. }) => files.push(path.clone()),
                Item::Firewalld(rule) => drop(rules.insert(rule.clone())),
                _ => {}
            }
        }
        sysctls.extend(journal.iter().filter_map(|undo| match undo {
            Undo::Sysctl { path, .. } => Some(path.as_str()),
            Undo::Made(_) | Undo::Replaced(_) => None,
        }));
        let owned = actual.switch.owned.keys();
        rules.extend(owned.filter_map(|key| Rule::of_mark(key)).flatten());
        actual.read_sysctls(&sysctls);
        actual.read_rules(firewalld, &rules).await;
        actual.read_files(files);
        let findings = diff::findings(&plan, &actual, journal, goal.take_over);
        Ok(Snapshot {
            actual,
            plan,
            findings,
        })
    }
}
