//! What `podwire-controller policy` and the log of ACLs say of policies of the cluster.

use std::net::SocketAddr;

use podwire_controller::key::{Key, Of};
use podwire_controller::want::policy::{tiered_group, tiered_pods_group};
use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, populate};
use crate::logging::await_line;
use crate::packets::{Named, Network};
use crate::policies::{TESTS, connects, labelled as app, namespace, policy};
use crate::policy_command::{dry_run, labelled};
use crate::tools::ask;

use super::{has_tiers, of_cluster};

/// Denies pods of web what comes from front by one port, and passes on the rest.
fn guard() -> Value {
    let pods =
        |name: &str| json!({ "pods": { "namespaceSelector": {}, "podSelector": app(name) } });
    of_cluster(
        "guard",
        &json!({ "subject": pods("web"), "ingress": [
            {
                "name": "no-front", "action": "Deny", "from": [pods("front")],
                "protocols": [{ "destinationNamedPort": "web" }],
            },
            { "action": "Pass", "from": [{ "namespaces": {} }] },
        ] }),
    )
}

/// With a pod of web and one of front.
async fn populated() -> (Central, ApiServer, bool) {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(namespace("default", json!({})));
    server.apply(labelled("node-a", "web", "web"));
    server.apply(labelled("node-b", "front", "front"));
    let has_tiers = has_tiers(&central).await;
    (central, server, has_tiers)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_shown_with_its_place_rules_and_rows() {
    let (central, server, has_tiers) = populated().await;
    server.apply(guard());
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let (is_well, text) = ask(&central, &server, &["policy", "clusternetworkpolicy/guard"]);
    assert_eq!(is_well, has_tiers, "{text}");
    for part in [
        "policy     ClusterNetworkPolicy/guard\n",
        "place      tier Admin, priority 10\n",
        "selects    1 pod: default/web (pods app=web of namespaces ",
        "ingress 0  Deny (no-front)\n",
        "from pods app=front of namespaces ",
        "1 pod: default/front\n",
        "ports \"web\"/TCP: 8443 of 1 pod: default/web\n",
        "ingress 1  Pass\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let unknown = ["policy", "AdminNetworkPolicy/guard"];
    let (is_there, told) = ask(&central, &server, &unknown);
    let none = "there is no AdminNetworkPolicy guard";
    assert!(!is_there && told.contains(none), "{told}");
    if !has_tiers {
        let mistake = "mistake    it is not applied, not in part either: it needs OVN 23.06";
        return assert!(text.contains(mistake), "{text}");
    }
    let group = tiered_group(
        &Key::named(Of::ClusterPolicy, "guard".into()),
        "uid-of-ClusterNetworkPolicy-guard",
    );
    let all = tiered_pods_group();
    for part in [
        &format!("row        Port_Group {group} (selected pods): 1 member, in sync\n"),
        &format!(
            "row        Port_Group {all} (pods of all policies of the whole cluster): 1 member, in \
             sync\n"
        ),
        "row        ACL CNP:guard:Ingress:0 (32516 drop: ",
        "row        ACL CNP:guard:Ingress:1 (32515 pass: ",
        "state      in sync: ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }

    // What it needs and is not its own is looked at, too.
    central.nbctl(format!("clear port_group {all} ports"));
    let (is_well, text) = ask(&central, &server, &["policy", "ClusterNetworkPolicy/guard"]);
    assert!(
        !is_well && text.contains("1 missing (default_web)"),
        "{text}"
    );

    let mut wrong = guard();
    wrong["spec"]["priority"] = 1001.into();
    server.apply(wrong);
    let (is_well, text) = ask(&central, &server, &["policy", "ClusterNetworkPolicy/guard"]);
    let mistake =
        "mistake    spec.priority: 1001 is not between 0 and 1000; nothing of it is applied";
    assert!(!is_well && text.contains(mistake), "{text}");
    // Its rows are still there.
    assert!(text.contains("that should not be there"), "{text}");
}

const FILE: &str = "
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: { name: guard }
spec:
  tier: Admin
  priority: 10
  subject: { pods: { namespaceSelector: {}, podSelector: { matchLabels: { app: web } } } }
  ingress:
    - action: Accept
      from: [{ namespaces: {} }]
      protocols: [{ tcp: { destinationPort: { number: 80 } } }]
    - { action: Deny, from: [{ namespaces: {} }] }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_a_policy_would_cut_and_open() {
    let (central, server, has_tiers) = populated().await;
    let deny = json!({ "podSelector": app("web"), "ingress": [{ "ports": [{ "port": 443 }] }] });
    server.apply(policy("default", "np", deny));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let (code, text) = dry_run(&central, &server, FILE, &[]);
    if !has_tiers {
        let old = "ClusterNetworkPolicy/guard: it is not applied, not in part either";
        return assert!(code == 1 && text.contains(old), "{text}");
    }
    let from = "from 1 pod of default; 1 pod of default (app=front)";
    let opened = format!(
        "\
policy     ClusterNetworkPolicy/guard: new, selects 1 living pod
cut        TCP 443
           {from}
           to   1 pod of default (app=web)
           by   ingress of namespace default: denied by rule 1 of ClusterNetworkPolicy guard (tier \
           Admin)
opened     TCP 80
           {from}
           to   1 pod of default (app=web)
           by   ingress of namespace default: allowed by rule 0 of ClusterNetworkPolicy guard \
           (tier Admin)
result     1 cut, 1 opened
"
    );
    let opened = opened.replace("(tier            Admin)", "(tier Admin)");
    assert!(code == 1 && text == opened, "{code} {text}");

    // The last tier decides only what no NetworkPolicy does.
    let last = FILE.replace("tier: Admin", "tier: Baseline");
    let (code, text) = dry_run(&central, &server, &last, &[]);
    let nothing = "no connection of a living pod changes";
    assert!(code == 0 && text.contains(nothing), "{code} {text}");
    for (wrong, by, told) in [
        ("Admin", "Middle", "guard: spec.tier: \"Middle\" is neither"),
        (
            "priority",
            "rank",
            "guard: spec.rank: there is no such field",
        ),
        (
            "v1alpha2",
            "v1alpha1",
            "apiVersion: \"policy.networking.k8s.io/v1alpha1\" is not ",
        ),
        (
            "number: 80",
            "number: 0",
            "spec.ingress[0].protocols[0].tcp.destinationPort.number: 0 ",
        ),
    ] {
        let (code, text) = dry_run(&central, &server, &FILE.replace(wrong, by), &[]);
        assert!(code == 1 && text.contains(told), "{told} is not in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_policy_wants_logged_is_logged_with_its_name() {
    let (network, mut controller) = Network::start(&[]);
    if !has_tiers(&network.central).await {
        return controller.stop().await.unwrap();
    }
    let agents = network.start_agents();
    let server = &network.server;
    server.apply(namespace(TESTS, json!({})));
    let (web, address) = network.labelled_pod(0, "web", "web");
    let (front, _) = network.labelled_pod(1, "front", "front");
    let (other, _) = network.labelled_pod(1, "other", "other");
    let named = Named::start(web.place(), address, "web");
    let to_web = SocketAddr::new(address, 8080);
    let logging = |value: &Value| {
        let mut object = guard();
        object["metadata"]["annotations"] = json!({ "k8s.ovn.org/acl-logging": value.to_string() });
        object
    };
    server.apply(logging(&json!({ "deny": "alert", "pass": "info" })));
    await_row(&network.central, "Meter", "acl-logging", true);
    let denied = [
        "name=\"CNP:guard:Ingress:0\"",
        "verdict=drop",
        "severity=alert",
    ];
    await_line(&network.nodes[0], &denied, || {
        connects(front.place(), to_web);
    });
    let passed = [
        "name=\"CNP:guard:Ingress:1\"",
        "verdict=pass",
        "severity=info",
    ];
    await_line(&network.nodes[0], &passed, || {
        connects(other.place(), to_web);
    });

    // The meter comes back. What can't be read is told, and the rest is logged.
    network.central.nbctl("meter-del acl-logging");
    await_row(&network.central, "Meter", "acl-logging", true);
    server.apply(logging(&json!({ "deny": "loud", "pass": "debug" })));
    let is_told = |it: &Value| it["reason"] == "LoggingMistake";
    let events = server.await_events("the mistake", |events| events.iter().any(is_told));
    let event = events.iter().find(|it| is_told(it)).unwrap();
    assert_eq!(event["involvedObject"]["kind"], "ClusterNetworkPolicy");
    let message = event["message"].as_str().unwrap();
    assert!(
        message.contains("acl-logging].deny: \"loud\" is none of alert"),
        "{message}"
    );
    controller.idle().await;
    let rows = network.central.northbound().rows("ACL").unwrap();
    let severities = rows.iter().filter(|row| row["log"] == true);
    let severities: Vec<_> = severities.map(|row| &row["severity"]).collect();
    assert!(
        !severities.is_empty() && severities.iter().all(|it| **it == "debug"),
        "{rows:?}"
    );
    drop((named, agents));
    controller.stop().await.unwrap();
}
