//! The command line of `podwire node`.

mod cleanup;
mod done;
mod run;
mod uplink;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use kube::Client;
use podwire_apiserver::{Access, AccessError};
use podwire_daemon::exit::{EXIT_CODES, Exit};
use podwire_daemon::lockdown::LockdownError;
use podwire_daemon::output::{OutputArgs, show as say};
use podwire_daemon::settings::SettingsError;
use podwire_daemon::{Manager, process};
use tokio::time::{Instant, timeout_at};

use cleanup::CleanupArgs;
use done::Done;
use run::RunArgs;
use uplink::{GuardArgs, UplinkArgs};

use crate::journal::{Journal, JournalError};
use crate::preflight::Preflight;
use crate::reconcile::{NodeError, Reconciler, undo_unguarded};
use crate::record;
use crate::role::role;
use crate::servers::Server;
use crate::services;
use crate::settings::{ApiArgs, ClusterSettings, FollowError, PlaceArgs, Places, SettingsArgs};
use crate::show::{self, Planned};
use crate::snapshot::{Connections, Goal, Snapshot};
use crate::southbound::SouthboundError;
use crate::watch::Watch;

/// Join this machine to the pod network, or undo that
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct NodeCommand {
    #[command(subcommand)]
    verb: Verb,
}

/// Time limit for the API server to report the node.
const API_LIMIT: Duration = Duration::from_secs(10);

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what init would do, and change nothing
    Plan(ShowArgs),
    /// Set up the node: Open vSwitch, management port, routes, forwarding, nftables
    Init(InitArgs),
    /// Keep the NIC in its bridge, after `init --confirm-within`
    Confirm(UplinkArgs),
    /// Move the NIC out of its bridge, with everything that was on it before
    Rollback(UplinkArgs),
    /// Move the NIC back at a deadline
    #[command(hide = true)]
    Guard(GuardArgs),
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
struct InitArgs {
    #[command(flatten)]
    wanted: Wanted,
    /// Profile bridged: a person confirms the move by `podwire node confirm` within this time,
    /// such as 2m, or it is undone [default: init confirms what it has verified]
    #[arg(long, value_name = "TIME")]
    confirm_within: Option<String>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct ShowArgs {
    #[command(flatten)]
    wanted: Wanted,
    #[command(flatten)]
    output: OutputArgs,
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
    #[error("remove the node's annotations and resources: {0}")]
    Withdraw(String),
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
    #[error("no NIC is in a bridge of podwire's")]
    NothingMoved,
    #[error("receive signals: {0}")]
    Signals(std::io::Error),
    #[error("--metrics-address {address}: listen there: {source}")]
    Listen {
        address: SocketAddr,
        source: std::io::Error,
    },
}

impl Wanted {
    /// For a command by which a person has the NIC moved.
    fn moving(mut self) -> Self {
        self.settings.moves = true;
        self
    }

    /// The goal, and the API server that provides the rest.
    async fn check(
        self,
        surroundings: &Surroundings<'_>,
    ) -> Result<(Goal, Option<Access>, Places), Failure> {
        let access = self.api.access()?;
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
            ..Goal::default()
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
            let mut given = ClusterSettings::default();
            loop {
                let cluster = &watch.cluster;
                let missing = match settings.follow(cluster, &mut given) {
                    Ok(_) if settings.with(&given).is_known(cluster) => break,
                    Ok(_) => None,
                    Err(FollowError::Invalid(error)) => return Err(error.into()),
                    Err(FollowError::Missing(missing)) => Some(missing),
                };
                match (timeout_at(deadline, watch.changed()).await, missing) {
                    (Ok(()), _) => {}
                    // The flags suffice.
                    (Err(_), None) => break,
                    (Err(_), Some(missing)) => return Err(Failure::Api { missing }),
                }
            }
            *settings = settings.with(&given);
            if settings.shares {
                let settings = settings.clone();
                let (snapshot, _) = snapshot(&goal, &places).await?;
                goal.led = services::led(&watch.cluster, &settings, &snapshot);
            }
            api = Some(watch.client);
        } else {
            goal.led = Some(BTreeSet::new());
        }
        Ok((goal, api, places))
    }
}

/// The process that started the command.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// The service manager.
    pub manager: &'a Manager,
    /// Returns the source of a flag's value, as text to append.
    pub origin: &'a dyn Fn(&str) -> String,
}

