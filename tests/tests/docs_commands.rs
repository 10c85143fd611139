//! The commands that the pages for people show are run, on nodes such as the pages tell of, and say
//! what the pages say.
//!
//! A block is marked by a comment on the line before it: `<!-- run on: a healthy node -->` names
//! one of [`NODES`]. Its lines that begin with `# ` are run in turn; the lines under each must be
//! made of the same words, numbers aside. With PODWIRE_DOCS_WRITE=1 the pages get what was really
//! printed, and `target/docs` the page of traces.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use podwire_tests::ovn::{Central, LogicalPort, OvnNode};
use podwire_tests::{Agent, AgentOptions, Pod, TestNode, links, plugin_binary};

const PAGES: [&str; 2] = ["docs/tools.md", "docs/troubleshooting.md"];
const MARK: &str = "<!-- run on: ";

/// Runs a page's commands on a node of this kind.
type Make = fn(&mut dyn FnMut(&TestNode));

/// The kinds of nodes that pages tell of.
const NODES: [(&str, Make); 9] = [
    ("a healthy node", |run| {
        with_pods(|node, _, _| run(node));
    }),
    ("a node in OVN mode", |run| {
        let (central, node) = Central::with_node();
        let _agent = node.start_agent(&OvnNode::agent_options());
        let (web, _) = central.schedule(&node, "web", 11);
        web.add().success();
        run(&node);
    }),
    ("a node in OVN mode with an ACL", |run| {
        let (central, node) = Central::with_node();
        let _agent = node.start_agent(&OvnNode::agent_options());
        let pods = [("web", 11), ("db", 12)].map(|(name, number)| {
            let mut pod = node.pod(name);
            pod.namespace = "shop".to_owned();
            let port = LogicalPort::of(&pod, &node, number);
            central.add_port(&port);
            let pod = pod.on_default_network(&port.entry());
            pod.add().success();
            pod
        });
        let packets = "outport==\"shop_db\" && tcp.dst==80";
        let name = &node.name;
        central.nbctl(format!(
            "--wait=hv acl-add {name} to-lport 1000 '{packets}' drop"
        ));
        run(&node);
        drop(pods);
    }),
    ("a node with a link down and an address gone", |run| {
        with_pods(|node, [web, db], _| {
            let addresses = links::addresses(web.place(), "eth0");
            let address = addresses.iter().find(|it| it.starts_with("10.")).unwrap();
            web.run("ip", format!("addr del {address} dev eth0"));
            node.run("ip", format!("link set {} down", db.host_link()));
            run(node);
        });
    }),
    ("a node with a pod left over", |run| {
        with_pods(|node, [_, mut db], _| {
            let host_end = links::LinkRecorder::start(node.place());
            db.remove_netns();
            host_end.await_gone(db.host_link());
            run(node);
        });
    }),
    ("a node with nothing but the plugin", |run| {
        let node = TestNode::new();
        install_plugin(&node);
        run(&node);
    }),
    ("a node to which ovn-kubernetes came back", |run| {
        with_pods(|node, _, _| {
            let conf = r#"{"name":"ovn-kubernetes","type":"ovn-k8s-cni-overlay"}"#;
            std::fs::write(node.path("/run/cni/net.d/10-ovn-kubernetes.conf"), conf).unwrap();
            std::fs::write(node.path("/run/cni/bin/ovn-k8s-cni-overlay"), "theirs").unwrap();
            run(node);
        });
    }),
    ("a node whose ovs-vswitchd is dead", |run| {
        with_pods(|node, _, _| {
            node.kill_vswitchd();
            run(node);
        });
    }),
    ("a node without an agent", |run| {
        with_pods(|node, _, agent| {
            agent.stop();
            run(node);
        });
    }),
];

