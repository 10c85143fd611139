//! `podwire ports`: the pods' ports as a table, once or live.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _};

use clap::{Args, ValueEnum};
use itertools::Itertools as _;

use super::paint::{Paint, height, pod_or_container, printable, short_id};
use super::table::table;
use super::time::{age, now_micros};
use super::{CommonArgs, Exit, ToolError, json, show, yaml};
use podwire::inspect::{Change, Filter, PortList, PortView};
use podwire::plan::ids;
use podwire::ports::PortState;

/// The flags of `podwire ports`.
#[derive(Debug, Args)]
#[command(
    after_help = "Exit code 1: one of the ports shown has failed; 3: the agent can't see the \
                  switch.\n\
                  In a pipe, --watch prints a line for each change; with -o json a JSON object,\n\
                  with -o yaml a document."
)]
pub struct PortsArgs {
    /// Show only this pod, NAMESPACE/NAME or NAME
    pod: Option<String>,
    /// Show only this namespace
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Show only ports in this state: up, failed, awaits-ofport or awaits-ovn
    #[arg(short, long, value_name = "STATE", hide_possible_values = true)]
    state: Option<PortState>,
    /// text, wide, or json or yaml for programs
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "text",
        hide_possible_values = true
    )]
    output: Output,
    /// Omit the table's header
    #[arg(long)]
    no_headers: bool,
    /// Show changes as they happen
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    common: CommonArgs,
}

/// The format of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// A table
    Text,
    /// A table with all columns
    Wide,
    /// For programs
    Json,
    /// The same as YAML
    Yaml,
}

impl PortsArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let filter = Filter {
            pod: self.pod.clone(),
            namespace: self.namespace.clone(),
            state: self.state,
            watch: self.watch,
            ..Filter::default()
        };
        let path = format!("/v1/ports{filter}");
        if self.watch {
            return self.follow(&path).await;
        }
        let agent = self.common.agent();
        let list: PortList = agent.get(&path).await?;
        match self.output {
            Output::Json => show(&json(&list)?)?,
            Output::Yaml => show(&yaml(&list)?)?,
            Output::Text | Output::Wide => show(&self.table(&list.ports))?,
        }
        let has_failed = |port: &PortView| port.state == PortState::Failed;
        agent.sees_the_switch().await?;
        Ok(Exit::by_health(!list.ports.iter().any(has_failed)))
    }

    fn table(&self, ports: &[PortView]) -> String {
        let table = Table {
            wide: self.output == Output::Wide,
            headings: !self.no_headers,
            now: now_micros(),
            paint: self.common.paint(),
        };
        text(ports, &table)
    }

    async fn follow(&self, path: &str) -> Result<Exit, ToolError> {
        let paint = self.common.paint();
        let mut lines = self.common.agent().lines(path).await?;
        let mut ports: BTreeMap<String, PortView> = BTreeMap::new();
        let on_terminal = io::stdout().is_terminal();
        while let Some(change) = lines.next::<Change>().await {
            match self.output {
                Output::Json => show(&format!("{}\n", serde_json::json!(change)))?,
                Output::Yaml => show(&format!("---\n{}", yaml(&change)?))?,
                _ if on_terminal => {
                    let current = change.current;
                    apply(&mut ports, change);
                    let mut shown: Vec<PortView> = ports.values().cloned().collect();
                    podwire::inspect::sort(&mut shown);
                    show(&picture(&self.table(&shown), current, paint))?;
                }
                _ => {
                    show(&describe(&ports, &change, paint))?;
                    apply(&mut ports, change);
                }
            }
        }
        eprintln!("podwire: the agent has stopped");
        Ok(Exit::Blind)
    }
}

fn apply(ports: &mut BTreeMap<String, PortView>, change: Change) {
    for name in change.removed {
        ports.remove(&name);
    }
    ports.extend(
        change
            .changed
            .into_iter()
            .map(|port| (port.name.clone(), port)),
    );
}

/// Redraws the screen, as far as the table fits.
fn picture(table: &str, current: bool, paint: Paint) -> String {
    let room = height().unwrap_or(24).saturating_sub(2);
    let lines: Vec<&str> = table.lines().collect();
    let mut text = "\x1b[H\x1b[J".to_owned();
    for line in lines.iter().take(room) {
        text.push_str(line);
        text.push('\n');
    }
    let more = lines.len().saturating_sub(room);
    let mut foot = "live; Ctrl-C ends".to_owned();
    if more > 0 {
        foot = format!("{more} more; {foot}");
    }
    text.push_str(&paint.faint(&foot));
    if !current {
        text.push_str(&paint.bad("  Open vSwitch's database is away: this is how it was"));
    }
    text
}

