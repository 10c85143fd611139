//! Services of any content that the API takes, on the real nft and kernel.

use std::thread;

use nix::sched::{CloneFlags, unshare};
use podwire_cluster::SERVICE_NAME;
use podwire_cluster::api::{EndpointSlice, Service as ApiService};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use serde_json::json;

use super::super::refused;
use super::*;

/// Runs it in a network namespace of its own.
fn on_own_host<T: Send>(work: impl AsyncFnOnce() -> T + Send) -> T {
    let inside = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        runtime.enable_all().build().unwrap().block_on(work())
    };
    thread::scope(|scope| scope.spawn(inside).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

const NAMES: [&str; 3] = ["a", "b", "web-server"];
const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
/// Cluster IPs, external ones and load balancers': the same for several services, the machine's
/// own, and some that no service should have.
const ADDRESSES: [&str; 12] = [
    "10.96.0.10",
    "10.96.0.11",
    "192.0.2.11",
    "203.0.113.1",
    "127.0.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "fd00:10:96::a",
    "2001:db8::11",
    "::1.2.3.4",
    "::ffff:10.0.0.1",
    "ff02::1",
];
const RANGES: [&str; 15] = [
    "0.0.0.0/0",
    "0.0.0.0/1",
    "128.0.0.0/1",
    "192.0.0.0/8",
    "192.0.2.0/24",
    "192.0.2.77/24",
    "192.0.2.11/32",
    "192.0.2.10/32",
    "255.255.255.255/32",
    " 10.0.0.0/8 ",
    "::/0",
    "fd00::/8",
    "fd00::1/64",
    "::1.2.3.4/128",
    "fd00::1/128",
];
const ENDPOINTS: [&str; 9] = [
    "10.244.1.5",
    "10.244.1.6",
    "10.244.2.5",
    "192.0.2.11",
    "0.0.0.0",
    "fd00:10:244:1::5",
    "fd00:10:244:2::5",
    "::ffff:10.244.1.5",
    "web.example.org",
];
const PORTS: [i32; 7] = [0, 1, 22, 80, 443, 65_535, 70_000];

fn some_of(
    texts: &'static [&'static str],
    most: usize,
) -> impl Strategy<Value = Vec<&'static str>> {
    let shuffled = subsequence(texts.to_vec(), 0..=most);
    shuffled.prop_shuffle()
}

fn service() -> impl Strategy<Value = ApiService> {
    let port = (
        select(&NAMES[..]),
        select(&PROTOCOLS[..]),
        select(&PORTS[..]),
        select(&PORTS[..]),
    );
    let port = port.prop_map(|(name, protocol, port, node_port)| {
        json!({"name": name, "protocol": protocol, "port": port, "nodePort": node_port})
    });
    let policy = || select(&["Local", "Cluster"][..]);
    let timeout = select(
        &[
            None,
            Some(1),
            Some(10_800),
            Some(86_400),
            Some(i32::MAX),
            Some(0),
        ][..],
    );
    (
        some_of(&ADDRESSES, 2),
        some_of(&ADDRESSES, 3),
        some_of(&ADDRESSES, 3),
        some_of(&RANGES, 6),
        proptest::collection::vec(port, 0..4),
        (policy(), policy(), timeout),
    )
        .prop_map(
            |(ips, external, balancer, ranges, ports, (outer, inner, timeout))| {
                let ingress: Vec<_> = balancer.iter().map(|ip| json!({"ip": ip})).collect();
                let object = json!({
                    "spec": {
                        "type": "LoadBalancer", "clusterIP": ips.first(), "clusterIPs": ips,
                        "externalIPs": external, "loadBalancerSourceRanges": ranges, "ports": ports,
                        "externalTrafficPolicy": outer, "internalTrafficPolicy": inner,
                        "sessionAffinity": if timeout.is_some() { "ClientIP" } else { "None" },
                        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": timeout}},
                    },
                    "status": {"loadBalancer": {"ingress": ingress}},
                });
                serde_json::from_value(object).unwrap()
            },
        )
}

fn slice(service: &'static str) -> impl Strategy<Value = EndpointSlice> {
    let endpoint = (
        select(&ENDPOINTS[..]),
        any::<[bool; 2]>(),
        select(&["node-a", "node-b"][..]),
    );
    let endpoint = endpoint.prop_map(|(address, [ready, serving], node)| {
        let conditions = json!({"ready": ready, "serving": serving});
        json!({"addresses": [address], "nodeName": node, "conditions": conditions})
    });
    let port = (
        select(&NAMES[..]),
        select(&PROTOCOLS[..]),
        select(&PORTS[..]),
    );
    let port = port.prop_map(
        |(name, protocol, port)| json!({"name": name, "protocol": protocol, "port": port}),
    );
    let endpoints = proptest::collection::vec(endpoint, 0..6);
    let ports = proptest::collection::vec(port, 0..4);
    (endpoints, ports).prop_map(move |(endpoints, ports)| {
        let object = json!({
            "metadata": {"labels": {SERVICE_NAME: service}}, "endpoints": endpoints, "ports": ports,
        });
        serde_json::from_value(object).unwrap()
    })
}

