//! `make demo-policy`: who reaches whom before and after network policies, with the rule that
//! decides, by podwire-controller and ovn-trace, and by packets.

use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{Failure, Pod, Step as _, controller_binary, process};
use serde_json::{Value, json};

use crate::proof::expect;
use crate::reach::{Cell, Picture, page, text};
use crate::stage::Stage;
use crate::{controller_and_agents, nothing_left_on, on_two_nodes};

const PORT: u16 = 8080;
/// How long a connection may take; one that is dropped takes all of it.
const CONNECT: Duration = Duration::from_secs(3);
/// How long one answer of podwire-controller may take.
const ASK: Duration = Duration::from_secs(60);
/// How many answers are computed at the same time.
const AT_ONCE: usize = 4;
const PODS: [(&str, &str); 6] = [
    ("shop", "web"),
    ("shop", "api"),
    ("data", "db"),
    ("data", "cache"),
    ("ops", "probe"),
    ("ops", "backup"),
];

struct Wired<'node> {
    pod: Pod<'node>,
    address: IpAddr,
}

/// Runs the demo. A failure has been told already; what is left of it is the directory of its logs.
pub(crate) fn run(stage: &Stage) -> Result<(), Option<PathBuf>> {
    on_two_nodes(stage, |central, server, nodes| {
        in_cluster(stage, central, server, nodes)
    })
}

fn in_cluster(
    stage: &Stage,
    central: &Central,
    server: &ApiServer,
    nodes: &[OvnNode],
) -> Result<Vec<u64>, ()> {
    let (controller, agents) = controller_and_agents(stage, central, server, nodes)?;
    for (name, team) in [("shop", "web"), ("data", "data"), ("ops", "ops")] {
        server.apply(namespace(name, team));
    }
    let pods = stage.step("six pods of three namespaces on two nodes", || {
        let pods = PODS.iter().enumerate();
        let pods = pods.map(|(number, id)| add(server, &nodes[number % 2], *id));
        let pods: Result<Vec<_>, Failure> = pods.collect();
        Ok((pods?, String::new()))
    })?;
    let listening = stage.silent(|| {
        let listeners = pods.iter().map(|it| {
            let own = SocketAddr::new(it.address, PORT);
            let listener = it.pod.place().run(|| TcpListener::bind(own));
            listener.step(|| format!("listen at {own}"))
        });
        listeners.collect::<Result<Vec<_>, _>>()
    })?;
    let before = look(stage, central, server, &pods, "before any policy")?;
    stage.step(
        "five NetworkPolicies, until all nodes have their flows",
        || {
            for policy in policies() {
                server.apply(policy);
            }
            for (namespace, name) in policies().iter().map(id) {
                let command = format!("policy {namespace}/{name}");
                let northbound = central.northbound();
                let ids = json!(["map", [["k8s.ovn.org/name", namespace]]]);
                let isolated = json!([["external_ids", "includes", ids]]);
                northbound.wait("Port_Group", isolated, "!=", &["_uuid"], json!([]))?;
                await_in_sync(central, server, &command)?;
            }
            central.sync();
            Ok(((), "podwire-controller policy: in sync".to_owned()))
        },
    )?;
    let after = look(stage, central, server, &pods, "with the policies")?;
    let pictures = [before, after];
    for picture in &pictures {
        stage.say(&text(picture));
    }
    stage.step("the same picture as a page", || {
        let target = concat!(env!("CARGO_MANIFEST_DIR"), "/../target/demo-policy.html");
        let page = page(&pictures, &policies());
        std::fs::write(target, page).step(|| format!("write {target}"))?;
        Ok(((), "target/demo-policy.html".to_owned()))
    })?;
    drop(listening);
    stage.step(
        "the pods go, and nothing of them is left on the nodes",
        || {
            for Wired { pod, .. } in &pods {
                pod.del().success();
                server.delete(&pod.namespace, &pod.name);
            }
            nothing_left_on(nodes)?;
            Ok(((), String::new()))
        },
    )?;
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

fn namespace(name: &str, team: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "uid": format!("uid-of-{name}"), "labels": { "team": team } },
    })
}

fn id(object: &Value) -> (String, String) {
    let text = |field: &str| {
        object["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("namespace"), text("name"))
}

/// Creates a pod in the API and wires it.
fn add<'node>(
    server: &ApiServer,
    node: &'node OvnNode,
    (namespace, name): (&str, &str),
) -> Result<Wired<'node>, Failure> {
    let mut pod = node.pod(name);
    namespace.clone_into(&mut pod.namespace);
    let mut object = apiserver::pod_on(&node.name, &pod, json!({}));
    object["metadata"]["labels"] = json!({ "app": name });
    object["spec"]["containers"][0]["ports"] = json!([{ "name": "http", "containerPort": PORT }]);
    server.apply(object);
    let annotation = "k8s.ovn.org/pod-networks";
    let is_there = |it: &Value| !it["metadata"]["annotations"][annotation].is_null();
    let object = server.await_object(("Pod", namespace, name), is_there);
    let text = object["metadata"]["annotations"][annotation]
        .as_str()
        .unwrap_or_default();
    let entry: Value = serde_json::from_str(text).unwrap_or_default();
    let entry = &entry["default"];
    let address = entry["ip_address"].as_str().unwrap_or_default();
    let address = address.split('/').next().and_then(|it| it.parse().ok());
    let address = address.ok_or_else(|| std::io::Error::other(text.to_owned()));
    let address = address.step(|| "read the pod's annotation")?;
    let pod = pod.on_default_network(entry);
    pod.add().success();
    Ok(Wired { pod, address })
}

