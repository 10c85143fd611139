//! A machine that `podwire node` is to make a part of a network: a TestNode with an uplink and an
//! Open vSwitch; and everything that is set on it, for comparison.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::failure::{OrFail, Step};
use crate::process::{Finished, finish};
use crate::schema::assert_valid;
use crate::watch::{await_entry, await_network};
use crate::words::Words;
use crate::{NodeRun, TestNode, agent_binary, faulty_agent_binary};

/// Longer than each of the tool's own waits.
const LIMIT: Duration = Duration::from_secs(90);

/// How long a lease of the tests' DHCP server is.
const LEASE: Duration = Duration::from_secs(120);

/// The subnets and places that every machine is told, unless a test says otherwise.
const SETTINGS: [(&str, &[&str]); 6] = [
    ("--mode", &["ovn"]),
    ("--node-name", &["node-a"]),
    ("--node-subnet", &["10.244.1.0/24", "fd00:10:244:1::/64"]),
    ("--cluster-subnet", &["10.244.0.0/16", "fd00:10:244::/48"]),
    ("--service-cidr", &["10.96.0.0/16", "fd00:10:96::/112"]),
    ("--ovn-remote", &["tcp:192.0.2.9:6642"]),
];

/// A machine with the uplink eth0, 192.0.2.11/24, and a bridge br-int.
#[derive(Debug)]
pub struct Machine {
    node: TestNode,
}

/// Has the first rule with a comment in this table accept everything, under its old comment.
#[track_caller]
pub fn overwrite_rule(node: &TestNode, table: &str) {
    let listed = node.run("nft", format!("-j list table inet {table}"));
    let listed: Value = serde_json::from_str(&listed)
        .step(|| "read nft's list")
        .or_fail();
    let objects = listed["nftables"].as_array().cloned().unwrap_or_default();
    let mut rules = objects.iter().map(|object| &object["rule"]);
    let marked = rules.find(|rule| rule["comment"].is_string());
    let mut rule = marked.cloned().unwrap_or_default();
    rule["expr"] = json!([{"accept": null}]);
    let script = json!({"nftables": [{"replace": {"rule": rule}}]}).to_string();
    node.run("sh", ["-c", &format!("echo '{script}' | nft -j -f -")]);
}

/// The command line of a verb: what every machine is told, and these flags in place of it.
pub fn arguments(verb: &str, flags: impl Words) -> Vec<String> {
    let mut line = vec!["node".to_owned(), verb.to_owned()];
    let flags = flags.words();
    let settings = SETTINGS
        .iter()
        .filter(|_| !["cleanup", "confirm", "rollback"].contains(&verb));
    for (flag, values) in settings.filter(|(flag, _)| !flags.iter().any(|it| it == flag)) {
        for value in *values {
            line.extend([(*flag).to_owned(), (*value).to_owned()]);
        }
    }
    line.extend(flags);
    line
}

/// What is set on a machine, by what it is.
#[derive(Debug, PartialEq, Eq)]
pub struct Snapshot(BTreeMap<String, Value>);

impl Machine {
    /// A machine that nobody made part of a network yet, and whose host has a name of its own.
    #[expect(clippy::new_without_default, reason = "it starts programs")]
    #[track_caller]
    pub fn new() -> Self {
        let node = TestNode::with_ovs();
        let run = |arguments: &str| node.run("ip", arguments);
        run("link add eth0 type veth peer name far");
        // The far end only gives the uplink a carrier. Addresses that the kernel makes by itself
        // come at a time of its own.
        for link in ["far", "eth0"] {
            run(&format!("link set {link} addrgenmode none"));
            run(&format!("link set {link} up"));
        }
        run("address add 192.0.2.11/24 dev eth0");
        run("route add default via 192.0.2.1 onlink dev eth0");
        // The southbound database's machine is not there, and that is known at once.
        run("route add unreachable 192.0.2.9/32");
        node.add_bridge("br-int");
        node.vsctl(
            "set open_vswitch . external_ids:hostname=machine.example \
             external_ids:system-id=a-chassis",
        );
        Self { node }
    }

