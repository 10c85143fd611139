//! The task that keeps the switch's flows in line with the rows and the reservations.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt as _;
use podwire_daemon::files::FileEvents;
use podwire_ovs::client::{Changed, Follower, Version};
use podwire_ovs::openflow::{Action, Connection, FlowMod, OpenFlowError, PortNumber};
use tokio::sync::{mpsc, oneshot, watch};

use super::rules::{self, Surroundings};
use super::{Numbers, Origin, lock};
use crate::config::{Config, Live, Mode};
use crate::ports::{BridgePorts, Ports, SecuredPort, Touched};

/// A request to the task.
#[derive(Debug)]
pub(super) enum Command {
    /// Install the flows of a port, whether or not it has a row.
    Install {
        ofport: u16,
        port: Arc<SecuredPort>,
        origin: Origin,
        done: Done,
    },
    /// From now on, the port has flows as long as it has a row.
    Release(u16),
}

type Done = oneshot::Sender<Result<(), Arc<OpenFlowError>>>;

/// The most ports that one flow sends to, 16 bytes each of the 64 KB of a message.
const MOST_NEIGHBOURS: usize = 2_000;

/// The task's state.
pub(super) struct FlowSync {
    ports: Ports,
    config: Config,
    live: watch::Receiver<Live>,
    numbers: Arc<Mutex<Numbers>>,
    problem: watch::Sender<Option<Arc<OpenFlowError>>>,
    bridge: BridgePorts,
    reserved: HashMap<u16, Arc<SecuredPort>>,
    /// The ports that this agent created.
    origins: HashMap<u16, (Arc<SecuredPort>, Origin)>,
    /// The waiters for the next commit.
    waiting: Vec<Done>,
    /// The flows in the switch, as far as they were sent over this connection.
    installed: HashMap<u16, Arc<SecuredPort>>,
    around: Option<Surroundings>,
    /// Whether this connection had all flows.
    has_served: bool,
    /// How often everything was sent, to tell the sentinel of now from earlier ones.
    times: u16,
    /// Which rows change, and which have changed since the bridge was last read.
    follower: Follower,
    changed: Changed,
    /// Whether the switch may need an update, and for which ports.
    is_stale: bool,
    touched: Touched,
}

impl FlowSync {
    pub(super) fn new(
        ports: Ports,
        config: Config,
        live: watch::Receiver<Live>,
        numbers: Arc<Mutex<Numbers>>,
        problem: watch::Sender<Option<Arc<OpenFlowError>>>,
    ) -> Self {
        Self {
            follower: ports.follow(),
            changed: Changed::default(),
            is_stale: true,
            touched: Touched::default(),
            ports,
            config,
            live,
            numbers,
            problem,
            bridge: BridgePorts::default(),
            reserved: HashMap::new(),
            origins: HashMap::new(),
            waiting: Vec::new(),
            installed: HashMap::new(),
            around: None,
            has_served: false,
            // An earlier agent's sentinel is deleted with the first bundle.
            times: RandomState::new().hash_one(std::process::id()) as u16,
        }
    }

