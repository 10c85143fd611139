//! `make demo-networks`: a pod on three networks, the refusals of `podwire-controller network`, and
//! a namespace with a primary network of its own, which the default network does not reach.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Failure, Pod, Step as _, conf, controller_binary, process, traffic};
use serde_json::{Value, json};

use crate::proof::expect;
use crate::stage::Stage;
use crate::{controller_and_agents, nothing_left_on, on_two_nodes};

const POD_NETWORKS: &str = "k8s.ovn.org/pod-networks";
const ASKED: &str = "k8s.v1.cni.cncf.io/networks";
const LABEL: &str = "k8s.ovn.org/primary-user-defined-network";
/// How long one answer of podwire-controller may take.
const ASK: Duration = Duration::from_secs(60);
const BYTES: usize = 1 << 20;

/// A pod, and its entries in the annotation.
struct Wired<'node> {
    pod: Pod<'node>,
    entries: Value,
    /// What was attached besides the first interface.
    others: Vec<(String, Value)>,
}

impl Wired<'_> {
    /// Its address on a network.
    fn on(&self, entry: &str) -> Result<IpAddr, Failure> {
        let text = self.entries[entry]["ip_address"].as_str();
        let address = text.and_then(|it| it.split('/').next()?.parse().ok());
        let address = address.ok_or_else(|| std::io::Error::other(self.entries.to_string()));
        address.step(|| format!("read the address on {entry}"))
    }
}

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    on_two_nodes(stage, |central, server, nodes| {
        story(stage, central, server, nodes)
    })
}

fn story(
    stage: &Stage,
    central: &Central,
    server: &ApiServer,
    nodes: &[OvnNode],
) -> Result<Vec<u64>, ()> {
    let (controller, agents) = controller_and_agents(stage, central, server, nodes)?;
    for (name, labels) in [("shop", json!({})), ("bank", json!({ LABEL: "" }))] {
        server.apply(json!({
            "apiVersion": "v1", "kind": "Namespace",
            "metadata": { "name": name, "uid": format!("uid-of-{name}"), "labels": labels },
        }));
    }
    let ask = |line: &str, is_well: bool, part: &str| {
        stage.say(&format!("\n  $ podwire-controller network {line}"));
        stage.silent(|| {
            let (ended_well, text) = ask(central, server, line)?;
            stage.say(&format!("    {}", text.trim().replace('\n', "\n    ")));
            let expected = format!("{part:?}, and success: {is_well}");
            let is_it = ended_well == is_well && text.contains(part);
            expect(line, &expected, is_it, || text.clone())
        })
    };
    ask("create shop/blue --subnets 10.1.0.0/24", true, "created")?;
    ask("create shop/red --subnets 10.9.0.0/24", true, "created")?;
    ask(
        "create shop/more --network shop-blue --subnets 10.2.0.0/24",
        false,
        "exists with other subnets",
    )?;
    stage.say("");
    let three = ["shop/blue", "shop/red"];
    let web = stage.step(
        "ADD web on node-a: the default network, blue and red",
        || {
            let web = add(server, &nodes[0], ("shop", "web"), &three, None)?;
            Ok((web, String::new()))
        },
    )?;
    let db = stage.step("ADD db on node-b: the default network and blue", || {
        let db = add(server, &nodes[1], ("shop", "db"), &three[..1], None)?;
        Ok((db, String::new()))
    })?;
    let twin = stage.step("ADD twin on node-b: the default network and red", || {
        let twin = add(server, &nodes[1], ("shop", "twin"), &three[1..], None)?;
        Ok((twin, String::new()))
    })?;
    addresses(stage, &web.pod)?;
    for (to, entry) in [(&db, "default"), (&db, "shop/blue"), (&twin, "shop/red")] {
        let at = stage.silent(|| to.on(entry))?;
        stage.step(&format!("web and {} talk on {entry}", to.pod.name), || {
            traffic::ping_until_answered(web.pod.place(), at)?;
            traffic::tcp_echo(web.pod.place(), to.pod.place(), at, BYTES)?;
            Ok(((), at.to_string()))
        })?;
    }
    ask(
        "update shop/blue --subnets 10.3.0.0/24",
        false,
        "can't change while pods are on it",
    )?;
    ask("update shop/blue --mtu 1300", true, "")?;
    ask("delete shop/blue", false, "shop/db")?;
    stage.say("");
    let mut pods = vec![web, db, twin];
    primary(stage, server, nodes, &mut pods)?;
    stage.step(
        "the pods go, and nothing of them is left on the nodes",
        || {
            for Wired { pod, others, .. } in &mut pods {
                for (interface, conf) in others.iter().rev() {
                    pod.interface.clone_from(interface);
                    pod.exec("DEL", conf).success();
                }
                pod.interface = "eth0".to_owned();
                pod.del().success();
                server.delete(&pod.namespace, &pod.name);
            }
            nothing_left_on(nodes)?;
            Ok(((), String::new()))
        },
    )?;
    ask("delete shop/blue", true, "deleted")?;
    stage.say("");
    controller.stop();
    for agent in agents {
        agent.stop();
    }
    stage.silent(|| {
        let machines = nodes.iter().map(|node| node.place());
        let sandboxes = pods.iter().map(|it| it.pod.place());
        let places = machines.chain(sandboxes).chain([central.machine().place()]);
        Ok(places.map(|place| place.network_inode()).collect())
    })
}