    /// The node beneath.
    pub fn node(&self) -> &TestNode {
        &self.node
    }

    /// The command line of a verb: what every machine is told, and these flags in place of it.
    pub fn arguments(&self, verb: &str, flags: impl Words) -> Vec<String> {
        arguments(verb, flags)
    }

    /// Runs `podwire node`.
    #[track_caller]
    pub fn podwire_node(&self, verb: &str, flags: impl Words) -> Finished {
        self.run(agent_binary(), verb, flags, None)
    }

    /// `podwire node init`, which must succeed, and what it said.
    #[track_caller]
    pub fn init(&self, flags: impl Words) -> String {
        self.podwire_node("init", flags)
            .success("podwire node init")
    }

    /// `podwire node cleanup`, which must succeed, and what it said.
    #[track_caller]
    pub fn cleanup(&self, flags: impl Words) -> String {
        self.podwire_node("cleanup", flags)
            .success("podwire node cleanup")
    }

    /// Starts `podwire node run`, and waits until the node is ready.
    #[track_caller]
    pub fn start_run(&self, flags: impl Words) -> NodeRun {
        NodeRun::start(&self.node, self.arguments("run", flags))
    }

    /// Starts `podwire node run`.
    #[track_caller]
    pub fn launch_run(&self, flags: impl Words) -> NodeRun {
        NodeRun::launch(&self.node, self.arguments("run", flags))
    }

    /// Waits until `podwire node show` finds every item as it should be.
    #[track_caller]
    pub fn await_well(&self) {
        await_well(&self.node, self.arguments("show", ""))
    }

    /// What `podwire node show` says, and its exit code.
    #[track_caller]
    pub fn show(&self) -> (Option<i32>, Value) {
        let (code, shown) = self.node.podwire_json(self.arguments("show", "-o json"));
        assert_valid("nodeShow", &shown);
        (code, shown)
    }

    /// An init that dies by SIGKILL at a boundary of its steps.
    #[track_caller]
    pub fn init_killed_at(&self, boundary: usize) -> Finished {
        self.run(faulty_agent_binary(), "init", "", Some(boundary))
    }

    /// A cleanup that dies by SIGKILL at a boundary of its steps.
    #[track_caller]
    pub fn cleanup_killed_at(&self, boundary: usize) -> Finished {
        self.run(faulty_agent_binary(), "cleanup", "", Some(boundary))
    }

    #[track_caller]
    fn run(
        &self,
        binary: PathBuf,
        verb: &str,
        flags: impl Words,
        fault: Option<usize>,
    ) -> Finished {
        let mut command = Command::new(binary);
        command.args(self.arguments(verb, flags));
        if let Some(boundary) = fault {
            command.env("PODWIRE_NODE_FAULT", boundary.to_string());
        }
        self.finish(command)
    }

    /// Runs a command on the machine to its end.
    #[track_caller]
    pub fn finish(&self, command: Command) -> Finished {
        self.node
            .place()
            .run(|| finish(command, b"", LIMIT))
            .or_fail()
    }

    /// Waits until a process that another one started is gone.
    #[track_caller]
    pub fn await_process_end(&self, pid: u32) {
        self.node.run("tail", format!("--pid={pid} -f /dev/null"));
    }

    /// Waits until what this shows of the kernel's network has this text.
    #[track_caller]
    pub fn await_network(&self, text: &str, show: impl Fn() -> String) {
        let look = || {
            let shown = show();
            shown.contains(text).then_some(()).ok_or(shown)
        };
        await_network(self.node.place(), LIMIT, text, look).or_fail();
    }

    /// Waits until this holds of the kernel's network; its error says what is there instead.
    #[track_caller]
    pub fn await_set(&self, awaited: &str, look: impl FnMut() -> Result<(), String>) {
        await_network(self.node.place(), LIMIT, awaited, look).or_fail();
    }

