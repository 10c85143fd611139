use std::path::PathBuf;
use std::time::Duration;

use clap::Parser as _;
use podwire_controller::arguments::Arguments;
use podwire_controller::run::{Progress, Reporter, RunError, run};
use podwire_ovs::client::{Client, ClientConfig, Remote};
use podwire_ovs::nb;
use podwire_tests::apiserver::{ApiServer, endpoints, node, pod, service};
use podwire_tests::ovn::Central;
use serde_json::{Value, json};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

/// A controller under test, in this process.
pub(crate) struct Running {
    progress: watch::Receiver<Progress>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RunError>>,
}

pub(crate) fn northbound(central: &Central) -> PathBuf {
    central.machine().path("/run/ovn/ovnnb_db.sock")
}

/// Where everything is.
pub(crate) fn flags(central: &Central, server: &ApiServer) -> Vec<String> {
    let database = format!("--nb-db={}", central.local_northbound());
    let southbound = format!("--sb-db={}", central.local_remote());
    vec![
        database,
        southbound,
        format!("--k8s-apiserver={}", server.url()),
    ]
}

/// How long a freed address rests here.
pub(crate) const REST: Duration = Duration::from_millis(200);

impl Running {
    pub(crate) fn start(central: &Central, server: &ApiServer, flags: &[&str]) -> Self {
        Self::resting(REST, central, server, flags)
    }

    /// With another rest of freed addresses.
    pub(crate) fn resting(
        rest: Duration,
        central: &Central,
        server: &ApiServer,
        flags: &[&str],
    ) -> Self {
        let mut own = vec!["podwire-controller".to_owned()];
        own.extend(self::flags(central, server));
        own.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let arguments = Arguments::try_parse_from(own).unwrap();
        let mut config = arguments.config;
        config.rest = rest;
        let reporter = Reporter::default();
        let progress = reporter.subscribe();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            let shutdown = async {
                let _ = stopped.await;
            };
            run(config, &reporter, shutdown).await
        });
        Self {
            progress,
            stop: Some(stop),
            task,
        }
    }

    /// Waits until the controller's progress is as wanted, or it ends.
    pub(crate) async fn until(&mut self, wanted: impl FnMut(&Progress) -> bool) -> Progress {
        let found = timeout_at(soon(), self.progress.wait_for(wanted)).await;
        let found = found.map(|found| found.map(|progress| progress.clone()));
        match found {
            Ok(Ok(progress)) => progress,
            Ok(Err(_)) => panic!("the controller ended"),
            Err(_) => panic!("seen instead: {:?}", self.progress.borrow()),
        }
    }

    /// Waits until everything that it knows is as it should be.
    pub(crate) async fn idle(&mut self) -> Progress {
        self.until(|progress| progress.is_ready && progress.is_idle)
            .await
    }

    pub(crate) async fn stop(mut self) -> Result<(), RunError> {
        drop(self.stop.take());
        self.end().await
    }

    /// Ends it wherever it is.
    pub(crate) fn kill(self) {
        self.task.abort();
    }

    /// Waits for its end.
    pub(crate) async fn end(self) -> Result<(), RunError> {
        timeout_at(soon(), self.task).await.unwrap().unwrap()
    }
}

/// When a wait has failed: far more than any takes, on a machine that does much else too.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Another client of the northbound database.
pub(crate) fn ovsdb(central: &Central) -> Client {
    let remote = Remote::Unix(northbound(central));
    Client::start(ClientConfig::new(remote, nb::DATABASE, nb::tables()))
}

/// The names of the rows of a table that the controller made, sorted.
pub(crate) fn names(central: &Central, table: &str) -> Vec<String> {
    let rows = central.northbound().rows(table).unwrap();
    let own = rows.iter().filter(|row| {
        let owner = row
            .get("external_ids")
            .and_then(|ids| ids.get("podwire.io/owner"));
        owner.is_some_and(|owner| owner == "controller")
    });
    let mut names: Vec<_> = own
        .map(|row| {
            row.get("name")
                .and_then(Value::as_str)
                .unwrap_or("")
                .to_owned()
        })
        .collect();
    names.sort();
    names
}

/// Waits until a table of the northbound database has a row with this name, or has none.
pub(crate) fn await_row(central: &Central, table: &str, name: &str, is_there: bool) {
    let until = if is_there { "!=" } else { "==" };
    let condition = json!([["name", "==", name]]);
    let northbound = central.northbound();
    northbound
        .wait(table, condition, until, &["name"], json!([]))
        .unwrap();
}

pub(crate) fn annotation(object: &Value, name: &str) -> Option<Value> {
    let text = object["metadata"]["annotations"][name].as_str()?;
    serde_json::from_str(text).ok()
}

/// Waits for the entry of a pod's default network.
pub(crate) fn await_network(server: &ApiServer, namespace: &str, name: &str) -> Value {
    let is_there = |pod: &Value| annotation(pod, "k8s.ovn.org/pod-networks").is_some();
    let pod = server.await_object(("Pod", namespace, name), is_there);
    annotation(&pod, "k8s.ovn.org/pod-networks").unwrap()["default"].clone()
}

pub(crate) fn pod_of(node: &str, name: &str) -> Value {
    pod(node, "default", name, &format!("uid-of-{name}"), json!({}))
}

pub(crate) fn column(central: &Central, table: &str, name: &str, column: &str) -> Value {
    let rows = central.northbound().rows(table).unwrap();
    let row = rows.into_iter().find(|row| row["name"] == name);
    row.unwrap()[column].clone()
}

/// A controller that has made what the cluster of [`populate`] needs.
pub(crate) async fn populated() -> (Central, ApiServer, Running) {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    (central, server, controller)
}

/// The logical ports of that cluster.
pub(crate) const PORTS: [&str; 8] = [
    "default_db",
    "default_web",
    "k8s-node-a",
    "k8s-node-b",
    "podwire-door-node-a",
    "podwire-door-node-b",
    "stor-node-a",
    "stor-node-b",
];

/// Two nodes, two pods and a service of theirs.
pub(crate) fn populate(server: &ApiServer) {
    server.apply(node("node-a", "192.0.2.1"));
    server.apply(node("node-b", "192.0.2.2"));
    server.apply(pod_of("node-a", "web"));
    server.apply(pod_of("node-b", "db"));
    server.apply(service("default", "front", "10.96.0.10", 80));
    server.apply(endpoints(
        "default",
        "front",
        &["10.244.0.3", "10.244.1.3"],
        8080,
    ));
}
