//! `podwire-controller policy`.

use std::process::Command;

use podwire_controller::cluster::policy::Direction;
use podwire_controller::want::policy::{isolated_group, policy_group};
use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use podwire_tests::schema::assert_valid;
use serde_json::{Value, json};

use crate::fixture::{Running, flags, pod_of, populate};
use crate::policies::policy;
use crate::tools::ask;

/// A policy that selects one of three pods, and allows some of all kinds of peers and ports.
fn allow() -> Value {
    let ports = json!([
        { "port": 80 }, { "port": 8080, "endPort": 8090 }, { "port": "web" },
    ]);
    let front = json!({ "podSelector": { "matchLabels": { "app": "front" } } });
    let block = json!({ "ipBlock": { "cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"] } });
    policy(
        "default",
        "allow",
        json!({
            "podSelector": { "matchLabels": { "app": "web" } },
            "ingress": [{ "from": [front, block], "ports": ports }],
        }),
    )
}

pub(crate) fn labelled(node: &str, name: &str, app: &str) -> Value {
    let mut pod = pod_of(node, name);
    pod["metadata"]["labels"] = json!({ "app": app });
    pod["spec"]["containers"][0]["ports"] = json!([{ "name": "web", "containerPort": 8443 }]);
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn a_policy_is_shown_with_pods_rules_and_rows() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(labelled("node-a", "web", "web"));
    server.apply(labelled("node-b", "front", "front"));
    server.apply(allow());
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let show = |more: &[&str]| {
        let command = ["policy", "default/allow"];
        ask(&central, &server, &[&command[..], more].concat())
    };
    let (is_well, text) = show(&[]);
    assert!(is_well, "{text}");
    let own = policy_group("default", "allow", "uid-of-allow");
    let isolated = isolated_group("default", Direction::Ingress);
    for part in [
        "policy     default/allow\n",
        "selects    1 pod: default/web (app=web)\n",
        "isolates   Ingress\n",
        "from pods app=front of namespace default: 1 pod: default/front\n",
        "from 10.0.0.0/8 except 10.1.0.0/16: 8 networks\n",
        "ports 8080-8090/TCP\n",
        "ports \"web\"/TCP: 8443 of 1 pod: default/web\n",
        &format!("row        Port_Group {own} (selected pods): 1 member, in sync\n"),
        &format!(
            "row        Port_Group {isolated} (the namespace's pods isolated for Ingress): 1 \
             member, in sync\n"
        ),
        "row        ACL NP:default:allow:Ingress:0 (1001 allow-related: ",
        "state      in sync: ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let (_, text) = show(&["-o", "json"]);
    let shown: Value = serde_json::from_str(&text).unwrap();
    assert_valid("controllerPolicy", &shown);
    assert_eq!(shown["isInSync"], true);
    assert_eq!(
        shown["selects"],
        json!({ "count": 1, "names": ["default/web"] })
    );
    let peers = &shown["rules"][0]["peers"];
    assert_eq!(peers[0]["pods"]["names"], json!(["default/front"]));
    assert_eq!(peers[1]["networks"].as_array().map(Vec::len), Some(8));
    let (_, text) = show(&["-o", "yaml"]);
    let yaml: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(yaml, shown);

    // Members, content and rows that others changed.
    central.nbctl(format!("clear port_group {own} ports"));
    let (is_well, text) = show(&[]);
    let missing = format!(
        "Port_Group {own} (selected pods): 1 member, 1 missing (default_web), in sync but for its \
         members\n"
    );
    assert!(!is_well && text.contains(&missing), "{text}");
    central.nbctl(format!("clear port_group {isolated} acls"));
    let (_, text) = show(&[]);
    let drop = format!("ACL NP:default:Ingress (1000 drop: outport == @{isolated}): missing\n");
    assert!(
        text.contains(&drop) && text.contains("not in sync"),
        "{text}"
    );
    let owner = "external_ids:podwire.io/owner=other external_ids:podwire.io/key=other";
    central.nbctl(format!("set port_group {own} {owner}"));
    let (_, text) = show(&[]);
    assert!(
        text.contains("foreign: it belongs to somebody else"),
        "{text}"
    );

    let mut wrong = allow();
    wrong["spec"]["ingress"][0]["ports"][0]["port"] = 0.into();
    server.apply(wrong);
    let (is_well, text) = show(&[]);
    let mistake = "mistake    spec.ingress[0].ports[0]: port: 0 is not between 1 and 65535";
    assert!(!is_well && text.contains(mistake), "{text}");
    let (is_well, text) = ask(&central, &server, &["policy", "default/none"]);
    assert!(
        !is_well && text.contains("there is no NetworkPolicy default/none"),
        "{text}"
    );
    let (is_well, text) = ask(&central, &server, &["policy", "none"]);
    assert!(
        !is_well && text.contains("write NAMESPACE/NAME, or ClusterNetworkPolicy/NAME"),
        "{text}"
    );
}

/// What a dry run of a file says: its exit code, and its output.
pub(crate) fn dry_run(
    central: &Central,
    server: &ApiServer,
    file: &str,
    more: &[&str],
) -> (i32, String) {
    let path = std::env::temp_dir().join(format!("policies-{}.yaml", std::process::id()));
    std::fs::write(&path, file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
    command
        .args(flags(central, server))
        .args(["policy", "--dry-run", "-f"]);
    let output = command.arg(&path).args(more).output().unwrap();
    std::fs::remove_file(&path).unwrap();
    let text = match output.stdout.is_empty() {
        true => output.stderr,
        false => output.stdout,
    };
    (
        output.status.code().unwrap(),
        String::from_utf8(text).unwrap(),
    )
}

const DENY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { namespace: default, name: deny }
spec: { podSelector: { matchLabels: { app: web } }, policyTypes: [Ingress] }
";
const FRONT: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { namespace: default, name: front }
spec:
  podSelector: { matchLabels: { app: web } }
  ingress:
    - from: [{ podSelector: { matchLabels: { app: front } } }]
      ports: [{ port: web }, { port: 9000, endPort: 9100 }]
    - from: [{ ipBlock: { cidr: 192.0.2.0/24 } }]
";

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_says_what_policies_would_cut_and_open_and_writes_nothing() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    server.apply(labelled("node-a", "web", "web"));
    server.apply(labelled("node-a", "front", "front"));
    server.apply(labelled("node-b", "front-2", "front"));
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    controller.stop().await.unwrap();
    let writes = || {
        server
            .requests()
            .iter()
            .filter(|it| it.method != "GET")
            .count()
    };
    let before = (writes(), central.northbound().rows("ACL").unwrap());
    let (code, text) = dry_run(&central, &server, DENY, &[]);
    let expected = "\
policy     default/deny: new, selects 1 living pod
cut        all protocols and ports
           from 1 pod of default; 2 pods of default (app=front); nodes (2 management ports of \
           other nodes than the pod's); outside (the rest of IPv4)
           to   1 pod of default (app=web)
           by   ingress of namespace default: denied: no rule of deny allows it
";
    assert!(code == 1 && text.contains(expected), "{code} {text}");

    // One that is there, and one that opens what it closes.
    server.apply(serde_saphyr::from_str(DENY).unwrap());
    let both = format!("{DENY}---{FRONT}");
    let (code, text) = dry_run(&central, &server, &both, &[]);
    let expected = "\
policy     default/deny: changed, selects 1 living pod
policy     default/front: new, selects 1 living pod
opened     TCP 8443, TCP 9000-9100
           from 2 pods of default (app=front)
           to   1 pod of default (app=web)
           by   ingress of namespace default: allowed by rule 0 of policy front
";
    assert!(code == 0 && text.contains(expected), "{code} {text}");
    let expected = "\
opened     all protocols and ports
           from nodes";
    assert!(!text.contains(expected), "{text}");
    assert!(text.contains("from outside (192.0.2.0/24)\n"), "{text}");
    let (_, text) = dry_run(&central, &server, &both, &["-o", "json"]);
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_valid("controllerPolicyDryRun", &report);
    let effects: Vec<&Value> = report["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["effect"])
        .collect();
    assert!(effects.iter().all(|it| **it == "opened"), "{text}");
    assert_eq!(report["leftOut"], 0);
    let (code, text) = dry_run(&central, &server, DENY, &[]);
    assert!(
        code == 0 && text.contains("no connection of a living pod changes"),
        "{text}"
    );
    server.delete_object("NetworkPolicy", "default", "deny");

    for (file, expected) in [
        (
            DENY.replace("NetworkPolicy", "Pod"),
            "document 1: kind: \"Pod\" is none of NetworkPolicy, ClusterNetworkPolicy, ",
        ),
        (
            DENY.replace("namespace: default, ", ""),
            "document 1: metadata.namespace: it is missing",
        ),
        (
            DENY.replace("policyTypes", "types"),
            "default/deny: spec.types: there is no such field",
        ),
        (
            FRONT.replace("endPort", "lastPort"),
            "default/front: spec.ingress[0].ports[1].lastPort: there is no such field",
        ),
        (
            FRONT.replace(
                "podSelector: { matchLabels: { app: front }",
                "podSelector: { labels: { app: front }",
            ),
            "default/front: spec.ingress[0].from[0].podSelector.labels: there is no such field",
        ),
        (
            DENY.replace("[Ingress]", "[In]"),
            "default/deny: spec.policyTypes: \"In\" is neither of",
        ),
        (
            FRONT.replace("192.0.2.0/24", "192.0.2.0/33"),
            "default/front: spec.ingress[1].from[0]: ipBlock: \"192.0.2.0/33\"",
        ),
        ("{".to_owned(), "no YAML or JSON"),
        (String::new(), "it has no policy"),
    ] {
        let (code, text) = dry_run(&central, &server, &file, &[]);
        assert!(
            code == 2 && text.contains(expected),
            "{expected} is not in {text}"
        );
    }
    assert_eq!(
        (writes(), central.northbound().rows("ACL").unwrap()),
        before
    );
}
