//! Parses the output of ovs-vswitchd's `ofproto/trace`: the flows that a packet matches, and where
//! it ends.

use serde::Serialize;

use podwire::flows::rules;

/// A packet's path through the switch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Way {
    pub(super) steps: Vec<Step>,
    pub(super) ends: Vec<End>,
}

/// A table that the packet passes, and the flow that it matches there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Step {
    bridge: String,
    table: u8,
    /// The flow's match and priority, or `No match.`.
    flow: String,
    #[serde(skip)]
    cookie: Option<u64>,
    actions: Vec<String>,
}

/// Where a packet leaves the switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum End {
    /// This port.
    Port(String),
    /// A tunnel to this node.
    Tunnel(String),
    /// The OpenFlow controller, which decides.
    Controller,
}

impl Way {
    pub(crate) fn read(printed: &str) -> Self {
        let mut way = Self::default();
        let mut bridge = String::new();
        for line in printed.lines() {
            let line = line.trim();
            if let Some(name) = line.strip_prefix("bridge(\"") {
                bridge = name.trim_end_matches("\")").to_owned();
            } else if let Some(actions) = line.strip_prefix("Datapath actions: ") {
                ends(actions, &mut None, &mut way.ends);
            } else if let Some((table, flow)) = step(line) {
                way.steps.push(Step {
                    bridge: bridge.clone(),
                    table,
                    flow: without_cookie(flow).to_owned(),
                    cookie: cookie(flow),
                    actions: Vec::new(),
                });
            } else if !is_frame(line)
                && let Some(step) = way.steps.last_mut()
            {
                step.actions.push(line.to_owned());
            }
        }
        way
    }

    /// Why the packet goes no further than its last step.
    pub(crate) fn reason(&self) -> String {
        let Some(last) = self.steps.last() else {
            return "it meets no flow".to_owned();
        };
        let is_ours = |step: &Step| step.cookie.is_some_and(rules::is_ours);
        let refusal = match self.steps.iter().any(is_ours) {
            true => rules::refusal(last.table),
            false => None,
        };
        let place = format!("table {} of {}", last.table, last.bridge);
        let flow = match last.flow.as_str() {
            "No match." => format!("{place} has no matching flow"),
            flow => format!("{place}, {flow}"),
        };
        match (
            refusal,
            last.actions.iter().rfind(|it| it.starts_with("-> ")),
        ) {
            (Some(refusal), _) => format!("{refusal} ({flow})"),
            (None, Some(remark)) => format!("{flow}: {}", remark.trim_start_matches("-> ")),
            (None, None) => flow,
        }
    }

    /// The cookie of the last flow that it matches.
    pub(crate) fn last_cookie(&self) -> Option<u64> {
        self.steps.last()?.cookie.filter(|cookie| *cookie != 0)
    }

    /// The ports by which it leaves.
    pub(super) fn ports(&self) -> impl Iterator<Item = &str> {
        self.ends.iter().filter_map(|end| match end {
            End::Port(name) => Some(name.as_str()),
            End::Tunnel(_) | End::Controller => None,
        })
    }
}

impl Step {
    /// `table 240  ip,in_port=web, priority 100: resubmit(,243)`
    pub(super) fn text(&self) -> String {
        let table = format!("{} table {}", self.bridge, self.table);
        format!("{table:<18} {}: {}", self.flow, self.actions.join(", "))
    }
}

/// Parses ` 0. ip,in_port=web, priority 100` into table and flow.
fn step(line: &str) -> Option<(u8, &str)> {
    let (table, flow) = line.split_once(". ")?;
    Some((table.parse().ok()?, flow))
}

fn cookie(flow: &str) -> Option<u64> {
    let (_, cookie) = flow.split_once(", cookie 0x")?;
    u64::from_str_radix(cookie.split(',').next()?, 16).ok()
}

fn without_cookie(flow: &str) -> &str {
    flow.split_once(", cookie 0x")
        .map_or(flow, |(flow, _)| flow)
}

/// Whether a line is neither a flow nor an action.
fn is_frame(line: &str) -> bool {
    const FRAMES: [&str; 8] = [
        "Flow:",
        "Final flow:",
        "Megaflow:",
        "recirc(",
        "thaw",
        "Resuming from table",
        "----",
        "====",
    ];
    line.is_empty() || FRAMES.iter().any(|frame| line.starts_with(frame))
}

/// Where datapath actions (ovs-actions(7), in the form of odp-util) send a packet. A tunnel's
/// header comes before its port.
pub(crate) fn ends(actions: &str, tunnel: &mut Option<String>, found: &mut Vec<End>) {
    for action in split(actions) {
        let (name, inside) = match action.split_once('(') {
            Some((name, inside)) => (name, Some(inside.strip_suffix(')').unwrap_or(inside))),
            None => (action, None),
        };
        match (name, inside) {
            ("set", Some(inside)) if inside.starts_with("tunnel(") => {
                *tunnel = value(inside, "dst=");
            }
            ("tnl_push", Some(inside)) => {
                let ip = inside.find("ipv4(").or_else(|| inside.find("ipv6("));
                *tunnel = ip.and_then(|at| value(&inside[at..], "dst="));
            }
            ("userspace", Some(inside)) if inside.contains("controller(") => {
                put(found, End::Controller);
            }
            ("clone" | "gt" | "le", Some(inside)) => ends(inside, &mut None, found),
            ("check_pkt_len", Some(inside)) => ends(inside, &mut None, found),
            (_, Some(_)) | ("drop" | "ct_clear" | "pop_vlan" | "pop_eth" | "pop_nsh" | "", _) => {}
            // `size=1500` of check_pkt_len.
            (name, None) if name.contains('=') => {}
            (name, None) => put(
                found,
                match tunnel.take() {
                    Some(peer) => End::Tunnel(peer),
                    None => End::Port(name.to_owned()),
                },
            ),
        }
    }
}

fn put(found: &mut Vec<End>, end: End) {
    if !found.contains(&end) {
        found.push(end);
    }
}

fn value(text: &str, key: &str) -> Option<String> {
    let (_, rest) = text.split_once(key)?;
    let end = rest.find([',', ')']).unwrap_or(rest.len());
    Some(rest[..end].to_owned())
}

/// Splits at commas outside of parentheses.
pub(crate) fn split(actions: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    actions
        .split(move |c| {
            match c {
                '(' => depth += 1,
                ')' => depth = depth.saturating_sub(1),
                _ => {}
            }
            c == ',' && depth == 0
        })
        .map(str::trim)
}
