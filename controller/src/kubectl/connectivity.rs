//! `kubectl podwire connectivity`: pods on every node try every kind of path, and all of it is
//! removed again.

mod namespace;
mod objects;
mod report;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::iter;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use podwire_daemon::output::OutputArgs;
use podwire_daemon::process;
use serde_json::Value;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::exec::Cluster;
use super::objects::Part;
use super::{Common, Failure, print};
use namespace::{api, make, make_namespace, remove, remove_left_behind, running};
use objects::{CONTAINER, End, NAME, Role, SERVICE_PORT};
use report::{Attempt, Report};

/// Nodes that are asked at once.
const AT_ONCE: usize = 16;
/// To so many other nodes each node tries its paths; in a larger cluster the next ones by name.
const NEIGHBOURS: usize = 3;
/// How often a path that fails is tried: what has just been made may not be everywhere yet.
const ROUNDS: usize = 4;
/// The longest deadline: before another test takes this one's namespace for one that was left
/// behind.
const LONGEST: i64 = 600;
/// So long before the deadline nothing is tried any more.
const REPORT: Duration = Duration::from_secs(1);

/// The flags of `kubectl podwire connectivity`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "It makes the namespace podwire-connectivity-TIME with two small pods on every \
                  node, of the agent's own image, a service and a network policy, and removes it \
                  at the end, also when it is interrupted."
)]
pub struct ConnectivityArgs {
    /// Also write the results as JUnit's XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// An address outside of the cluster that pods should reach by TCP: ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS:PORT")]
    external: Option<SocketAddr>,
    /// How many seconds all of it has
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=LONGEST))]
    deadline: u16,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    common: Common,
}

/// What one client tries.
#[derive(Debug, Clone)]
struct Try {
    path: &'static str,
    to: String,
    family: Option<&'static str>,
    protocol: &'static str,
    /// As `podwire connectivity probe` takes it.
    target: String,
    /// Whether it should be reached.
    should: bool,
}

/// What a test is of.
struct Plan {
    /// Those that are ready.
    nodes: Vec<String>,
    /// That of the pods.
    image: String,
    has_policies: bool,
    /// What is left out, with reasons.
    not_tried: Vec<String>,
}

/// The ends, with their addresses.
type Ends = BTreeMap<String, (End, Vec<IpAddr>)>;

impl ConnectivityArgs {
    pub(super) async fn run(self) -> Result<bool, Failure> {
        let shutdown = process::asked_to_end().map_err(Failure::Output)?;
        let cluster = self.common.cluster().await?;
        let now = Timestamp::now();
        // Two tests may begin in one second.
        let namespace = format!("{}-{}", objects::LABEL, now.as_millisecond());
        let test = Cluster {
            client: cluster.client.clone(),
            server: cluster.server.clone(),
            namespace,
            limit: cluster.limit,
        };
        let deadline = Instant::now() + Duration::from_secs(self.deadline.into());
        let mut end = pin!(async {
            tokio::select! {
                () = sleep_until(deadline) => {
                    format!("it has not ended within {} s (--deadline)", self.deadline)
                }
                () = shutdown => "interrupted".to_owned(),
            }
        });
        let plan = tokio::select! {
            plan = self.plan(&cluster, now.as_second()) => plan?,
            why = &mut end => return Err(Failure::Unknown(why)),
        };
        // Its answer is waited for in any case: without it nobody knows whether there is something
        // to remove.
        let tested = match make_namespace(&test).await {
            Ok(()) => tokio::select! {
                tested = self.test(&cluster, &test, plan, deadline - REPORT) => tested,
                why = &mut end => Err(Failure::Unknown(why)),
            },
            Err(failure) => Err(failure),
        };
        let removed = remove(&test).await;
        // What is left behind is said in any case.
        if let (Err(_), Err(left)) = (&tested, &removed) {
            eprintln!("kubectl podwire: {left}");
        }
        let report = tested?;
        print(self.output.output, &report, || report.to_string())?;
        if let Some(path) = &self.junit {
            let written = std::fs::write(path, report.junit());
            written.map_err(|source| Failure::File {
                path: path.display().to_string(),
                source,
            })?;
        }
        removed?;
        Ok(report.is_well)
    }

