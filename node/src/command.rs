//! The command line of `podwire node`.

use std::future::ready;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::os::fd::AsFd as _;
use std::pin::{Pin, pin};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hyper::Request;
use kube::Client;
use podwire_apiserver::{Access, AccessError};
use podwire_daemon::http;
use podwire_daemon::lockdown::{LockdownError, Seccomp};
use podwire_daemon::process::raise_descriptor_limit;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tracing_subscriber::EnvFilter;

use crate::journal::{Journal, JournalError};
use crate::keep::{Node, NodeError};
use crate::kept::{self, Kept};
use crate::look::{Connections, Goal, Look};
use crate::preflight::Preflight;
use crate::privileges::privileges;
use crate::role::role;
use crate::servers::Server;
use crate::settings::{
    ApiArgs, FollowError, PlaceArgs, Places, SettingsArgs, SettingsError, loopback,
};
use crate::southbound::SouthboundError;
use crate::watch::Watch;
use crate::{announce, run, settings, show};

/// Join this machine to the pod network, or undo that
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct NodeCommand {
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "\
Exit codes: 0 success, 1 failure, 2 there is something to do (plan, show) or wrong usage.";
/// The exit code of plan and show if there is something to do.
const TO_DO: u8 = 2;
/// Time limit for the API server to report the node.
const API_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what init would do, and change nothing
    Plan(Wanted),
    /// Set up the node: Open vSwitch, management port, routes, forwarding, nftables
    Init(Wanted),
    /// Do what init does, then restore whatever is removed or changed, until stopped
    Run(RunArgs),
    /// Show the state of every item, and what run restored
    Show(ShowArgs),
    /// Remove everything that podwire created here, and restore what it replaced
    Cleanup(CleanupArgs),
}

#[derive(Debug, Args)]
struct Wanted {
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    places: PlaceArgs,
    #[command(flatten)]
    api: ApiArgs,
    /// Adopt items of ovn-kubernetes or others that are in the way; cleanup restores them
    #[arg(long, env = "PODWIRE_TAKE_OVER")]
    take_over: bool,
}

#[derive(Debug, Args)]
struct RunArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// If another `podwire node run` is active, wait until it ends instead of failing; for rolling
    /// updates
    #[arg(long, env = "PODWIRE_STANDBY")]
    standby: bool,
    /// Loopback address, IP:PORT, for GET /metrics and /healthz
    #[arg(long, value_name = "IP:PORT", env = "PODWIRE_NODE_METRICS_ADDRESS")]
    metrics_address: Option<String>,
    /// End when standard input, a socket, is closed: together with the process that started this
    /// one
    #[arg(long, hide = true)]
    until_stdin_ends: bool,
    /// What to log: a level, or filters such as info,podwire_ovs=debug
    #[arg(
        long,
        value_name = "FILTER",
        env = "PODWIRE_LOG",
        default_value = "info"
    )]
    log: String,
    /// What to do with system calls that the node role does not make: enforce, log or off
    #[arg(
        long,
        value_name = "ACTION",
        env = "PODWIRE_SECCOMP",
        default_value = "enforce"
    )]
    seccomp: Seccomp,
}

#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// text, or json for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    output: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