/// Runs the command.
pub fn main(command: NodeCommand, surroundings: &Surroundings<'_>) -> ExitCode {
    let looks = matches!(command.verb, Verb::Plan(_) | Verb::Show(_));
    let run = || -> Result<ExitCode, Failure> {
        if let Verb::Run(arguments) = &command.verb {
            arguments.prepare(surroundings)?;
        }
        let runtime = process::runtime().map_err(Failure::Runtime)?;
        runtime.block_on(command.verb.run(surroundings))
    };
    match run() {
        Ok(code) => code,
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(Failure::Settings(error)) => {
            eprintln!("podwire node: {error}{}", (surroundings.origin)(error.flag));
            Exit::Usage.into()
        }
        Err(error) => {
            eprintln!("podwire node: {error}");
            match looks {
                true => Exit::Blind.into(),
                false => Exit::Unwell.into(),
            }
        }
    }
}

impl Verb {
    async fn run(self, surroundings: &Surroundings<'_>) -> Result<ExitCode, Failure> {
        match self {
            Self::Plan(ShowArgs { wanted, output }) => {
                let (goal, api, places) = wanted.moving().goal(surroundings).await?;
                let (snapshot, _) = snapshot(&goal, &places).await?;
                let preflight = match &goal.settings {
                    Some(settings) => Preflight::check(settings, &snapshot, api.as_ref()).await,
                    None => Preflight::default(),
                };
                let planned = Planned::of(&snapshot, &preflight);
                say(&output.output.encode(&planned, || planned.to_string())?)?;
                Ok(Exit::by_health(!planned.has_work()).into())
            }
            Self::Show(ShowArgs { wanted, output }) => {
                let (goal, _, places) = wanted.goal(surroundings).await?;
                let (snapshot, journal) = snapshot(&goal, &places).await?;
                let run = role(&places.directory).await.map_err(Failure::Record)?;
                let kept = record::read(&places.directory);
                let (undos, run) = (journal.undos(), run.as_ref());
                let answer = show::json(&snapshot, undos, &kept, run);
                let text = || show::items(&snapshot, undos, &kept, run);
                say(&output.output.encode(&answer, text)?)?;
                let is_well = show::is_well(&snapshot, run);
                Ok(Exit::by_health(is_well).into())
            }
            Self::Init(arguments) => arguments.run(surroundings).await,
            Self::Confirm(arguments) => arguments.confirm().await,
            Self::Rollback(arguments) => arguments.rollback().await,
            Self::Guard(arguments) => arguments.run(surroundings).await,
            Self::Run(arguments) => arguments.run(surroundings).await,
            Self::Cleanup(arguments) => arguments.run().await,
        }
    }
}

impl InitArgs {
    async fn run(self, surroundings: &Surroundings<'_>) -> Result<ExitCode, Failure> {
        let within = self.confirm_within.as_deref().map(uplink::within);
        let within = within.transpose()?;
        let mut answer = Done::new(self.output);
        let (goal, api, places) = self.wanted.moving().goal(surroundings).await?;
        if let Some(nic) = undo_unguarded(&places).await? {
            answer.warn(format!(
                "note: an unfinished move of {nic} was undone first"
            ));
        }
        let mut reconciler = Reconciler::open(goal, &places).await?;
        reconciler.set_moving(uplink::moving(&places, within, api.clone()))?;
        for warning in reconciler.preflight(api.as_ref()).await? {
            answer.warn(format!("note: {warning}"));
        }
        let done = reconciler.init().await?;
        answer.steps(&done, &reconciler)?;
        if let Some(text) = uplink::awaited(&places)? {
            answer.say(text)?;
        }
        answer.end()?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Looks without changing anything.
async fn snapshot(goal: &Goal, places: &Places) -> Result<(Snapshot, Journal), NodeError> {
    let journal = Journal::read(&places.directory)?;
    let mut connections = Connections::open(places, goal).await?;
    if let Some(settings) = goal.settings.as_ref() {
        connections.ask_southbound(settings).await?;
    }
    let snapshot = connections.snapshot(goal, &journal, None).await?;
    Ok((snapshot, journal))
}

fn ended() -> Result<impl Future<Output = ()>, Failure> {
    process::asked_to_end().map_err(Failure::Signals)
}

/// Locks the journal; `stop` ends a process that waits for it, after `tell` was told so.
async fn hold(
    places: &Places,
    waits: bool,
    tell: impl FnOnce(String) -> std::io::Result<()>,
    stop: Pin<&mut impl Future<Output = ()>>,
) -> Result<Journal, Failure> {
    match Journal::hold(&places.directory) {
        Err(JournalError::Held(_)) if waits => {
            let waits = "waiting for the end of the `podwire node` that keeps this machine";
            tell(waits.to_owned())?;
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
