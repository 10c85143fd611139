//! The metrics page of a real agent: what it counts, that docs/metrics.md tells all of it and
//! nothing else, and that the dashboard asks for nothing that is not there.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::process::finish;
use podwire_tests::scrape::Scrape;
use podwire_tests::{Agent, AgentOptions, TestNode, conf};
use serde_json::{Value, json};

const ADDRESS: &str = "127.0.0.1:9476";

fn scrape(agent: &Agent<'_>) -> Scrape {
    let (status, page) = agent.get("/metrics");
    assert_eq!(status, 200, "{page}");
    Scrape::parse(&page).unwrap()
}

fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// An agent that watches pods but wires those without annotations too.
fn watching<'node>(
    node: &'node TestNode,
    server: &ApiServer,
    options: AgentOptions,
) -> Agent<'node> {
    let options = options
        .watching(server, "n1")
        .with("--annotations optional");
    let agent = node.start_agent(&options);
    server.await_watches(1);
    agent
}

/// The page of an agent with every kind of source and subnet, after an operation of every kind and
/// outcome.
fn full_page() -> Scrape {
    let (node, server) = ApiServer::beside_a_node();
    let agent = watching(&node, &server, AgentOptions::for_numbered_pods());
    let pod = node.numbered_pod(11);
    server.apply(apiserver::pod_on("n1", &pod, json!({})));
    let result = pod.add().success();
    pod.check(&result).success();
    let bad = pod.another_sandbox();
    let bad = bad.on_default_network(&json!({ "mac_address": "no" }));
    assert_eq!(bad.add().error().code, 104);
    let mut gc = conf();
    gc["cni.dev/valid-attachments"] = json!([]);
    pod.exec("GC", &gc).success();
    pod.exec("STATUS", &conf()).success();
    pod.del().success();
    let page = scrape(&agent);
    agent.stop();
    node.leftovers().assert_none();
    page
}

#[test]
fn operations_their_steps_and_their_waits_are_counted() {
    let page = full_page();
    let ended = |verb, outcome| {
        let name = "podwire_operation_duration_seconds_count";
        page.value(name, &[("verb", verb), ("outcome", outcome)])
    };
    assert_eq!(ended("ADD", "ok"), Some(1.0));
    assert_eq!(ended("ADD", "failed"), Some(1.0));
    for verb in ["CHECK", "DEL", "GC", "STATUS"] {
        assert_eq!(ended(verb, "ok"), Some(1.0), "{verb}");
        assert_eq!(ended(verb, "failed"), Some(0.0), "{verb}");
    }
    // Its second sandbox is none of a new pod.
    let started = page.value("podwire_pod_network_ready_seconds_count", &[]);
    assert_eq!(started, Some(1.0));
    let failures = [("verb", "ADD"), ("code", "104")];
    assert_eq!(
        page.value("podwire_operation_failures_total", &failures),
        Some(1.0)
    );
    for phase in ["make pair", "ovsdb: transaction", "intent log"] {
        let labels = [("verb", "ADD"), ("phase", phase)];
        let steps = page.value("podwire_phase_duration_seconds_count", &labels);
        assert_eq!(steps, Some(1.0), "{phase}");
    }
    // The refused one waited for its turn as well, and DEL; the refused one never came to wait for
    // the switch.
    let waited = |reason| page.value("podwire_wait_duration_seconds_count", &[("reason", reason)]);
    assert_eq!(waited("turn"), Some(3.0));
    assert_eq!(waited("ofport"), Some(1.0));
    assert_eq!(page.sum("podwire_waits", &[]), 0.0);
    assert_eq!(
        page.value("podwire_repairs_total", &[("what", "unlisted")]),
        Some(1.0)
    );
}