#[derive(Debug, Args)]
struct CleanupArgs {
    #[command(flatten)]
    places: PlaceArgs,
    /// Clean up even if pods have ports on this node; they lose their connection to the outside
    #[arg(long)]
    force: bool,
    /// If `podwire node run` is active, wait until it ends instead of failing; for a DaemonSet
    #[arg(long)]
    wait: bool,
    /// Also remove what the cluster stores about this node: its annotations in the API, its chassis
    /// in the southbound database
    #[arg(long)]
    cluster: bool,
    /// With --cluster: this node's name in Kubernetes [default: the host name, in lower case]
    #[arg(long, value_name = "NAME", env = "PODWIRE_NODE_NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    api: ApiArgs,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error("after {limit} ms: {missing}", limit = API_LIMIT.as_millis())]
    Api { missing: String },
    #[error("remove the node's annotations: {0}")]
    Withdraw(#[from] kube::Error),
    #[error(transparent)]
    Southbound(#[from] SouthboundError),
    #[error("lock-down: {0}")]
    Lockdown(#[from] LockdownError),
    #[error("start the asynchronous runtime: {0}")]
    Runtime(std::io::Error),
    #[error("read what podwire node run has recorded: {0}")]
    Record(std::io::Error),
    #[error("write the answer: {0}")]
    Output(#[from] std::io::Error),
    #[error("raise the limit of open files: {0}")]
    Descriptors(std::io::Error),
    #[error("receive signals: {0}")]
    Signals(std::io::Error),
    #[error("--metrics-address {address}: listen there: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
}

impl Wanted {
    /// The goal, and the API server that provides the rest.
    async fn check(
        self,
        surroundings: &Surroundings<'_>,
    ) -> Result<(Goal, Option<Access>, Places), Failure> {
        let access = self.api.access();
        let mut settings = self.settings.check(access.is_some())?;
        let flags = [
            "--node-subnet",
            "--cluster-subnet",
            "--service-cidr",
            "--encap-ip",
            "--mtu",
        ];
        settings.origins = flags.map(|flag| (flag, (surroundings.origin)(flag))).into();
        let places = self.places.check()?;
        let host = match &access {
            Some(access) => Some(podwire_apiserver::host(access).await?),
            None => None,
        };
        let goal = Goal {
            settings: Some(settings),
            take_over: self.take_over,
            api_server: host.map(|host| Server {
                what: "API server",
                host,
            }),
            uplink: None,
        };
        Ok((goal, access, places))
    }

    /// The goal, with what the API server provides, if there is one.
    async fn goal(
        self,
        surroundings: &Surroundings<'_>,
    ) -> Result<(Goal, Option<Client>, Places), Failure> {
        let (mut goal, access, places) = self.check(surroundings).await?;
        let mut api = None;
        if let (Some(access), Some(settings)) = (access, &mut goal.settings) {
            let mut watch = Watch::start(&access, &settings.node_name, settings.mode).await?;
            let deadline = Instant::now() + API_LIMIT;
            loop {
                let missing = match settings.follow(&watch.cluster) {
                    Ok(_) => break,
                    Err(FollowError::Invalid(error)) => return Err(error.into()),
                    Err(FollowError::Missing(missing)) => missing,
                };
                let told = timeout_at(deadline, watch.changed()).await;
                told.map_err(|_| Failure::Api { missing })?;
            }
            api = Some(watch.client);
        }
        Ok((goal, api, places))
    }
}

/// The process that started the command.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Passes a message to the service manager (sd_notify(3)).
    pub tell: &'a dyn Fn(&str),
    /// The interval of liveness messages (sd_watchdog_enabled(3)).
    pub watchdog: Option<Duration>,
    /// Returns the source of a flag's value, as text to append.
    pub origin: &'a dyn Fn(&str) -> String,
}

/// Runs the command.
pub fn main(command: NodeCommand, surroundings: &Surroundings<'_>) -> ExitCode {
    let run = || -> Result<ExitCode, Failure> {
        if let Verb::Run(arguments) = &command.verb {
            arguments.prepare(surroundings)?;
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Runtime)?;
        runtime.block_on(command.verb.run(surroundings))
    };
    match run() {
        Ok(code) => code,
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(Failure::Settings(error)) => {
            eprintln!("podwire node: {error}{}", (surroundings.origin)(error.flag));
            ExitCode::from(TO_DO)
        }
        Err(error) => {
            eprintln!("podwire node: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Verb {
    async fn run(self, surroundings: &Surroundings<'_>) -> Result<ExitCode, Failure> {
        match self {
            Self::Plan(wanted) => {
                let (goal, api, places) = wanted.goal(surroundings).await?;
                let (look, _) = look(&goal, &places).await?;
                let preflight = match &goal.settings {
                    Some(settings) => Preflight::look(settings, &look, api.as_ref()).await,
                    None => Preflight::default(),
                };
                let (text, to_do) = show::plan(&look, &preflight);
                say(&text)?;
                Ok(ExitCode::from(if to_do { TO_DO } else { 0 }))
            }
            Self::Show(ShowArgs { wanted, output }) => {
                let (goal, _, places) = wanted.goal(surroundings).await?;
                let (look, journal) = look(&goal, &places).await?;
                let run = role(&places.directory).map_err(Failure::Record)?;
                let run = run.filter(|role| role.runs);
                let kept = kept::read(&places.directory);
                let (undos, run) = (journal.undos(), run.as_ref());
                let text = match output {
                    Format::Text => show::items(&look, undos, &kept, run),
                    Format::Json => format!("{:#}\n", show::json(&look, undos, &kept, run)),
                };
                say(&text)?;
                let is_well = show::is_well(&look, run);
                Ok(ExitCode::from(if is_well { 0 } else { TO_DO }))
            }
            Self::Init(wanted) => {
                let (goal, api, places) = wanted.goal(surroundings).await?;
                let mut node = Node::open(goal, &places).await?;
                for warning in node.preflight(api.as_ref()).await? {
                    eprintln!("podwire node: note: {warning}");
                }
                let done = node.init().await?;
                report(&done, &node)
            }
            Self::Run(arguments) => arguments.run(surroundings).await,
            Self::Cleanup(arguments) => arguments.run().await,
        }
    }
}

impl CleanupArgs {
    async fn run(self) -> Result<ExitCode, Failure> {
        let goal = Goal {
            settings: None,
            take_over: false,
            api_server: None,
            uplink: None,
        };
        let name = settings::node_name(self.node_name)?;
        let access = self.api.access().filter(|_| self.cluster);
        let client = match access {
            Some(access) => Some(podwire_apiserver::client(&access).await?),
            None => None,
        };
        let places = self.places.check()?;
        let journal = hold(&places, self.wait, pin!(ended()?)).await?;
        let mut node = Node::with_journal(goal, &places, journal).await?;
        let chassis = node.look().await?.actual.switch.chassis();
        let done = node.cleanup(self.force).await?;
        report(&done, &node)?;
        if let Some(client) = client {
            let count = announce::withdraw(&client, &name).await?;
            say(&format!("removed {count} annotations of node {name}\n"))?;
        }
        if let Some(chassis) = chassis.filter(|_| self.cluster) {
            // ovn-controller has left: the removed key told it to.
            let text = match chassis.delete().await? {
                0 => format!("no chassis {} in the southbound database\n", chassis.name),
                _ => format!(
                    "removed chassis {} from the southbound database\n",
                    chassis.name
                ),
            };
            say(&text)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl RunArgs {
    /// Opens the log and drops the privileges that are not needed, while there is one thread.
    fn prepare(&self, surroundings: &Surroundings<'_>) -> Result<(), Failure> {
        tracing_subscriber::fmt()
            .with_env_filter(EnvFilter::new(&self.log))
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .init();
        let Wanted {
            settings,
            places,
            api,
            ..
        } = &self.wanted;
        let mut given = vec![("--mode", format!("{:?}", settings.mode).to_lowercase())];
        given.push(("--ovsdb", places.ovsdb.clone()));
        given.extend(settings.ovn_remote.clone().map(|it| ("--ovn-remote", it)));
        given.extend(api.server());
        let given = given.into_iter().map(|(flag, value)| {
            let origin = (surroundings.origin)(flag);
            format!("{flag} {value}{origin}")
        });
        tracing::info!(settings = given.collect::<Vec<_>>().join(", "), "starting");
        let places = places.clone().check()?;
        let held = privileges(&places).keep(self.seccomp)?;
        tracing::info!(%held, "dropped all other privileges");
        Ok(())
    }

    async fn run(self, surroundings: &Surroundings<'_>) -> Result<ExitCode, Failure> {
        let metrics_address = self.metrics_address.as_deref().map(loopback).transpose()?;
        let (goal, access, places) = self.wanted.check(surroundings).await?;
        let signals = ended()?;
        let starter = self.until_stdin_ends.then(starter).transpose();
        let mut starter = starter.map_err(Failure::Signals)?;
        let stop = async move {
            tokio::select! {
                () = signals => {}
                () = starter_ended(&mut starter) => return,
            }
            if let Some(starter) = &mut starter {
                // This tells it that nothing has failed.
                let _ = starter.write(b"\n").await;
            }
        };
        raise_descriptor_limit().map_err(Failure::Descriptors)?;
        let kept = Kept::open(&places.directory);
        let mut pages = JoinSet::new();
        if let Some(address) = metrics_address {
            let listener = http::listen(address);
            let listener = listener.map_err(|source| Failure::Listen { address, source })?;
            let metrics = kept.metrics();
            let page = move |request: Request<_>| ready(metrics.page(request.uri().path()));
            pages.spawn(http::serve(listener, Arc::default(), page));
        }
        let settings = goal.settings.as_ref();
        let watch = match (access, settings) {
            (Some(access), Some(settings)) => {
                Some(Watch::start(&access, &settings.node_name, settings.mode).await?)
            }
            _ => None,
        };
        let mut stop = pin!(stop);
        let journal = hold(&places, self.standby, stop.as_mut()).await?;
        let node = Node::with_journal(goal, &places, journal).await?;
        run::run(node, kept, watch, surroundings, stop).await?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Looks without changing anything.
async fn look(goal: &Goal, places: &Places) -> Result<(Look, Journal), NodeError> {
    let journal = Journal::read(&places.directory)?;
    let connections = Connections::open(places, goal).await?;
    let look = connections.look(goal, journal.undos(), None).await?;
    Ok((look, journal))
}

/// The process that started this one, by standard input.
fn starter() -> std::io::Result<UnixStream> {
    let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    UnixStream::from_std(socket)
}

/// Waits until that process ends; without one, for ever.
async fn starter_ended(starter: &mut Option<UnixStream>) {
    match starter {
        Some(stream) => while stream.read(&mut [0]).await.is_ok_and(|length| length > 0) {},
        None => std::future::pending().await,
    }
}

/// Completes when a signal asks the process to end. Otherwise a container's first process ignores
/// such signals.
fn ended() -> Result<impl Future<Output = ()>, Failure> {
    let ends = |kind| signal(kind).map_err(Failure::Signals);
    let mut terminate = ends(SignalKind::terminate())?;
    let mut interrupt = ends(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    })
}

/// Locks the journal; `stop` ends a process that waits for it.
async fn hold(
    places: &Places,
    waits: bool,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Journal, Failure> {
    match Journal::hold(&places.directory) {
        Err(JournalError::Held(_)) if waits => {
            say("waiting for the end of the `podwire node` that keeps this machine\n")?;
        }
        held => return Ok(held.map_err(NodeError::from)?),
    }
    let directory = places.directory.clone();
    // A process that waits for a lock can't be notified.
    let held = tokio::task::spawn_blocking(move || Journal::hold_when_free(&directory));
    let journal = tokio::select! {
        held = held => held.map_err(|error| Failure::Runtime(error.into()))?,
        () = stop => std::process::exit(0),
    };
    Ok(journal.map_err(NodeError::from)?)
}

/// What was done, step by step, and how often the machine was changed.
fn report(done: &[crate::diff::Step], node: &Node) -> Result<ExitCode, Failure> {
    let counts = node.counts();
    let mut text: String = done.iter().map(|step| show::done(step) + "\n").collect();
    text += &format!(
        "{} steps: {} changes by netlink and nft, {} transactions of Open vSwitch's database, {} \
         files written{}\n",
        done.len(),
        counts.netlink,
        counts.ovsdb,
        counts.files,
        match counts.dbus {
            0 => String::new(),
            calls => format!(", {calls} calls of firewalld"),
        }
    );
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
