//! What a change costs with OVN in the measurement: real northbound and southbound databases and
//! ovn-northd of whatever version is installed, below the controller as it is shipped, or below
//! rows of ovn-kubernetes' central shape.

mod crowd;
mod in_force;
mod measure;
mod monitor;
mod node;
mod northd;
mod peer;
mod policies;
mod rows;
mod southbound;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use podwire_tests::{Failure, Step as _};
use serde_json::{Value, json};

use crate::process::Controller;
use measure::Measured;
pub(crate) use monitor::settle;
use rows::Subject;

const HELP: &str = "\
--pods NUMBER,…   sizes of the cluster, 100 pods a node and a service for 10 pods [500,5000]
--changes NUMBER  how many of each kind [100]
--before PATH     another build of the controller, measured in the same run
--preload LIBRARY another row: ovn-northd and ovn-controller started with LD_PRELOAD=LIBRARY
--policies NUMBER instead of pods and endpoints: so many NetworkPolicies over 200 namespaces,
                  changes of labels and policies, and a node with ovn-controller
--blocks NUMBER   networks of each of these policies [1]
--alone           without rows of ovn-kubernetes' shape
--nodes           what the cluster costs an ovn-controller, instead of ovn-northd
--connections NUMBER  with --nodes: so many more beside it, which ask for what it asked for:
                  what they cost the southbound database's server, and a relay
--ovn-option KEY=VALUE  with --nodes: a setting of ovn-controller, as podwire node has them
--stopwatches     what ovn-northd says its phases take
--output PATH     the numbers as JSON";

struct Options {
    sizes: Vec<u32>,
    changes: u32,
    before: Option<PathBuf>,
    preload: Option<String>,
    policies: Option<u32>,
    blocks: u32,
    with_peer: bool,
    with_stopwatches: bool,
    of_nodes: bool,
    connections: u32,
    ovn_options: Vec<(String, String)>,
    output: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            sizes: vec![500, 5000],
            changes: 100,
            before: None,
            preload: None,
            policies: None,
            blocks: 1,
            with_peer: true,
            with_stopwatches: false,
            of_nodes: false,
            connections: 0,
            ovn_options: Vec::new(),
            output: None,
        };
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} takes a value"));
            let number = |text: &str| {
                let number = text.parse().ok().filter(|number| *number > 0);
                number.ok_or(format!("{word}: {text} is no number above 0"))
            };
            match &**word {
                "--pods" => {
                    options.sizes = value()?.split(',').map(number).collect::<Result<_, _>>()?;
                }
                "--changes" => options.changes = number(value()?)?,
                "--before" => options.before = Some(value()?.into()),
                "--preload" => options.preload = Some(value()?.clone()),
                "--policies" => options.policies = Some(number(value()?)?),
                "--blocks" => options.blocks = number(value()?)?,
                "--alone" => options.with_peer = false,
                "--nodes" => options.of_nodes = true,
                "--connections" => options.connections = number(value()?)?,
                "--ovn-option" => {
                    let text = value()?;
                    let pair = text.split_once('=');
                    let (key, value) = pair.ok_or(format!("{word}: {text} is no KEY=VALUE"))?;
                    options.ovn_options.push((key.to_owned(), value.to_owned()));
                }
                "--stopwatches" => options.with_stopwatches = true,
                "--output" => options.output = Some(value()?.into()),
                _ => return Err(format!("there is no {word}; there are:\n{HELP}")),
            }
        }
        Ok(options)
    }
}

pub(crate) fn main(arguments: &[String]) -> ExitCode {
    if arguments.iter().any(|it| it == "--help") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("podwire-bench-controller scale: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("podwire-bench-controller scale: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let mut subjects = vec![Subject::Controller("podwire", Controller::binary())];
    let before = options.before.iter();
    subjects.extend(before.map(|binary| Subject::Controller("before", binary.clone())));
    let preload = options.preload.iter();
    subjects
        .extend(preload.map(|library| Subject::Preloaded(Controller::binary(), library.clone())));
    if options.with_peer {
        subjects.push(Subject::Peer);
    }
    let mut all: Vec<Value> = Vec::new();
    for &pods in &options.sizes {
        let measure = |subject| Measured::take(subject, pods, options);
        let measured: Vec<Measured> = subjects.iter().map(measure).collect::<Result<_, _>>()?;
        table::print(pods, &measured);
        let measured: Vec<Value> = measured.iter().map(Measured::json).collect();
        all.push(json!({ "pods": pods, "measured": measured }));
        if let Some(path) = &options.output {
            std::fs::write(path, format!("{:#}\n", json!({ "sizes": all })))
                .step(|| format!("write {}", path.display()))?;
        }
    }
    Ok(())
}