/// A change, one line per port.
fn describe(before: &BTreeMap<String, PortView>, change: &Change, paint: Paint) -> String {
    let mut text = String::new();
    if !change.current {
        text.push_str("# Open vSwitch's database is away\n");
    }
    for name in &change.removed {
        let pod = before.get(name).map_or_else(|| "-".to_owned(), pod);
        text.push_str(&format!("gone           {:<20}  {name}\n", printable(&pod)));
    }
    for port in &change.changed {
        let state = format!("{:<13}", port.state.word());
        let cells = [
            format!("{:<20}", pod(port)),
            port.name.clone(),
            addresses(port),
        ];
        let error = port.error.clone().unwrap_or_default();
        let line = format!("{}  {error}", cells.join("  "));
        text.push_str(&format!(
            "{}  {}\n",
            coloured(port.state, &state, paint),
            printable(line.trim_end())
        ));
    }
    text
}

/// How to draw the table.
struct Table {
    wide: bool,
    headings: bool,
    /// Microseconds since 1970.
    now: u64,
    paint: Paint,
}

fn text(ports: &[PortView], how: &Table) -> String {
    if ports.is_empty() {
        return match how.headings {
            true => "no ports\n".to_owned(),
            false => String::new(),
        };
    }
    let paint = |row: usize, column, cell: &str| match column {
        2 => coloured(ports[row].state, cell, how.paint),
        _ => cell.to_owned(),
    };
    let narrow = |port| narrow(port, how.now);
    let mut text = match how.wide {
        true => {
            let rows: Vec<_> = ports.iter().map(|port| wide(port, narrow(port))).collect();
            table(how.headings.then_some(WIDE), &rows, paint)
        }
        false => {
            let rows: Vec<_> = ports.iter().map(narrow).collect();
            table(how.headings.then_some(NARROW), &rows, paint)
        }
    };
    for port in ports {
        if let Some(error) = &port.error {
            let line = format!("{}: {error}", port.name);
            text.push_str(&format!("{}\n", how.paint.bad(&printable(&line))));
        }
    }
    text
}

/// The columns of the narrow table are the first of the wide one.
const NARROW: [&str; 8] = match WIDE.first_chunk() {
    Some(first) => *first,
    None => panic!("fewer columns than narrow ones"),
};
const WIDE: [&str; 14] = [
    "POD",
    "IF",
    "STATE",
    "AGE",
    "ADDRESSES",
    "MAC",
    "PORT",
    "OFPORT",
    "MTU",
    "NETWORK",
    "CONTAINER",
    "IFACE-ID",
    "BRIDGE",
    "NETNS",
];

fn narrow(port: &PortView, now: u64) -> [String; 8] {
    [
        pod(port),
        or_dash(port.pod_ifname.as_deref()),
        port.state.word().to_owned(),
        or_dash(port.added_unix_micros.map(|it| age(it, now)).as_deref()),
        addresses(port),
        or_dash(port.mac.as_deref()),
        port.name.clone(),
        port.ofport
            .map_or_else(|| "-".to_owned(), |it| it.to_string()),
    ]
    .map(|cell| printable(&cell))
}

fn wide(port: &PortView, narrow: [String; 8]) -> [String; 14] {
    let [pod, ifname, state, age, addresses, mac, name, ofport] = narrow;
    let key = port.key.as_ref();
    let container = key.map(|key| short_id(&key.container_id));
    [
        pod,
        ifname,
        state,
        age,
        addresses,
        mac,
        name,
        ofport,
        port.mtu.map_or_else(|| "-".to_owned(), |it| it.to_string()),
        or_dash(key.map(|key| key.network.as_str())),
        or_dash(container.as_deref()),
        or_dash(port.external_ids.get(ids::IFACE_ID).map(String::as_str)),
        or_dash(port.bridge.as_deref()),
        or_dash(port.netns.as_deref()),
    ]
    .map(|cell| printable(&cell))
}

fn pod(port: &PortView) -> String {
    let container = port.key.as_ref().map(|key| key.container_id.as_str());
    pod_or_container(port.pod.as_deref(), container)
}

fn addresses(port: &PortView) -> String {
    let list = port.addresses.iter().join(",");
    or_dash(Some(list).filter(|it| !it.is_empty()).as_deref())
}

fn or_dash(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn coloured(state: PortState, text: &str, paint: Paint) -> String {
    match state {
        PortState::Up => paint.good(text),
        PortState::AwaitsOfport | PortState::AwaitsOvn => paint.doubtful(text),
        PortState::Failed => paint.bad(text),
    }
}

#[cfg(test)]
mod tests;