/// A namespace whose pods are on a network of their own.
fn primary<'node>(
    stage: &Stage,
    server: &ApiServer,
    nodes: &'node [OvnNode],
    pods: &mut Vec<Wired<'node>>,
) -> Result<(), ()> {
    const OWN: &str = "bank/own";
    let title = "a primary network for all pods of namespace bank: 10.1.0.0/24, too";
    stage.step(title, || {
        server.apply(json!({
            "apiVersion": "k8s.ovn.org/v1", "kind": "UserDefinedNetwork",
            "metadata": { "name": "own", "namespace": "bank", "uid": "uid-of-own" },
            "spec": {
                "topology": "Layer2",
                "layer2": { "role": "Primary", "subnets": ["10.1.0.0/24"] },
            },
        }));
        Ok(((), "UserDefinedNetwork bank/own".to_owned()))
    })?;
    for (node, name) in nodes.iter().zip(["ledger", "vault"]) {
        let title = format!("ADD {name} on {}: it asks for nothing", node.name);
        pods.push(stage.step(&title, || {
            Ok((
                add(server, node, ("bank", name), &[], Some(OWN))?,
                String::new(),
            ))
        })?);
    }
    let [web, .., ledger, vault] = &pods[..] else {
        unreachable!("five were wired")
    };
    addresses(stage, &ledger.pod)?;
    stage.step("ledger and vault talk on their network", || {
        let at = vault.on(OWN)?;
        traffic::ping_until_answered(ledger.pod.place(), at)?;
        traffic::tcp_echo(ledger.pod.place(), vault.pod.place(), at, BYTES)?;
        Ok(((), at.to_string()))
    })?;
    for (from, to) in [(web, ledger), (ledger, web)] {
        let title = format!("{} does not reach {}", from.pod.name, to.pod.name);
        stage.step(&title, || {
            let at = to.on("default")?;
            let echoed = traffic::tcp_echo(from.pod.place(), to.pod.place(), at, 16);
            expect(&title, "no connection", echoed.is_err(), || {
                "a connection".to_owned()
            })?;
            Ok(((), format!("{at}: no connection")))
        })?;
    }
    Ok(())
}

/// Shows what a pod has.
fn addresses(stage: &Stage, pod: &Pod<'_>) -> Result<(), ()> {
    stage.silent(|| {
        let text = pod.run("ip", "-brief -4 address");
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        stage.say(&format!("\n  $ ip -brief -4 address    # in {}", pod.name));
        stage.say(&format!("    {}\n", lines.join("\n    ")));
        Ok(())
    })
}

/// Creates a pod in the API and wires it; its primary network, if it has one, is `own`.
fn add<'node>(
    server: &ApiServer,
    node: &'node OvnNode,
    (namespace, name): (&str, &str),
    asked: &[&str],
    own: Option<&str>,
) -> Result<Wired<'node>, Failure> {
    let mut pod = node.pod(name);
    namespace.clone_into(&mut pod.namespace);
    let wish = match asked {
        [] => json!({}),
        asked => json!({ ASKED: asked.join(",") }),
    };
    server.apply(apiserver::pod_on(&node.name, &pod, wish));
    let entries = |pod: &Value| {
        let text = pod["metadata"]["annotations"][POD_NETWORKS].as_str();
        serde_json::from_str::<Value>(text.unwrap_or_default()).unwrap_or_default()
    };
    let is_there = |pod: &Value| {
        let entries = entries(pod);
        let mut all = asked.iter().copied().chain(own).chain(["default"]);
        all.all(|it| !entries[it].is_null())
    };
    let object = server.await_object(("Pod", namespace, name), is_there);
    let entries = entries(&object);
    let mut pod = pod.annotate(POD_NETWORKS, &entries);
    pod.add().success();
    let mut others = Vec::new();
    for (entry, number) in asked.iter().zip(1..) {
        let mut conf = conf();
        conf["name"] = entry.replace('/', "-").into();
        conf["netAttachDefName"] = (*entry).into();
        pod.interface = format!("net{number}");
        pod.exec("ADD", &conf).success();
        others.push((pod.interface.clone(), conf));
    }
    Ok(Wired {
        pod,
        entries,
        others,
    })
}

/// What podwire-controller says, and whether it ended well.
fn ask(central: &Central, server: &ApiServer, line: &str) -> Result<(bool, String), Failure> {
    let mut command = Command::new(controller_binary());
    command
        .arg(format!("--k8s-apiserver={}", server.url()))
        .arg(format!("--nb-db={}", central.local_northbound()))
        .arg(format!("--sb-db={}", central.local_remote()))
        .arg("network")
        .args(line.split(' '))
        .env("PODWIRE_LOG", "warn");
    let machine = central.machine().place();
    let finished = machine.run(|| process::finish(command, b"", ASK))?;
    Ok((
        finished.status.success(),
        finished.stdout + &finished.stderr,
    ))
}