#[test]
fn histograms_begin_at_a_quarter_of_a_millisecond_and_add_up() {
    let page = full_page();
    let histograms: Vec<_> = page
        .types
        .iter()
        .filter(|(_, kind)| *kind == "histogram")
        .collect();
    assert!(!histograms.is_empty());
    for (metric, _) in histograms {
        let mut first: BTreeMap<_, f64> = BTreeMap::new();
        for series in page
            .series
            .iter()
            .filter(|it| it.name == format!("{metric}_bucket"))
        {
            let mut labels = series.labels.clone();
            let bound = labels.remove("le").unwrap();
            if metric.ends_with("_seconds") {
                first
                    .entry(labels.clone())
                    .or_insert_with(|| bound.parse().unwrap());
            }
            if bound == "+Inf" {
                let labels: Vec<_> = labels
                    .iter()
                    .map(|(k, v)| (k.as_str(), v.as_str()))
                    .collect();
                let count = page.value(&format!("{metric}_count"), &labels);
                assert_eq!(count, Some(series.value), "{metric} {labels:?}");
            }
        }
        assert!(
            // In the start of a pod the runtime has its part.
            metric == "podwire_pod_network_ready_seconds"
                || first.values().all(|bound| *bound == 0.000_25),
            "{metric}: {first:?}"
        );
    }
}

#[test]
fn ports_spool_watch_and_database_are_told_as_they_are() {
    let (node, server) = ApiServer::beside_a_node();
    let agent = watching(&node, &server, AgentOptions::default());
    let pods: Vec<_> = ["a", "b"].map(|name| node.pod(name)).into();
    for pod in &pods {
        server.apply(apiserver::pod_on("n1", pod, json!({})));
        pod.add().success();
    }
    let page = scrape(&agent);
    let ports = |page: &Scrape, state| page.value("podwire_ports", &[("state", state)]);
    assert_eq!(ports(&page, "up"), Some(2.0));
    assert_eq!(ports(&page, "failed"), Some(0.0));
    let of_kube = [("source", "kube")];
    assert_eq!(page.value("podwire_watch_pods", &of_kube), Some(2.0));
    assert_eq!(page.value("podwire_watch_failing", &of_kube), Some(0.0));
    let lag = page.value("podwire_watch_lag_seconds", &of_kube).unwrap();
    assert!(lag < page.value("process_start_time_seconds", &[]).unwrap());
    assert_eq!(page.value("podwire_spool_entries", &[]), Some(0.0));
    assert_eq!(page.value("podwire_ready", &[]), Some(1.0));
    assert_eq!(page.value("podwire_ovsdb_connects_total", &[]), Some(1.0));
    assert!(page.value("podwire_ovsdb_transactions_total", &[]).unwrap() >= 2.0);
    let batches = page.value("podwire_ovsdb_batch_transactions_sum", &[]);
    assert!(batches.unwrap() >= 2.0);
    let held = [("subnet", "10.186.0.0/22")];
    assert_eq!(
        page.value("podwire_subnet_addresses_held", &held),
        Some(2.0)
    );
    for pod in &pods {
        pod.del().success();
    }
    let page = scrape(&agent);
    assert_eq!(ports(&page, "up"), Some(0.0));
    agent.stop();
    node.leftovers().assert_none();
}

