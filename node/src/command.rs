//! The command line of `podwire node`.

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};

use crate::journal::Journal;
use crate::keep::{Eyes, Goal, Node, NodeError};
use crate::settings::{PlaceArgs, SettingsArgs, SettingsError};
use crate::show;

/// Make this machine a part of the pod network, and undo it
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub struct NodeCommand {
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "\
Exit codes: 0 all is well, 1 it failed, 2 there is something to do (plan, show) or wrong usage.";
/// plan's and show's code when there is something to do.
const TO_DO: u8 = 2;

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show what init would do, and change nothing
    Plan(Wanted),
    /// Make the node so: switch, management port, routes, forwarding, nftables
    Init(Wanted),
    /// Show every item and how it is
    Show(ShowArgs),
    /// Remove all that podwire made here, and put back what was there
    Cleanup(CleanupArgs),
}

#[derive(Debug, Args)]
struct Wanted {
    #[command(flatten)]
    settings: SettingsArgs,
    #[command(flatten)]
    places: PlaceArgs,
    /// Take over what ovn-kubernetes or others made in our place; cleanup gives it back
    #[arg(long)]
    take_over: bool,
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
    /// Also when pods have ports on this node, which then lose their way out
    #[arg(long)]
    force: bool,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error("start the asynchronous runtime: {0}")]
    Runtime(std::io::Error),
    #[error("write the answer: {0}")]
    Output(#[from] std::io::Error),
}

impl Wanted {
    fn goal(self) -> Result<(Goal, crate::settings::Places), SettingsError> {
        let goal = Goal {
            settings: Some(self.settings.check()?),
            take_over: self.take_over,
        };
        Ok((goal, self.places.check()?))
    }
}

/// Runs the command.
pub fn main(command: NodeCommand) -> ExitCode {
    let run = || -> Result<ExitCode, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Failure::Runtime)?;
        runtime.block_on(command.verb.run())
    };
    match run() {
        Ok(code) => code,
        Err(Failure::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error @ Failure::Settings(_)) => {
            eprintln!("podwire node: {error}");
            ExitCode::from(TO_DO)
        }
        Err(error) => {
            eprintln!("podwire node: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Verb {
    async fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::Plan(wanted) => {
                let (goal, places) = wanted.goal()?;
                let journal = Journal::read(&places.directory).map_err(NodeError::from)?;
                let eyes = Eyes::open(&places).await?;
                let look = eyes.look(&goal, journal.undos()).await?;
                let (text, to_do) = show::plan(&look);
                say(&text)?;
                Ok(if to_do {
                    TO_DO.into()
                } else {
                    ExitCode::SUCCESS
                })
            }
            Self::Show(ShowArgs { wanted, output }) => {
                let (goal, places) = wanted.goal()?;
                let journal = Journal::read(&places.directory).map_err(NodeError::from)?;
                let eyes = Eyes::open(&places).await?;
                let look = eyes.look(&goal, journal.undos()).await?;
                let text = match output {
                    Format::Text => show::items(&look, journal.undos()),
                    Format::Json => format!("{:#}\n", show::json(&look, journal.undos())),
                };
                say(&text)?;
                Ok(match show::is_well(&look) {
                    true => ExitCode::SUCCESS,
                    false => TO_DO.into(),
                })
            }
            Self::Init(wanted) => {
                let (goal, places) = wanted.goal()?;
                let mut node = Node::open(goal, &places).await?;
                let done = node.init().await?;
                report(&done, &node)
            }
            Self::Cleanup(CleanupArgs { places, force }) => {
                let goal = Goal {
                    settings: None,
                    take_over: false,
                };
                let mut node = Node::open(goal, &places.check()?).await?;
                let done = node.cleanup(force).await?;
                report(&done, &node)
            }
        }
    }
}

/// What was done, step by step, and how often the machine was written to.
fn report(done: &[crate::diff::Step], node: &Node) -> Result<ExitCode, Failure> {
    let counts = node.counts();
    let mut text: String = done.iter().map(|step| show::done(step) + "\n").collect();
    text += &format!(
        "{} steps: {} changes by netlink and nft, {} transactions of Open vSwitch's database, {} \
         files written\n",
        done.len(),
        counts.netlink,
        counts.ovsdb,
        counts.files
    );
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn say(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