/// By labels of pods and of namespaces, by the name of a port, in both directions.
fn policies() -> Vec<Value> {
    let policy = |namespace: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": { "namespace": namespace, "name": name, "uid": format!("uid-of-{name}") },
            "spec": spec,
        })
    };
    let app = |name: &str| json!({ "matchLabels": { "app": name } });
    let team = |name: &str| json!({ "matchLabels": { "team": name } });
    vec![
        policy(
            "data",
            "closed",
            json!({ "podSelector": {}, "policyTypes": ["Ingress"] }),
        ),
        policy(
            "data",
            "db-from-api",
            json!({
                "podSelector": app("db"),
                "ingress": [{
                    "from": [{ "namespaceSelector": team("web"), "podSelector": app("api") }],
                    "ports": [{ "port": "http" }],
                }],
            }),
        ),
        policy(
            "data",
            "from-ops",
            json!({
                "podSelector": {}, "ingress": [{ "from": [{ "namespaceSelector": team("ops") }] }],
            }),
        ),
        policy(
            "shop",
            "web-to-api",
            json!({
                "podSelector": app("web"), "policyTypes": ["Egress"],
                "egress": [{ "to": [{ "podSelector": app("api") }] }],
            }),
        ),
        policy(
            "ops",
            "backup-to-data",
            json!({
                "podSelector": app("backup"), "policyTypes": ["Ingress", "Egress"],
                "egress": [{ "to": [{ "namespaceSelector": team("data") }], "ports": [
                    { "port": PORT },
                ] }],
            }),
        ),
    ]
}

/// The controller's own answer.
fn ask(central: &Central, server: &ApiServer, words: &str) -> Result<(bool, String), Failure> {
    let mut command = Command::new(controller_binary());
    command
        .arg(format!("--k8s-apiserver={}", server.url()))
        .arg(format!("--nb-db={}", central.local_northbound()))
        .arg(format!("--sb-db={}", central.local_remote()))
        .args(words.split(' '));
    let machine = central.machine().place();
    let finished = machine.run(|| process::finish(command, b"", ASK))?;
    Ok((
        finished.status.success(),
        finished.stdout + &finished.stderr,
    ))
}

/// Waits until the rows of a policy are there. Each look is a change of the database later.
fn await_in_sync(central: &Central, server: &ApiServer, command: &str) -> Result<(), Failure> {
    let mut seen = String::new();
    for _ in 0..20 {
        let (is_well, text) = ask(central, server, command)?;
        if is_well {
            return Ok(());
        }
        seen = text;
        central.sync();
    }
    expect(command, "in sync", false, || seen)
}

/// Who reaches whom: by podwire-controller and ovn-trace, and by a packet each.
fn look(
    stage: &Stage,
    central: &Central,
    server: &ApiServer,
    pods: &[Wired<'_>],
    title: &str,
) -> Result<Picture, ()> {
    let names: Vec<String> = PODS
        .iter()
        .map(|(ns, name)| format!("{ns}/{name}"))
        .collect();
    let pairs: Vec<(usize, usize)> = (0..pods.len())
        .flat_map(|from| (0..pods.len()).map(move |to| (from, to)))
        .filter(|(from, to)| from != to)
        .collect();
    let cells = stage.step(&format!("{title}: each pair explained"), || {
        let cell = |(from, to): (usize, usize)| {
            let (from, to) = (&names[from], &names[to]);
            let words = format!("explain pod {from} --to {to} --port {PORT}");
            ask(central, server, &words).and_then(|(_, text)| Cell::of(&text))
        };
        let found = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for part in pairs.chunks(pairs.len().div_ceil(AT_ONCE)) {
                let (found, cell) = (&found, &cell);
                scope.spawn(move || {
                    for pair in part {
                        let cell = cell(*pair);
                        let found = found.lock();
                        found
                            .unwrap_or_else(|it| it.into_inner())
                            .push((*pair, cell));
                    }
                });
            }
        });
        let found = found.into_inner().unwrap_or_else(|it| it.into_inner());
        let cells = found.into_iter().map(|(pair, cell)| Ok((pair, cell?)));
        let cells: Result<_, Failure> = cells.collect();
        Ok((
            cells?,
            format!("{} by podwire-controller and ovn-trace", pairs.len()),
        ))
    })?;
    let picture = Picture {
        title: title.to_owned(),
        names,
        cells,
    };
    stage.step(
        &format!("{title}: each pair by a packet, as explained"),
        || {
            let packets: Vec<(usize, usize, bool)> = thread::scope(|scope| {
                let connect = |(from, to): (usize, usize)| {
                    let address = SocketAddr::new(pods[to].address, PORT);
                    let place = pods[from].pod.place();
                    scope.spawn(move || {
                        let stream = || TcpStream::connect_timeout(&address, CONNECT).is_ok();
                        (from, to, place.run(stream))
                    })
                };
                let threads: Vec<_> = pairs.iter().copied().map(connect).collect();
                threads
                    .into_iter()
                    .filter_map(|it| it.join().ok())
                    .collect()
            });
            let passes = packets.iter().filter(|(.., passes)| *passes).count();
            for (from, to, passes) in packets {
                let explained = picture.cells[&(from, to)].passes;
                let pair = format!("{} to {}", picture.names[from], picture.names[to]);
                let expected = if explained {
                    "a connection"
                } else {
                    "no connection"
                };
                expect(&pair, expected, passes == explained, || {
                    "the opposite".to_owned()
                })?;
            }
            Ok(((), format!("{passes} of {} connections", pairs.len())))
        },
    )?;
    Ok(picture)
}