    /// The same, for what happens when a DHCP lease of two minutes runs out.
    #[track_caller]
    pub fn await_lease_end(&self, look: impl FnMut() -> Result<(), String>) {
        let awaited = "the end of a DHCP lease";
        await_network(self.node.place(), LEASE + LIMIT, awaited, look).or_fail();
    }

    /// Waits until a file on the machine, in a directory that is there, has this text.
    #[track_caller]
    pub fn await_file(&self, path: &str, wanted: impl Fn(&str) -> bool) {
        let path = self.node.path(path);
        let look = || {
            let text = std::fs::read_to_string(&path).unwrap_or_default();
            wanted(&text).then_some(()).ok_or(text)
        };
        let awaited = format!("what {} is to have", path.display());
        let directory = path.parent().unwrap_or(&path);
        await_entry(directory, LIMIT, &awaited, look).or_fail();
    }

    /// Everything that is set: links, addresses, routes of all tables, rules, neighbours, nftables,
    /// forwarding, the switch's rows, files.
    #[track_caller]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.node)
    }
}

impl Snapshot {
    /// Everything that is set on a machine.
    #[track_caller]
    pub fn of(node: &TestNode) -> Self {
        let mut all = BTreeMap::new();
        for (what, arguments) in [
            ("links", &["-j", "-d", "link"][..]),
            ("addresses", &["-j", "address"]),
            (
                "IPv4 routes",
                &["-j", "-4", "route", "show", "table", "all"],
            ),
            (
                "IPv6 routes",
                &["-j", "-6", "route", "show", "table", "all"],
            ),
            ("IPv4 rules", &["-j", "-4", "rule"]),
            ("IPv6 rules", &["-j", "-6", "rule"]),
            (
                "neighbours",
                &["-j", "neighbour", "show", "nud", "permanent"],
            ),
        ] {
            let shown = node.run("ip", arguments);
            let mut shown = serde_json::from_str(&shown).unwrap_or(Value::String(shown));
            // Open vSwitch lowers a bridge's own MTU to its smallest port's, and leaves it so.
            let links = shown.as_array_mut().into_iter().flatten();
            for link in links.filter(|link| link["ifname"] == "br-int" && link["mtu"].is_u64()) {
                link["mtu"] = Value::Null;
            }
            all.insert(what.to_owned(), shown);
        }
        let ruleset = node.run("nft", "list ruleset");
        all.insert("nftables".to_owned(), ruleset.into());
        let sysctls = "grep -rs . /proc/sys/net/ipv4/conf /proc/sys/net/ipv6/conf \
                       /proc/sys/net/ipv4/ip_forward | grep -v -e stable_secret -e conf/br-int/mtu \
                       | sort";
        let sysctls = node.run("sh", ["-c", sysctls]);
        all.insert("sysctls".to_owned(), sysctls.lines().collect());
        let files =
            "find /run/podwire /etc/openvswitch /var/lib/podwire -ls 2>/dev/null | sort; true";
        let files = node.run("sh", ["-c", files]);
        all.insert("files".to_owned(), files.lines().collect());
        for (table, columns) in [
            ("Open_vSwitch", &["external_ids", "other_config"][..]),
            (
                "Bridge",
                &[
                    "name",
                    "external_ids",
                    "other_config",
                    "fail_mode",
                    "datapath_type",
                ],
            ),
            ("Port", &["name", "external_ids", "other_config", "tag"]),
            (
                "Interface",
                &[
                    "name",
                    "type",
                    "mac",
                    "mtu_request",
                    "external_ids",
                    "other_config",
                ],
            ),
        ] {
            let mut rows: Vec<Value> = node
                .ovsdb_rows(table)
                .iter()
                .map(|row| {
                    columns
                        .iter()
                        .map(|column| json!({*column: row[*column]}))
                        .collect()
                })
                .collect();
            rows.sort_by_key(Value::to_string);
            all.insert(format!("table {table}"), rows.into());
        }
        Self(all)
    }

