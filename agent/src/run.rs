//! The agent's life: what is started in which order, and how it ends.

mod privileges;
mod role;

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::sys::signal::SigSet;
use podwire_daemon::lockdown::LockdownError;
use podwire_daemon::{Manager, http, process};
use podwire_netns::{self as netns, Netlink, RealTime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::attach::{self, Agent, Connections, Handles, Kept, LastHolders, Lines};
use crate::config::{AgentCommand, Config, Environment, LoadError, Loaded, Loader, RoleCommand};
use crate::flows::Flows;
use crate::ipam::Addresses;
use crate::ipam::spawner::Spawner;
use crate::ipam::subnet;
use crate::journal::{self, Journal};
use crate::observe::events::Events;
use crate::observe::{LogError, LogOutput, Metrics};
use crate::pods::sources::Sources;
use crate::ports::Ports;
use crate::reconcile::{Configuration, Uplink};
use crate::server::socket::{AgentSocket, RunDir, SocketError};
use crate::service::{self, InheritedError};
use crate::{install, reconcile, server};
use privileges::privileges;
use role::Role;

/// How long operations may take to end after SIGTERM; then the next agent undoes them.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Why the agent did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting or a configuration file is invalid.
    #[error("{0}")]
    Config(#[from] LoadError),
    /// Two subnets overlap.
    #[error("--subnet: {0}")]
    Subnets(#[from] subnet::SpecError),
    /// The log can't be opened.
    #[error("{0}")]
    Log(#[from] LogError),
    /// The run directory or the socket could not be created.
    #[error("{0}")]
    Socket(#[from] SocketError),
    /// The service manager passed something other than a socket for plugins.
    #[error("socket from the service manager: {0}")]
    Inherited(#[from] InheritedError),
    /// The intent log could not be opened.
    #[error("intent log: {0}")]
    Journal(#[from] journal::Error),
    /// The attachments of the run directory are in another network namespace.
    #[error("{0}")]
    Place(#[from] reconcile::PlaceError),
    /// Unneeded privileges could not be dropped.
    #[error("lock-down: {0}")]
    Lockdown(#[from] LockdownError),
    /// The netlink threads could not be started.
    #[error("{0}")]
    Netlink(#[from] netns::Error),
    /// The spawner is gone, and only a new agent can start another.
    #[error("the process that runs IPAM plugins is gone")]
    SpawnerGone,
    /// Both halves of an ovnkube end together.
    #[error("the node role, `podwire node run`, has ended: its last messages are above")]
    RoleGone,
    /// The metrics address can't be used.
    #[error("--metrics-address {address}: {source}")]
    MetricsAddress {
        /// As given.
        address: SocketAddr,
        /// The kernel's error.
        source: io::Error,
    },
    /// A facility of the process itself failed.
    #[error("{step}: {source}")]
    Process {
        /// The operation.
        step: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// Executes a command line: prints the settings, or runs the agent until SIGTERM or SIGINT; with a
/// node role beside it, until that ends too.
///
/// # Errors
/// It can't start, or the node role has ended; once it serves, it ends without an error.
pub fn agent(command: AgentCommand, role: Option<RoleCommand>) -> Result<(), StartError> {
    let print = command.print_config;
    let loader = Loader::new(command, Environment::of_process());
    let loaded = loader.load()?;
    if print {
        // The reader may have closed the pipe.
        let _ = io::stdout().write_all(loader.print(&loaded, detect(&loaded)).as_bytes());
        return Ok(());
    }
    let config = loaded.config.clone();
    let log = LogOutput::start(&config.live.log, config.log_file.as_deref())?;
    let files: Vec<String> = loaded
        .found
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let settings = loader.servers(&loaded);
    tracing::info!(settings, files = files.join(", "), "starting");
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let mtu_file = loader.file_for("mtu");
    serve(
        config,
        mtu_file,
        Configuration::new(loader, loaded, log),
        role,
    )
}

/// The MTU that pods would get without a setting.
fn detect(loaded: &Loaded) -> Option<(u32, String)> {
    let runtime = process::runtime().ok()?;
    let uplink = runtime.block_on(Uplink::find(&loaded.config))?;
    Some((uplink.fits(), uplink.to_string()))
}

fn serve(
    config: Config,
    mtu_file: Option<PathBuf>,
    configuration: Configuration,
    role: Option<RoleCommand>,
) -> Result<(), StartError> {
    let failed = |step| move |source| StartError::Process { step, source };
    // A parent may have blocked signals, and then SIGTERM would never arrive; threads inherit this
    // one's mask.
    SigSet::empty()
        .thread_set_mask()
        .map_err(|errno| failed("unblock signals")(errno.into()))?;
    // While there is one thread, and before a child could inherit it.
    let inherited = service::inherited_listener(&config.socket)?;
    let role = role.as_ref().map(Role::start).transpose();
    let role = role.map_err(failed("start the node role"))?;
    let manager = Manager::from_environment().map_err(failed("reach the service manager"))?;
    // Each pod being wired holds a few.
    process::raise_descriptor_limit().map_err(failed("raise the limit of open files"))?;
    let run_dir = match config.standby {
        true => RunDir::open_when_free(&config.run_dir)?,
        false => RunDir::open(&config.run_dir)?,
    };
    let addresses = Addresses::open(config.live.subnets.clone(), &config.run_dir)?;
    let journal = Journal::open(&config.run_dir)?;
    reconcile::confirm_place(&config.run_dir, &journal)?;
    // Before privileges are dropped: the port may be below 1024.
    let metrics_listener = config.metrics_address.map(listen_for_metrics).transpose()?;
    // The spawner is forked while there is one thread; the netlink threads come before tokio's.
    let plugins = config.runtime.plugin_directories();
    let spawner = Spawner::start(plugins).map_err(failed("start the spawner of ipam plugins"))?;
    let real_time = (!config.power.no_realtime)
        .then(RealTime::enter)
        .transpose();
    let real_time = real_time.unwrap_or_else(|errno| {
        tracing::info!(
            %errno,
            "real-time priority is refused, as in containers of cgroup v1: links are created at \
             normal priority, and beside 100 ports the slowest tenth of ADDs takes a fifth longer; \
             no-realtime = true stops the agent from requesting it"
        );
        None
    });
    let held = privileges(&config).keep(config.power.seccomp)?;
    tracing::info!(%held, "dropped all other privileges");
    let netlink = Netlink::start(real_time)?;
    // One thread: an ADD is a chain of short steps between waits, and a switch to another thread
    // costs more than a step.
    let runtime = process::runtime().map_err(failed("start the runtime"))?;
    runtime.block_on(async {
        // Kept until the end, because it holds the lock of the run directory.
        let mut socket = match inherited {
            Some(listener) => AgentSocket::inherited(run_dir, &config.socket, listener)
                .map_err(failed("serve the service manager's socket"))?,
            None => AgentSocket::make(run_dir, &config.socket)?,
        };
        let stop = CancellationToken::new();
        stop_on_signal(stop.clone())?;
        let hangup = signal(SignalKind::hangup()).map_err(failed("watch signals"))?;
        let ports = Ports::connect(&config);
        let live = watch::Sender::new(config.live.clone());
        let metrics = Arc::new(Metrics::default());
        let kube = config.sources.kube.clone();
        let events = kube.map(|kube| Events::start(kube, Arc::clone(&metrics)));
        let (kept, to_keep) = Kept::new();
        let node = Arc::new(Handles {
            flows: Flows::keep(ports.clone(), &config, live.subscribe()),
            connections: Connections::keep(ports.clone(), netlink.clone()),
            last_holders: LastHolders::default(),
            spawner: spawner.connect().map_err(failed("watch the spawner"))?,
            sources: Sources::start(&config.sources),
            uplink_mtu: watch::Sender::new(None),
            kept,
            lines: Lines::default(),
            lacks_southbound: AtomicBool::new(false),
            settled: watch::Sender::new(false),
            config,
            live,
            netlink,
            ports,
            journal,
            addresses,
            metrics,
        });
        let agent = Agent::new(Arc::clone(&node), mtu_file, events.clone());
        let agent = Arc::new(agent);
        if let Some(listener) = metrics_listener {
            let served = server::metrics::serve(listener, Arc::clone(&agent), stop.clone());
            tokio::spawn(served);
        }
        tokio::spawn(configuration.follow(Arc::clone(&node), hangup));
        tokio::spawn(notify_manager(Arc::clone(&node), manager, stop.clone()));
        let role = role.map(|role| role.watch(stop.clone())).transpose();
        let role = role.map_err(failed("watch the node role"))?;
        spawn_reconcilers(&node, &stop);
        tokio::spawn(attach::keep_addresses(Arc::clone(&node), events, to_keep));
        tracing::info!(
            socket = %node.config.socket.display(),
            version = env!("CARGO_PKG_VERSION"),
            "serving"
        );
        tokio::select! {
            () = server::serve(&mut socket, agent, stop.clone()) => {}
            () = stopped_in_vain(&stop) => tracing::warn!(
                waited = crate::duration::text(STOP_DEADLINE),
                "operations are still in progress; the next agent undoes them"
            ),
        }
        node.connections.all_forgotten().await;
        node.addresses.write_cursor();
        tracing::info!("stopped; pods keep their network");
        match node.spawner.is_alive() {
            _ if role.is_some_and(|ended| ended.is_cancelled()) => Err(StartError::RoleGone),
            true => Ok(()),
            false => Err(StartError::SpawnerGone),
        }
    })
}

/// Starts the tasks that run as long as the agent, and stops it when it can't continue.
fn spawn_reconcilers(node: &Arc<Handles>, stop: &CancellationToken) {
    tokio::spawn(reconcile::run(Arc::clone(node)));
    tokio::spawn(reconcile::keep_ports(Arc::clone(node)));
    tokio::spawn(reconcile::collect_abandoned(Arc::clone(node)));
    tokio::spawn(reconcile::keep_gateway(Arc::clone(node)));
    tokio::spawn(reconcile::keep_uplink_mtu(Arc::clone(node)));
    tokio::spawn(reconcile::keep_spool(Arc::clone(node)));
    tokio::spawn(install::keep::install(Arc::clone(node)));
    tokio::spawn(install::keep::watch(node.config.runtime.clone()));
    let cursor = Arc::clone(node);
    tokio::spawn(async move { cursor.addresses.keep_cursor().await });
    let (spawner, stop) = (node.spawner.clone(), stop.clone());
    tokio::spawn(async move {
        spawner.ended().await;
        stop.cancel();
    });
}

/// Completes when operations in progress at the stop have taken too long.
async fn stopped_in_vain(stop: &CancellationToken) {
    stop.cancelled().await;
    tokio::time::sleep(STOP_DEADLINE).await;
}

fn listen_for_metrics(address: SocketAddr) -> Result<TcpListener, StartError> {
    let listening = http::listen(address).and_then(|listener| {
        // With port 0, the kernel has chosen one.
        tracing::info!(address = %listener.local_addr()?, "serving metrics");
        Ok(listener)
    });
    listening.map_err(|source| StartError::MetricsAddress { address, source })
}

/// Reports the agent's state and liveness to the service manager until the agent ends.
async fn notify_manager(node: Arc<Handles>, manager: Manager, stop: CancellationToken) {
    manager.notify("READY=1\nSTATUS=serving; not yet ready for an ADD");
    let told = async {
        node.settled().await;
        manager.notify("STATUS=serving");
        stop.cancelled().await;
        manager.notify("STOPPING=1\nSTATUS=ending; pods keep their network");
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = told => {}
        () = manager.keep_alive() => {}
    }
}

fn stop_on_signal(stop: CancellationToken) -> Result<(), StartError> {
    let asked = process::asked_to_end().map_err(|source| StartError::Process {
        step: "watch signals",
        source,
    })?;
    tokio::spawn(async move {
        asked.await;
        stop.cancel();
    });
    Ok(())
}