fn with_pods(then: impl FnOnce(&TestNode, [Pod<'_>; 2], Agent<'_>)) {
    let node = TestNode::with_ovs();
    install_plugin(&node);
    let conf = r#"{"name":"pods","type":"podwire-cni"}"#;
    std::fs::write(node.path("/run/cni/net.d/10-podwire.conf"), conf).unwrap();
    let agent = node.start_agent(&AgentOptions::default());
    let pods = ["web", "db"].map(|name| {
        let mut pod = node.pod(name);
        pod.namespace = "shop".to_owned();
        pod.add().success();
        pod
    });
    let mut job = node.pod("job");
    job.namespace = "shop".to_owned();
    job.add().success();
    job.del().success();
    then(&node, pods, agent);
}

fn install_plugin(node: &TestNode) {
    for directory in ["/run/cni/net.d", "/run/cni/bin"] {
        std::fs::create_dir_all(node.path(directory)).unwrap();
    }
    let plugin = node.path("/run/cni/bin/podwire-cni");
    std::fs::copy(plugin_binary(), plugin).unwrap();
}

/// A marked block of a page.
#[derive(Clone)]
struct Block {
    page: &'static str,
    /// Lines of the page, from its first command to the end of the block.
    lines: std::ops::Range<usize>,
    commands: Vec<(String, Vec<String>)>,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn lines_of(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    text.lines().map(str::to_owned).collect()
}

/// The blocks of all pages by the kind of node that they are for. A command of podwire's in a block
/// that is not marked is an error: nobody would run it.
fn blocks() -> BTreeMap<String, Vec<Block>> {
    let mut blocks: BTreeMap<String, Vec<Block>> = BTreeMap::new();
    for page in PAGES {
        let lines = lines_of(page);
        let mut number = 0;
        while number < lines.len() {
            if lines[number] != "```console" {
                number += 1;
                continue;
            }
            let mark = number.checked_sub(1).map_or("", |before| &lines[before]);
            let kind = mark
                .strip_prefix(MARK)
                .and_then(|it| it.strip_suffix(" -->"));
            let kind = kind.unwrap_or_else(|| panic!("{page}:{}: no mark before it", number + 1));
            let start = number + 1;
            let length = lines[start..].iter().position(|it| it == "```").unwrap();
            let mut commands: Vec<(String, Vec<String>)> = Vec::new();
            for line in &lines[start..start + length] {
                match (line.strip_prefix("# "), commands.last_mut()) {
                    (Some(command), _) => commands.push((command.to_owned(), Vec::new())),
                    (None, Some((_, said))) => said.push(line.clone()),
                    (None, None) => panic!("{page}:{}: output without a command", start + 1),
                }
            }
            let block = Block {
                page,
                lines: start..start + length,
                commands,
            };
            blocks.entry(kind.to_owned()).or_default().push(block);
            number = start + length;
        }
    }
    blocks
}

/// What a person sees, of both streams.
fn run(node: &TestNode, command: &str) -> Vec<String> {
    let environment = "PODWIRE_CNI_CONF_DIR=/run/cni/net.d PODWIRE_CNI_BIN_DIR=/run/cni/bin";
    let line = format!("cd /run; export {environment}; {{ {command}; }} 2>&1");
    let done = node.shell(&line);
    // The pages show a node where the runtime has its directories at the usual places.
    let shown = done.stdout.replace("/run/cni/net.d", "/etc/cni/net.d");
    let shown = shown.replace("/run/cni/bin", "/opt/cni/bin");
    let shown = shown.replace(" --conf-dir /etc/cni/net.d", "");
    shown.lines().map(str::to_owned).collect()
}

/// The words of an output: what differs from run to run (numbers, names made of them, bars) is
/// none.
fn words(lines: &[String]) -> Vec<String> {
    let text = lines.join(" ");
    let is_word = |it: &&str| {
        it.chars()
            .all(|c| c.is_ascii_alphabetic() || "-:,;'()".contains(c))
    };
    let mut words: Vec<String> = text
        .split_whitespace()
        .filter(is_word)
        // The unit goes with the number.
        .filter(|it| !["ms", "s"].contains(it))
        .map(str::to_owned)
        .collect();
    // What goes on at the same time ends in any order.
    words.sort_unstable();
    words
}

#[test]
fn what_the_pages_show_is_what_the_commands_print() {
    let writes = std::env::var_os("PODWIRE_DOCS_WRITE").is_some();
    let mut blocks = blocks();
    let mut printed: Vec<(Block, Vec<String>)> = Vec::new();
    for (kind, make) in NODES {
        let Some(blocks) = blocks.remove(kind) else {
            panic!("no page tells of {kind}");
        };
        for block in blocks {
            // Each block finds the node as its mark says, whatever another one did.
            make(&mut |node| {
                let mut lines = Vec::new();
                for (command, shown) in &block.commands {
                    let said = run(node, command);
                    if !writes {
                        let place = format!("{}:{}: {command}", block.page, block.lines.start);
                        assert_eq!(
                            words(&said),
                            words(shown),
                            "{place}\nprinted:\n{}",
                            said.join("\n")
                        );
                    }
                    lines.push(format!("# {command}"));
                    lines.extend(said);
                }
                keep_page(node, writes);
                printed.push((block.clone(), lines));
            });
        }
    }
    let unknown: Vec<_> = blocks.keys().collect();
    assert!(unknown.is_empty(), "no such node: {unknown:?}");
    if writes {
        write(printed);
    }
}

/// The page of traces, for its picture.
fn keep_page(node: &TestNode, writes: bool) {
    let page = node.path("/run/timings.html");
    if writes && page.exists() {
        let kept = root().join("target/docs");
        std::fs::create_dir_all(&kept).unwrap();
        std::fs::copy(page, kept.join("timings.html")).unwrap();
    }
}

/// Puts what was printed into the pages, last block first, so that the others stay where they are.
fn write(mut printed: Vec<(Block, Vec<String>)>) {
    printed.sort_by_key(|(block, _)| std::cmp::Reverse(block.lines.start));
    for page in PAGES {
        let mut lines = lines_of(page);
        for (block, said) in printed.iter().filter(|(block, _)| block.page == page) {
            lines.splice(block.lines.clone(), said.iter().cloned());
        }
        std::fs::write(root().join(page), lines.join("\n") + "\n").unwrap();
    }
}

/// The lines of a page's first `console` block after a text.
fn block_after(page: &str, text: &str) -> Vec<String> {
    let lines = lines_of(page);
    let from = lines.iter().position(|line| line.contains(text)).unwrap();
    let block = lines[from..]
        .iter()
        .skip_while(|line| *line != "```console")
        .skip(1);
    block.take_while(|line| *line != "```").cloned().collect()
}

#[test]
fn commands_that_are_shown_without_their_output_succeed() {
    let node = TestNode::with_ovs();
    install_plugin(&node);
    let conf = r#"{"name":"pods","type":"podwire-cni"}"#;
    std::fs::write(node.path("/run/cni/net.d/10-podwire.conf"), conf).unwrap();
    let log = ["--log-file", "/run/podwire.log"];
    let _agent = node.start_agent(&AgentOptions::default().with(log));
    let mut web = node.pod("web");
    web.namespace = "shop".to_owned();
    web.add().success();
    let environment = "PODWIRE_CNI_CONF_DIR=/run/cni/net.d PODWIRE_CNI_BIN_DIR=/run/cni/bin";
    for (page, text) in [
        ("docs/by-hand.md", "`podwire` shows"),
        ("docs/logging.md", "## The log"),
        ("docs/logging.md", "## Traces"),
        ("docs/metrics.md", "# Metrics"),
    ] {
        let commands = block_after(page, text);
        assert!(!commands.is_empty(), "{page}");
        for command in commands {
            let command = command.strip_prefix("# ").unwrap();
            let here = command.replace("/var/log/podwire.log", "/run/podwire.log");
            let done = node.shell(&format!("export {environment}; {here}"));
            assert!(done.status.success(), "{page}: {command}: {done:?}");
            let is_of_failures = command.contains("failed");
            assert_eq!(
                done.stdout.trim().is_empty(),
                is_of_failures,
                "{page}: {command}: {done:?}"
            );
        }
    }
}

#[test]
fn the_configuration_is_printed_as_its_page_shows() {
    let node = TestNode::new();
    std::fs::write(node.path("/run/podwire.toml"), "mtu = 1400\n").unwrap();
    let shown = block_after("docs/configuration.md", "podwire agent --print-config");
    let command = shown[0].strip_prefix("$ podwire agent").unwrap();
    let line = format!("podwire agent --config /run/podwire.toml {command}");
    let done = node.shell(&line);
    let printed = done
        .stdout
        .replace("/run/podwire.toml", "/etc/podwire/podwire.toml");
    for line in shown[1..].iter().filter(|line| *line != "…") {
        assert!(
            printed.lines().any(|it| it == line),
            "{line}\nprinted:\n{printed}"
        );
    }
}
