//! `podwire-controller network`.

use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::Central;
use serde_json::{Value, json};

use crate::fixture::{Running, await_row, flags, pod_of, populate};
use crate::networks::ASKED;

/// Runs a command; its exit code, and what it says.
fn network(central: &Central, server: &ApiServer, line: &str) -> (Option<i32>, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_podwire-controller"));
    command
        .args(flags(central, server))
        .arg("network")
        .args(line.split(' '));
    let output = command.output().unwrap();
    let text = match output.status.success() {
        true => output.stdout,
        false => output.stderr,
    };
    (output.status.code(), String::from_utf8(text).unwrap())
}

fn config(server: &ApiServer, name: &str) -> Value {
    let object = server
        .object("NetworkAttachmentDefinition", "shop", name)
        .unwrap();
    serde_json::from_str(object["spec"]["config"].as_str().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn networks_are_made_shown_changed_and_removed_with_their_refusals() {
    let (central, server) = (Central::start(), ApiServer::start());
    populate(&server);
    let mut controller = Running::start(&central, &server, &[]);
    controller.idle().await;
    let run = |line: &str| network(&central, &server, line);

    let made = "create shop/blue --subnets 10.1.0.0/24 --exclude 10.1.0.0/30 --mtu 1300";
    assert_eq!(
        run(made),
        (
            Some(0),
            "created shop/blue of network shop-blue\n".to_owned()
        )
    );
    let switch = "shop.blue_ovn_layer2_switch";
    await_row(&central, "Logical_Switch", switch, true);
    let (code, text) = run(made);
    assert!(code == Some(1) && text.contains("already exists"), "{text}");
    // Another definition of a known network must say the same of it.
    let (code, text) = run("create shop/more --network shop-blue --subnets 10.2.0.0/24");
    let why = "network shop-blue exists with other excludeSubnets, mtu, subnets";
    assert!(code == Some(1) && text.contains(why), "{text}");
    for (line, field) in [
        (
            "create shop/bad --subnets 10.1.0.1/24",
            "subnets of its spec.config: 10.1.0.1/24 has bits",
        ),
        (
            "create shop/bad --vlan 7",
            "vlanID of its spec.config: only a network of the topology",
        ),
        (
            "create shop/bad --mtu 100",
            "mtu of its spec.config: 100 is no number from 576",
        ),
    ] {
        let (code, text) = run(line);
        assert!(code == Some(1) && text.contains(field), "{line}: {text}");
    }
    assert_eq!(
        server.object("NetworkAttachmentDefinition", "shop", "bad"),
        None
    );

    let mut pod = pod_of("node-a", "asking");
    pod["metadata"]["annotations"][ASKED] = "shop/blue".into();
    server.apply(pod);
    let port = "shop.blue_default_asking";
    await_row(&central, "Logical_Switch_Port", port, true);
    let (code, text) = run("get shop-blue");
    assert_eq!(code, Some(0), "{text}");
    for line in [
        "topology    layer2\n",
        "excluded    10.1.0.0/30\n",
        "definition  shop/blue\n",
        &format!(
            "attachment  default/asking as shop/blue: Logical_Switch_Port {port} on {switch}: "
        ),
    ] {
        assert!(text.contains(line), "{line} in {text}");
    }
    let (_, listed) = run("list -o json");
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed[0]["network"], "shop-blue");
    assert_eq!(listed[0]["attachments"].as_array().unwrap().len(), 1);

    let (code, text) = run("update shop/blue --subnets 10.9.0.0/24 --exclude 10.9.0.0/30");
    let why = "subnets of network shop-blue can't change while pods are on it: default/asking";
    assert!(code == Some(1) && text.contains(why), "{text}");
    assert_eq!(config(&server, "blue")["subnets"], "10.1.0.0/24");
    assert_eq!(run("update shop/blue --mtu 1200").0, Some(0));
    assert_eq!(config(&server, "blue")["mtu"], json!(1200));
    assert_eq!(config(&server, "blue")["excludeSubnets"], "10.1.0.0/30");
    let (code, text) = run("delete shop/blue");
    assert!(code == Some(1) && text.contains("default/asking"), "{text}");
    server.delete("default", "asking");
    await_row(&central, "Logical_Switch_Port", port, false);
    assert_eq!(
        run("delete shop/blue"),
        (Some(0), "deleted shop/blue\n".to_owned())
    );
    await_row(&central, "Logical_Switch", switch, false);
    let (code, text) = run("get shop-blue");
    assert!(
        code == Some(1) && text.contains("there is no network shop-blue"),
        "{text}"
    );
    controller.stop().await.unwrap();
}