    /// What is to be tried; removes what former tests have left.
    async fn plan(&self, cluster: &Cluster, now: i64) -> Result<Plan, Failure> {
        remove_left_behind(cluster, now).await?;
        let mut not_tried = Vec::new();
        let mut nodes = Vec::new();
        for node in cluster.nodes().await? {
            match node.unready {
                None => nodes.push(node.name),
                Some(why) => not_tried.push(format!("node {}: {why}", node.name)),
            }
        }
        let own = cluster.own_pods().await?;
        let agent = own.iter().find(|pod| pod.part == Part::Agent);
        let image = agent.and_then(|pod| pod.image.clone()).ok_or_else(|| {
            let namespace = &cluster.namespace;
            let none = format!(
                "no pod of podwire's agent in namespace {namespace}: the test's pods \
                                are of its image"
            );
            Failure::Unknown(none)
        })?;
        let has_policies = own.iter().any(|pod| pod.part == Part::Controller);
        if !has_policies {
            not_tried.push("policies: no podwire-controller".to_owned());
        }
        Ok(Plan {
            nodes,
            image,
            has_policies,
            not_tried,
        })
    }

    /// What is not tried until then has failed.
    async fn test(
        &self,
        cluster: &Cluster,
        test: &Cluster,
        plan: Plan,
        until: Instant,
    ) -> Result<Report, Failure> {
        let Plan {
            nodes,
            image,
            has_policies,
            mut not_tried,
        } = plan;
        let wanted = objects::ends(&nodes, has_policies);
        make(test, &wanted, &image, has_policies).await?;
        let (ends, waiting) = running(test, wanted, self.deadline / 2).await?;
        not_tried.extend(waiting);
        if self.external.is_none() {
            not_tried.push("the outside: no address is given by --external".to_owned());
        }
        let services = api::<Service>(test);
        let service = cluster.answered(services.get(NAME)).await?;
        let dns = Api::<Service>::namespaced(cluster.client.clone(), "kube-system");
        let has_dns = cluster.answered(dns.get_opt("kube-dns")).await?.is_some();
        if !has_dns {
            not_tried.push("DNS: no service kube-system/kube-dns".to_owned());
        }
        let plan = |end: &End| self.tries(end, &nodes, &ends, &service, has_dns);
        let clients = ends.values().map(|(end, _)| (end, plan(end)));
        let clients = clients.filter(|(_, tries)| !tries.is_empty());
        let asked = clients.map(|(end, tries)| async move {
            let tried = timeout_at(until, attempts(test, end, &tries)).await;
            tried.unwrap_or_else(|_| {
                let late = format!("not tried within {} s (--deadline)", self.deadline);
                let tries = tries.iter();
                tries.map(|it| attempt(end, it, Err(&late))).collect()
            })
        });
        let attempts: Vec<Vec<Attempt>> = iter(asked).buffered(AT_ONCE).collect().await;
        let attempts: Vec<Attempt> = attempts.into_iter().flatten().collect();
        let is_well = !nodes.is_empty()
            && attempts.iter().all(|it| it.is_well)
            && not_tried.iter().all(|it| !it.starts_with("node "));
        Ok(Report {
            is_well,
            attempts,
            not_tried,
        })
    }