    /// Without what others write down for themselves: ovn-controller its connection tracking zones,
    /// its progress and its limit of VLAN tags, in the rows of bridges and of the switch; the agent
    /// its files.
    pub fn without_notes_of_others(mut self) -> Self {
        let is_note = |key: &str| {
            let notes = [
                "ct-zone-",
                "ovn-nb-cfg",
                "ovn-startup-ts",
                "ovn-chassis-idx-",
                "vlan-limit",
            ];
            notes.iter().any(|note| key.starts_with(note))
        };
        for rows in ["table Bridge", "table Open_vSwitch"] {
            let rows = self.0.get_mut(rows).and_then(Value::as_array_mut);
            let columns = rows.into_iter().flatten().filter_map(Value::as_array_mut);
            for column in columns.flatten().filter_map(Value::as_object_mut) {
                for map in column.values_mut().filter_map(Value::as_object_mut) {
                    map.retain(|key, _| !is_note(key));
                }
            }
        }
        let is_of_agent =
            |line: &str| line.contains("/run/podwire") && !line.contains("/run/podwire/node");
        if let Some(files) = self.0.get_mut("files").and_then(Value::as_array_mut) {
            files.retain(|line| !line.as_str().is_some_and(is_of_agent));
        }
        self
    }

    /// Without the times that go on: how long addresses and routes are valid.
    pub fn without_lifetimes(mut self) -> Self {
        fn strip(value: &mut Value) {
            if let Some(fields) = value.as_object_mut() {
                for name in ["valid_life_time", "preferred_life_time", "expires"] {
                    fields.remove(name);
                }
            }
            let parts = value.as_array_mut().into_iter().flatten();
            parts.for_each(strip);
            let fields = value.as_object_mut().into_iter().flatten();
            fields.for_each(|(_, field)| strip(field));
        }
        self.0.values_mut().for_each(strip);
        self
    }

    /// Panics when anything differs, and says what.
    #[track_caller]
    pub fn assert_same(&self, later: &Self) {
        let differences = self.differences(later);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    /// Panics when anything but this differs.
    #[track_caller]
    pub fn assert_same_but(&self, what: &str, later: &Self) {
        let mut differences = self.differences(later);
        differences.retain(|difference| !difference.starts_with(what));
        assert!(differences.is_empty(), "{}", differences.join("\n"));
    }

    /// What differs, and how.
    pub fn differences(&self, later: &Self) -> Vec<String> {
        let lines = |value: &Value| -> BTreeSet<String> {
            let text = value
                .as_str()
                .map_or_else(|| format!("{value:#}"), str::to_owned);
            text.lines().map(str::to_owned).collect()
        };
        let differing = self
            .0
            .iter()
            .filter(|(what, before)| **before != later.0[*what]);
        differing
            .map(|(what, before)| {
                let after = &later.0[what];
                let gone = &lines(before) - &lines(after);
                let new = &lines(after) - &lines(before);
                format!("{what} differ: gone {gone:#?}, new {new:#?}")
            })
            .collect()
    }
}

/// Waits until `podwire node show`, with this command line, finds every item as it should be; that
/// a former `run` has ended is no matter.
#[track_caller]
pub fn await_well(node: &TestNode, arguments: impl Words) {
    let until = Instant::now() + LIMIT;
    let mut arguments = arguments.words();
    arguments.extend("-o json".words());
    loop {
        let (code, shown) = node.podwire_json(&arguments);
        let items = shown["items"].as_array().into_iter().flatten();
        let ill: Vec<_> = items.filter(|item| item["state"] != "ok").collect();
        let run = shown["run"]["status"].as_str();
        let has_ended = run.is_some_and(|it| it.starts_with("does not run"));
        if code == Some(0) || has_ended && ill.is_empty() {
            return;
        }
        if Instant::now() > until {
            panic!("waited {LIMIT:?} for every item to be as it should be; instead: {ill:#?}");
        }
    }
}