#[test]
fn a_loopback_address_serves_the_page_and_nothing_else() {
    let node = TestNode::with_ovs();
    let options = AgentOptions::default().with(format!("--metrics-address {ADDRESS}"));
    let agent = node.start_agent(&options);
    let ask_for = |head: &str, header: &str| {
        let mut stream = node.place().run(|| TcpStream::connect(ADDRESS)).unwrap();
        let request = format!("{head} HTTP/1.1\r\nHost: {ADDRESS}\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    let answer = ask_for("GET /metrics", "Accept: application/openmetrics-text\r\n");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains(
            "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n"
        )
    );
    let (_, page) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        Scrape::parse(page)
            .unwrap()
            .value("podwire_ready", &[])
            .is_some()
    );
    let ask = |head: &str| ask_for(head, "");
    // Without a preference it is the text format, whose counters and infos have their series'
    // names.
    let answer = ask("GET /metrics");
    assert!(answer.contains("content-type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    let (_, page) = answer.split_once("\r\n\r\n").unwrap();
    for line in [
        "# TYPE podwire_build_info gauge",
        "# TYPE podwire_spool_dels_total counter",
        "# TYPE podwire_operation_duration_seconds histogram",
    ] {
        assert!(page.lines().any(|it| it == line), "{line} in\n{page}");
    }
    assert!(!page.contains("# UNIT") && !page.contains("# EOF"));
    assert!(ask("POST /metrics").starts_with("HTTP/1.1 405"));
    for page in ["/v1/ports", "/v1/traces", "/v1/cni", "/"] {
        assert!(
            ask(&format!("GET {page}")).starts_with("HTTP/1.1 404"),
            "{page}"
        );
    }
    agent.stop();
}

/// A row of the table of docs/metrics.md: name, type, labels.
fn documented() -> BTreeMap<String, (String, BTreeSet<String>)> {
    let page = std::fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let rows = rows.filter(|row| row.starts_with("podwire_") || row.starts_with("process_"));
    let mut metrics = BTreeMap::new();
    for row in rows {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        let (name, kind, labels) = (
            cells.next().unwrap(),
            cells.next().unwrap(),
            cells.next().unwrap(),
        );
        let labels = labels
            .split(',')
            .map(|label| label.trim().trim_matches('`').to_owned());
        let labels = labels.filter(|label| !label.is_empty()).collect();
        let twice = metrics.insert(name.to_owned(), (kind.to_owned(), labels));
        assert!(twice.is_none(), "{name} is there twice");
    }
    metrics
}

#[test]
fn the_page_in_the_docs_tells_every_metric_with_its_type_and_labels_and_no_other() {
    let page = full_page();
    let real: BTreeMap<String, (String, BTreeSet<String>)> = page
        .types
        .iter()
        .map(|(name, kind)| (name.clone(), (kind.clone(), page.labels(name))))
        .collect();
    assert_eq!(documented(), real);
}

/// All that looks like the name of one of our series in the dashboard's queries.
fn names_in_queries(dashboard: &Value, found: &mut BTreeSet<String>) {
    match dashboard {
        Value::Object(members) => {
            for (name, value) in members {
                match value.as_str() {
                    Some(query) if name == "expr" || name == "query" || name == "definition" => {
                        let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
                        let words = query.split(|it| !is_name(it));
                        let ours = words
                            .filter(|it| it.starts_with("podwire_") || it.starts_with("process_"));
                        found.extend(ours.map(str::to_owned));
                    }
                    _ => names_in_queries(value, found),
                }
            }
        }
        Value::Array(members) => members.iter().for_each(|it| names_in_queries(it, found)),
        _ => {}
    }
}

#[test]
fn the_dashboard_asks_for_series_that_are_there() {
    let text = std::fs::read_to_string(repository().join("deploy/grafana/podwire.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut asked = BTreeSet::new();
    names_in_queries(&dashboard, &mut asked);
    assert!(asked.len() > 15, "{asked:?}");
    let page = full_page();
    let there: BTreeSet<String> = page
        .series
        .iter()
        .map(|series| series.name.clone())
        .collect();
    let lacking: Vec<_> = asked.difference(&there).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<_> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
    for panel in panels.iter().filter(|panel| panel["type"] != "row") {
        assert!(
            panel["targets"].as_array().is_some_and(|it| !it.is_empty()),
            "{}",
            panel["title"]
        );
    }
}

#[test]
fn the_alerts_ask_for_series_that_are_there_and_say_what_to_do() {
    let rules =
        std::fs::read_to_string(repository().join("deploy/prometheus/podwire.rules.yml")).unwrap();
    let is_name = |it: char| it.is_ascii_alphanumeric() || it == '_';
    let words = rules.split(|it| !is_name(it));
    let ours = words.filter(|it| it.starts_with("podwire_") || it.starts_with("process_"));
    let page = full_page();
    let read = |page: &str| std::fs::read_to_string(repository().join("docs").join(page)).unwrap();
    let (of_node, of_controller) = (read("node.md"), read("controller.md"));
    for name in ours {
        let is_there = if name.starts_with("podwire_node_") {
            of_node.contains(&format!("`{name}`"))
        } else if let Some(rest) = name.strip_prefix("podwire_controller_") {
            let rest = rest.strip_suffix("_bucket").unwrap_or(rest);
            of_controller.contains(&format!("_{rest}`"))
        } else {
            page.series.iter().any(|series| series.name == name)
        };
        assert!(is_there, "{name}");
    }
    let docs = std::fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let alerts: Vec<&str> = rules.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 8, "{}", alerts.len());
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        for member in [
            "expr:",
            "severity:",
            "summary:",
            "description:",
            "runbook_url:",
        ] {
            assert_eq!(alert.matches(member).count(), 1, "{member} of {name}");
        }
        assert!(
            docs.contains(&format!("| `{name}` |")),
            "{name} in docs/metrics.md"
        );
    }
}

#[test]
fn each_alert_fires_for_what_it_is_for_and_none_on_a_day_on_which_all_is_well() {
    let directory = repository().join("deploy/prometheus");
    let read = |file: &str| std::fs::read_to_string(directory.join(file)).unwrap();
    let (rules, cases) = (read("podwire.rules.yml"), read("podwire.rules.test.yml"));
    for alert in rules.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        let case = format!("alertname=\"{name}\"");
        assert!(cases.contains(&case), "no series make {name} fire");
    }
    let mut promtool = Command::new("promtool");
    promtool
        .args(["test", "rules", "podwire.rules.test.yml"])
        .current_dir(&directory);
    let done = finish(promtool, b"", Duration::from_secs(60)).unwrap();
    assert!(done.status.success(), "{}{}", done.stdout, done.stderr);
}