    /// What an end tries.
    fn tries(
        &self,
        client: &End,
        nodes: &[String],
        ends: &Ends,
        service: &Service,
        has_dns: bool,
    ) -> Vec<Try> {
        let mut tries = Vec::new();
        let mut try_end = |path, name: &str, protocols: &[&'static str], should| {
            if let Some((end, addresses)) = ends.get(name) {
                // By UDP a node answers from the address that its route has, not from the one that
                // was asked.
                let protocols = match end.role {
                    Role::Host => &protocols[..1],
                    _ => protocols,
                };
                for (&address, &protocol) in addresses
                    .iter()
                    .flat_map(|address| protocols.iter().map(move |it| (address, it)))
                {
                    let to = SocketAddr::new(address, end.port());
                    tries.push(Try::of(path, protocol, name.to_owned(), to, should));
                }
            }
        };
        const BOTH: [&str; 2] = ["TCP", "UDP"];
        let is_pod = match client.role {
            Role::Pod { is_friend } => {
                if is_friend {
                    try_end("pod to a pod of its node", "stranger", &BOTH, true);
                    try_end("pod that a policy lets pass", "guarded", &["TCP"], true);
                }
                true
            }
            Role::Host => false,
            Role::Stranger => {
                try_end("pod that a policy refuses", "guarded", &BOTH, false);
                return tries;
            }
            Role::Guarded => return tries,
        };
        let own = nodes
            .iter()
            .position(|node| *node == client.node)
            .unwrap_or_default();
        let others = (1..nodes.len())
            .take(NEIGHBOURS)
            .map(|step| (own + step) % nodes.len());
        let others: Vec<usize> = others.collect();
        let choose = |of_pod, of_node| if is_pod { of_pod } else { of_node };
        try_end(
            choose("pod to its node", "node to its pod"),
            &format!("{}-{own}", choose("node", "pod")),
            &BOTH,
            true,
        );
        for other in &others {
            let path = choose("pod to another node's pod", "node to another node's pod");
            try_end(path, &format!("pod-{other}"), &BOTH, true);
            let path = choose("pod to another node", "node to another node");
            try_end(path, &format!("node-{other}"), &BOTH, true);
        }
        let spec = service.spec.clone().unwrap_or_default();
        for address in spec
            .cluster_ips
            .iter()
            .flatten()
            .filter_map(|it| it.parse().ok())
        {
            let path = choose("pod to a service", "node to a service");
            for protocol in BOTH {
                let to = SocketAddr::new(address, SERVICE_PORT);
                tries.push(Try::of(path, protocol, "the service".to_owned(), to, true));
            }
        }
        let ports = spec.ports.iter().flatten();
        let ports = ports.filter_map(|it| Some((it.protocol.as_deref()?, it.node_port?)));
        let path = choose("pod to a node port", "node to a node port");
        for (protocol, port) in ports {
            let protocol = if protocol == "UDP" { "UDP" } else { "TCP" };
            for number in std::iter::once(&own).chain(&others) {
                let name = format!("node-{number}");
                let addresses = ends.get(&name).map(|(_, addresses)| addresses);
                for address in addresses.into_iter().flatten() {
                    let to = SocketAddr::new(*address, u16::try_from(port).unwrap_or_default());
                    tries.push(Try::of(path, protocol, name.clone(), to, true));
                }
            }
        }
        if is_pod && has_dns {
            let name = "kubernetes.default.svc";
            tries.push(Try {
                path: "pod to DNS",
                to: name.to_owned(),
                family: None,
                protocol: "DNS",
                target: format!("dns:{name}"),
                should: true,
            });
        }
        if let (true, Some(to)) = (is_pod, self.external) {
            tries.push(Try::of(
                "pod to the outside",
                "TCP",
                to.to_string(),
                to,
                true,
            ));
        }
        tries
    }
}

impl Try {
    fn of(
        path: &'static str,
        protocol: &'static str,
        to: String,
        address: SocketAddr,
        should: bool,
    ) -> Self {
        Self {
            path,
            to,
            family: Some(if address.is_ipv4() { "IPv4" } else { "IPv6" }),
            protocol,
            target: format!("{}:{address}", protocol.to_lowercase()),
            should,
        }
    }
}

/// What came of an end's tries. What fails is tried again: a policy or a service that has just been
/// made is not on every node at once. What should fail is tried once.
async fn attempts(test: &Cluster, client: &End, tries: &[Try]) -> Vec<Attempt> {
    let mut results: Vec<Option<Attempt>> = vec![None; tries.len()];
    for _ in 0..ROUNDS {
        let is_open = |at: &usize| results[*at].as_ref().is_none_or(|it| !it.is_well);
        let open: Vec<usize> = (0..tries.len()).filter(is_open).collect();
        if open.is_empty() {
            break;
        }
        let mut command = vec!["/usr/bin/podwire", "connectivity", "probe"];
        command.extend(open.iter().map(|at| tries[*at].target.as_str()));
        let answer = test.ask(&client.name, CONTAINER, &command).await;
        for (number, at) in open.into_iter().enumerate() {
            let tried = answer.as_ref().map(|answer| &answer[number]);
            results[at] = Some(attempt(client, &tries[at], tried));
        }
    }
    results.into_iter().flatten().collect()
}

fn attempt(client: &End, tried: &Try, answer: Result<&Value, &String>) -> Attempt {
    let (is_reached, micros, problem) = match answer {
        Ok(answer) => (
            answer["isReached"].as_bool(),
            answer["micros"].as_u64(),
            answer["problem"].as_str().map(str::to_owned),
        ),
        Err(why) => (None, None, Some(why.clone())),
    };
    let is_well = is_reached == Some(tried.should);
    Attempt {
        path: tried.path,
        from: client.name.clone(),
        to: tried.to.clone(),
        family: tried.family,
        protocol: tried.protocol,
        is_well,
        micros: micros.filter(|_| is_reached == Some(true)),
        problem: match (is_reached, tried.should) {
            (Some(true), false) => Some("it is reached".to_owned()),
            (Some(false), false) => None,
            _ => problem,
        },
    }
}