/// A cluster at one time.
fn objects() -> impl Strategy<Value = Cluster> {
    let of_name = |name: &'static str| {
        let slices = proptest::collection::vec(slice(name), 0..3);
        (proptest::option::weighted(0.9, service()), slices).prop_map(move |it| (name, it))
    };
    NAMES.map(of_name).prop_map(|objects| {
        let mut cluster = Cluster::default();
        cluster.services.is_listed = true;
        cluster.slices_are_listed = true;
        for (name, (service, slices)) in objects {
            let key = (Name::from("ns"), Name::from(name));
            if let Some(service) = service.as_ref().and_then(Service::of) {
                cluster.services.objects.insert(key.clone(), service);
            }
            for (number, slice) in slices.iter().enumerate() {
                let own = format!("{name}-{number}");
                cluster
                    .slices
                    .set(("ns".into(), own.into()), Slice::of(slice));
            }
        }
        cluster
    })
}

fn with_pods() -> LocalNode {
    let pods = ["10.244.0.0/16", "fd00:10:244::/48"].map(|net| net.parse().unwrap());
    LocalNode {
        pods: pods.into(),
        ..here()
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_shrink_iters: 200,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn what_the_api_takes_nft_takes_too_change_by_change(
        history in proptest::collection::vec(objects(), 1..5),
    ) {
        on_own_host(async move || -> Result<(), TestCaseError> {
            let mut seen = None;
            for cluster in &history {
                let contents = contents(cluster);
                let script = contents.script(seen.as_ref());
                let taken = nft::run("a change", &script).await;
                prop_assert!(taken.is_ok(), "{}:\n{script}", taken.unwrap_err());
                let listed = nft::list(NAME).await.unwrap().map(|listed| read(&listed));
                seen = Some(contents.seen());
                let to_nowhere = |end: &String| end.ends_with(" . 0");
                prop_assert!(!contents.elements.values().any(to_nowhere), "{}", script);
                prop_assert_eq!(&listed, &seen, "{}", script);
            }
            Ok(())
        })?;
    }
}

#[test]
fn a_service_that_is_refused_is_found_among_many() {
    let service = |number: u8| (Name::from("ns"), Name::from(format!("web-{number}")));
    let bad = [17, 118].map(service);
    let frontends = (0..200).map(|number: u8| {
        let key = Key {
            protocol: Protocol::Tcp,
            address: [10, 96, 0, number].into(),
            port: 80,
        };
        let service = service(number);
        // As nothing from the API comes here: of the other family.
        let end = if bad.contains(&service) {
            "[fd00::1]:80"
        } else {
            "10.0.0.1:80"
        };
        let frontend = Frontend {
            service,
            endpoints: vec![end.parse().unwrap()],
            ..Frontend::default()
        };
        (key, frontend)
    });
    let frontends = Frontends {
        by_key: frontends.collect(),
        ..Frontends::default()
    };
    on_own_host(async || {
        let found = refused::find(&frontends, &with_pods()).await;
        let found = found.unwrap();
        assert_eq!(found.keys().cloned().collect::<BTreeSet<_>>(), bad.into());
        let said = found.values().next().unwrap();
        assert!(said.contains("fd00::1"), "{said}");
        assert_eq!(nft::tables().await.unwrap(), BTreeSet::new());
        let others = frontends.only(|frontend| !found.contains_key(&frontend.service));
        assert!(
            refused::find(&others, &with_pods())
                .await
                .unwrap()
                .is_empty()
        );
    });
}

/// What a restarted `run` finds: all of it is podwire's, or somebody has changed what names and
/// comments don't tell.
#[test]
fn a_table_that_was_changed_while_nobody_watched_is_written_anew() {
    let cluster = cluster(
        Service {
            affinity: Some(60),
            ..Service::default()
        },
        &[("10.244.1.5", "node-a"), ("10.244.2.5", "node-b")],
    );
    let changes = [
        "flush chain inet podwire-services rejected\n\
         add rule inet podwire-services rejected accept comment \"MARK\"",
        "add chain inet podwire-services prerouting { policy drop; }",
        "add table inet podwire-services { flags dormant; }",
    ];
    on_own_host(async || {
        let start = async || Services::default().update(&cluster, &here()).await.unwrap();
        let list = async || nft::list(NAME).await.unwrap().unwrap();
        assert_eq!(start().await, Updated::Changed);
        let written = list().await;
        assert_eq!(start().await, Updated::Nothing);
        assert_eq!(list().await, written);
        let mut rules = nft::objects(&written).filter_map(|object| object.get("rule"));
        let rejected = rules.find(|rule| rule["chain"] == "rejected").unwrap();
        let mark = rejected["comment"].as_str().unwrap();
        for change in changes {
            nft::run("a change", &change.replace("MARK", mark))
                .await
                .unwrap();
            assert_eq!(start().await, Updated::Changed, "{change}");
            assert_eq!(start().await, Updated::Nothing, "{change}");
            let lasting = |listed: &Value| -> Vec<_> {
                nft::objects(listed).filter_map(nft::lasting).collect()
            };
            assert_eq!(lasting(&list().await), lasting(&written), "{change}");
        }
        assert_eq!(nft::tables().await.unwrap(), [NAME.to_owned()].into());
    });
}