#[test]
fn what_waits_and_what_is_away_is_told_as_well() {
    let node = TestNode::new();
    let pod = node.pod("web");
    // Into the spool, for there is no agent; and without Open vSwitch it stays there.
    pod.del().success();
    let server = ApiServer::start_in(node.place());
    server.apply(apiserver::pod_on("n1", &pod, json!({})));
    let url = server.url();
    let options = AgentOptions::default().with(format!("--k8s-apiserver {url} --node-name n1"));
    let agent = Agent::launch(&node, &options.with("--annotations optional")).unwrap();
    let state = |page: &Scrape| {
        ["ready", "ovsdb_synced", "spool_entries"]
            .map(|name| page.value(&format!("podwire_{name}"), &[]).unwrap())
    };
    assert_eq!(state(&scrape(&agent)), [0.0, 0.0, 1.0]);
    node.start_ovsdb_server();
    node.start_vswitchd();
    agent.await_ready(true);
    assert_eq!(state(&scrape(&agent)), [1.0, 1.0, 0.0]);

    let of_kube = [("source", "kube")];
    server.go_away(true);
    agent.await_log("can't watch this node's pods");
    let page = scrape(&agent);
    assert_eq!(page.value("podwire_watch_failing", &of_kube), Some(1.0));

    let ports = node.podwire_live("ports --watch");
    node.signal_vswitchd(Signal::SIGSTOP);
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| pod.add().success());
        ports.await_line(&["awaits-ofport", "tests/web"]);
        let page = scrape(&agent);
        node.signal_vswitchd(Signal::SIGCONT);
        adding.join().unwrap();
        assert_eq!(page.value("podwire_operations_running", &[]), Some(1.0));
        let awaited = [("state", "awaits-ofport")];
        assert_eq!(page.value("podwire_ports", &awaited), Some(1.0));
        let waits = page.value("podwire_waits", &[("reason", "ofport")]);
        assert_eq!(waits, Some(1.0));
    });
    pod.del().success();
}