    /// Runs until the agent ends.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let mut versions = self.ports.subscribe();
        let mut is_retry = false;
        // Each update of the database causes another attempt; a switch that restarts causes other
        // errors in between.
        let mut logged = None;
        while !commands.is_closed() {
            let socket = self.ports.management_socket();
            // Before the attempt: what is created from here on is noticed, also while a connection
            // lasts.
            let coming = socket.parent().map(FileEvents::of_sockets);
            versions.mark_unchanged();
            let mut was_open = false;
            let error = match Connection::open(socket).await {
                Ok(connection) => {
                    was_open = true;
                    self.serve(connection, &mut commands, &mut versions).await
                }
                Err(error) => error,
            };
            tracing::debug!(%error, "no OpenFlow connection");
            let is_final = matches!(
                error,
                OpenFlowError::Wire { .. } | OpenFlowError::Refused { .. }
            );
            // A switch may close a connection and keep listening, as when a bridge's datapath id
            // changes: no event tells that it can be reached again, and it is no problem if it can.
            let has_served = std::mem::take(&mut self.has_served);
            if was_open && !is_final && (has_served || !is_retry) {
                is_retry = true;
                continue;
            }
            let error = Arc::new(error);
            let before = self.problem.send_replace(Some(Arc::clone(&error)));
            if before.is_none() {
                logged = None;
            }
            if is_final {
                let message = Some(error.to_string());
                if logged != message {
                    tracing::error!(%error, "pods' port security can't be maintained");
                    logged = message;
                }
                self.answer(&Err(error));
            }
            is_retry = false;
            self.wait_for_switch(coming, &mut commands, &mut versions)
                .await;
        }
    }

    /// Waits for any event after which the switch may be reachable. Requests that arrive meanwhile
    /// keep waiting.
    async fn wait_for_switch(
        &mut self,
        coming: Option<std::io::Result<FileEvents>>,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        versions: &mut watch::Receiver<Version>,
    ) {
        let coming = async {
            match coming {
                Some(Ok(changes)) => drop(changes.next().await),
                Some(Err(_)) | None => std::future::pending().await,
            }
        };
        tokio::pin!(coming);
        loop {
            tokio::select! {
                () = &mut coming => return,
                _ = versions.changed() => return,
                command = commands.recv() => match command {
                    Some(command) => self.accept(command),
                    None => return,
                },
            }
        }
    }

    /// Keeps the flows over one connection; returns why it ended.
    async fn serve(
        &mut self,
        mut connection: Connection,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        versions: &mut watch::Receiver<Version>,
    ) -> OpenFlowError {
        let mut changes = self.start_over();
        loop {
            while let Ok(command) = commands.try_recv() {
                self.accept(command);
            }
            // A port that is released has a row by then: looked for before the row is read, it
            // would lose its flows for a moment.
            if let Some(Some(changed)) = self.follower.next().now_or_never() {
                self.changed.extend(changed);
            }
            versions.mark_unchanged();
            self.is_stale |= self.live.has_changed().unwrap_or_default();
            self.live.mark_unchanged();
            let is_restored = self.ports.are_flows_restored();
            if is_restored {
                changes = self.start_over();
            }
            let on_bridge =
                self.ports
                    .on_bridge(&mut self.bridge, &self.changed, &mut self.touched);
            let is_synced = match on_bridge {
                Some(is_new) => {
                    self.changed = Changed::default();
                    if is_new {
                        lock(&self.numbers).used.clone_from(&self.bridge.numbers);
                    }
                    self.is_stale |= is_new;
                    true
                }
                None => false,
            };
            if is_synced && !is_restored {
                if std::mem::take(&mut self.is_stale) {
                    changes.extend(self.difference());
                }
                if let Err(error) = connection.commit(&changes).await {
                    return error;
                }
                changes.clear();
                self.has_served = true;
                self.problem.send_replace(None);
                self.answer(&Ok(()));
            }
            tokio::select! {
                removed = connection.removed() => match removed {
                    Ok(cookie) if self.is_sentinel(cookie) => {
                        tracing::info!(
                            "somebody deleted the flows of pods' port security, as ovn-controller \
                             does when it starts: they are sent again"
                        );
                        changes = self.start_over();
                    }
                    Ok(_) => {}
                    Err(error) => return error,
                },
                // The connection to the database may have changed.
                _ = versions.changed() => {}
                Some(changed) = self.follower.next() => self.changed.extend(changed),
                Ok(()) = self.live.changed() => self.is_stale = true,
                command = commands.recv() => match command {
                    Some(command) => self.accept(command),
                    None => return std::future::pending().await,
                },
            }
        }
    }

    /// The beginning of a bundle that sends everything again.
    fn start_over(&mut self) -> Vec<FlowMod> {
        self.installed.clear();
        self.around = None;
        self.times = self.times.wrapping_add(1);
        self.is_stale = true;
        self.touched.all = true;
        vec![FlowMod::Delete(rules::OURS)]
    }

    /// Whether a flow that was removed is the sentinel of what is in the switch now.
    fn is_sentinel(&self, cookie: u64) -> bool {
        self.around.is_some() && cookie == rules::sentinel_cookie(self.times)
    }

    fn accept(&mut self, command: Command) {
        self.is_stale = true;
        match command {
            Command::Install {
                ofport,
                port,
                origin,
                done,
            } => {
                self.touched.numbers.insert(ofport);
                self.origins.insert(ofport, (Arc::clone(&port), origin));
                self.reserved.insert(ofport, port);
                self.waiting.push(done);
            }
            Command::Release(ofport) => {
                self.touched.numbers.insert(ofport);
                self.reserved.remove(&ofport);
            }
        }
    }

    fn answer(&mut self, outcome: &Result<(), Arc<OpenFlowError>>) {
        for done in self.waiting.drain(..) {
            // The ADD may have ended.
            let _ = done.send(outcome.clone());
        }
    }

    /// What has to change in the switch; recorded as changed.
    fn difference(&mut self) -> Vec<FlowMod> {
        let mut changes = Vec::new();
        let is_wanted = self.config.port_security
            || !self.bridge.secured.is_empty()
            || !self.reserved.is_empty();
        if !is_wanted {
            if self.around.take().is_some() {
                changes.push(FlowMod::Delete(rules::OURS));
                self.installed.clear();
            }
            self.touched = Touched::default();
            return changes;
        }
        let is_ovn = self.config.ovn.mode == Mode::Ovn;
        let around = match is_ovn {
            true => Surroundings::default(),
            false => self.surroundings(),
        };
        let others = around.others;
        let other_ports_came_or_went = self.around.as_ref().is_some_and(|it| it.others != others);
        if self.around.as_ref() != Some(&around) {
            changes.push(FlowMod::Delete(rules::cookie_of(0)));
            if !is_ovn {
                changes.extend(rules::common_flows(&around).into_iter().map(FlowMod::Add));
            }
            let cookie = rules::sentinel_cookie(self.times);
            changes.push(FlowMod::Add(rules::sentinel(cookie)));
            self.around = Some(around);
        }
        let touched = std::mem::take(&mut self.touched);
        let mut numbers: BTreeSet<u16> = match touched.all {
            true => {
                let on_bridge = self.bridge.secured.keys();
                let known = on_bridge.chain(self.reserved.keys());
                known.chain(self.installed.keys()).copied().collect()
            }
            false => touched.numbers,
        };
        let mut gone: Vec<Arc<SecuredPort>> = Vec::new();
        for &ofport in &numbers {
            let installed = self.installed.get(&ofport);
            if installed.is_some_and(|port| self.wanted(ofport) != Some(port)) {
                changes.push(FlowMod::Delete(rules::cookie_of(ofport)));
                gone.extend(self.installed.remove(&ofport));
            }
            if self.wanted(ofport).is_none() {
                self.origins.remove(&ofport);
            }
        }
        if other_ports_came_or_went {
            numbers.extend(self.installed.drain().map(|(ofport, _)| ofport));
        }
        // What a removed port has in common with another, such as the older sandbox of the same
        // pod, stays.
        let shares = |port: &SecuredPort| {
            let same = |gone: &Arc<SecuredPort>| {
                gone.mac == port.mac || gone.addresses.iter().any(|ip| port.addresses.contains(ip))
            };
            gone.iter().any(same)
        };
        if !gone.is_empty() {
            let again = self.installed.extract_if(|_, port| shares(port));
            numbers.extend(again.map(|(ofport, _)| ofport));
        }
        for ofport in numbers {
            if self.installed.contains_key(&ofport) {
                continue;
            }
            let Some(port) = self.wanted(ofport).map(Arc::clone) else {
                continue;
            };
            let flows = match is_ovn {
                true => rules::ovn_port_flows(ofport),
                false => {
                    let announced = match others {
                        true => Action::Output(PortNumber::NORMAL),
                        false => self.announced(ofport, &port),
                    };
                    rules::port_flows(ofport, &port, &announced)
                }
            };
            changes.extend(flows.into_iter().map(FlowMod::Add));
            self.installed.insert(ofport, port);
        }
        changes
    }

    /// What else is on the bridge.
    fn surroundings(&self) -> Surroundings {
        Surroundings {
            local_mac: self.bridge.local_mac,
            gateways: {
                let live = self.live.borrow();
                let gateways = self.config.gateway_addresses(&live);
                gateways.iter().map(ipnet::IpNet::addr).collect()
            },
            others: self.bridge.has_others(),
        }
    }

    /// The port that should have flows with this number.
    fn wanted(&self, ofport: u16) -> Option<&Arc<SecuredPort>> {
        let of_row = self.bridge.secured.get(&ofport);
        of_row.or_else(|| self.reserved.get(&ofport))
    }

    /// Sends what announces a port's addresses to the node, and to the ports that may know them by
    /// another MAC address.
    fn announced(&self, ofport: u16, port: &SecuredPort) -> Action {
        let known_until = self.origin(ofport, port).and_then(|it| it.known_until);
        let Some(known_until) = known_until else {
            return Action::Output(PortNumber::NORMAL);
        };
        let may_know = |(ofport, port): (&u16, &Arc<SecuredPort>)| {
            let origin = self.origin(*ofport, port);
            let is_old = origin.is_none_or(|it| it.born <= known_until);
            is_old.then_some(*ofport)
        };
        let on_bridge = self.bridge.secured.iter().chain(&self.reserved);
        let mut neighbours: BTreeSet<u16> = on_bridge.filter_map(may_know).collect();
        neighbours.remove(&ofport);
        if neighbours.len() > MOST_NEIGHBOURS {
            return Action::Output(PortNumber::NORMAL);
        }
        let neighbours = neighbours.into_iter().map(|it| PortNumber(it.into()));
        Action::OutputToAll([PortNumber::LOCAL].into_iter().chain(neighbours).collect())
    }

    /// What is known of a port. Its number may have been another's before.
    fn origin(&self, ofport: u16, port: &SecuredPort) -> Option<Origin> {
        let (created, origin) = self.origins.get(&ofport)?;
        (**created == *port).then_some(*origin)
    }
}
