//! Every CNI version, each in its own form; and both names of the plugin.

use std::path::PathBuf;

use podwire_tests::annotation::{ipv4, ipv6};
use podwire_tests::{AgentOptions, Pod, TestNode, conf, conf_of_version, plugin_binary};
use serde_json::{Value, json};

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

fn interface_inside<'a>(result: &'a Value, pod: &Pod<'_>) -> &'a Value {
    result["interfaces"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["sandbox"] == pod.netns.as_str())
        .unwrap()
}

#[test]
fn each_version_gets_the_result_in_its_own_form() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    for version in VERSIONS {
        let pod = node.numbered_pod(11);
        let result = pod.exec("ADD", &conf_of_version(version)).success();
        assert_eq!(result["cniVersion"], version);
        let family = |address: &str| {
            let ips = result["ips"].as_array().unwrap();
            let ip = ips
                .iter()
                .find(|ip| ip["address"].as_str().unwrap().starts_with(address))
                .unwrap();
            ip["version"].clone()
        };
        // `ips[].version` went with 1.0.0, `interfaces[].mtu` came with 1.1.0.
        let (four, six) = if version.starts_with('0') {
            (json!("4"), json!("6"))
        } else {
            (Value::Null, Value::Null)
        };
        assert_eq!(
            (family(&ipv4(11)), family(&ipv6(11))),
            (four, six),
            "{version}"
        );
        let mtu = if version == "1.1.0" {
            json!(1500)
        } else {
            Value::Null
        };
        assert_eq!(interface_inside(&result, &pod)["mtu"], mtu, "{version}");
        pod.exec("DEL", &conf_of_version(version)).success();
    }
    node.leftovers().assert_none();
}

#[test]
fn prev_result_is_merged_in_every_version() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    for version in VERSIONS {
        let pod = node.numbered_pod(11);
        let mut first = json!({"address": "203.0.113.9/24", "interface": 0});
        if version.starts_with('0') {
            first["version"] = json!("4");
        }
        let mut conf = conf_of_version(version);
        conf["prevResult"] = json!({
            "cniVersion": version,
            "interfaces": [{"name": "earlier0", "mac": "02:00:00:00:00:01", "sandbox": pod.netns}],
            "ips": [first],
            "routes": [{"dst": "198.51.100.0/24"}],
            "dns": {"nameservers": ["203.0.113.53"], "search": ["example.org"]},
        });
        let result = pod.exec("ADD", &conf).success();
        let named = |ip: &Value| {
            let index = usize::try_from(ip["interface"].as_u64().unwrap()).unwrap();
            result["interfaces"][index]["name"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let ips = result["ips"].as_array().unwrap();
        let of = |address: &str| {
            ips.iter()
                .find(|ip| ip["address"].as_str().unwrap().starts_with(address))
                .unwrap()
        };
        assert_eq!(named(of("203.0.113.9")), "earlier0", "{version}");
        assert_eq!(named(of(&ipv4(11))), "eth0", "{version}");
        assert!(
            result["routes"]
                .as_array()
                .unwrap()
                .iter()
                .any(|it| it["dst"] == "198.51.100.0/24"),
            "{version}"
        );
        assert_eq!(
            result["dns"]["nameservers"],
            json!(["203.0.113.53"]),
            "{version}"
        );
        pod.exec("DEL", &conf_of_version(version)).success();
    }
}

#[test]
fn check_gc_and_status_are_refused_to_versions_that_lack_them() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web");
    for (command, versions) in [
        ("CHECK", &VERSIONS[..2]),
        ("GC", &VERSIONS[..4]),
        ("STATUS", &VERSIONS[..4]),
    ] {
        for version in versions {
            let error = pod.exec(command, &conf_of_version(version)).error();
            let seen = (error.code, error.cni_version.as_str());
            assert_eq!(seen, (1, *version), "{command}: {error:?}");
        }
    }
}

/// Of each verb: what the plugin refuses by itself, what the agent refuses, and an operation that
/// fails.
#[test]
fn every_error_is_in_the_configurations_version() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let pod = node.pod("web");
    let long = "A".repeat(100_000);
    let long_args = [("CNI_ARGS", Some(long.as_str()))];
    let no_netns = [("CNI_NETNS", Some("/run/netns/none"))];
    let mut in_another = Vec::new();
    for version in VERSIONS {
        let conf = conf_of_version(version);
        let mut wrong = conf.clone();
        wrong["mtu"] = json!("large");
        let mut refused = |command: &str, conf: &Value, changes: &[(&str, Option<&str>)]| {
            let run = pod.exec_with(command, conf.to_string().as_bytes(), changes);
            let error = run.error();
            if error.cni_version != version {
                in_another.push(format!("{command} of {version}: {error:?}"));
            }
        };
        for command in ["ADD", "DEL", "CHECK", "GC", "STATUS"] {
            refused(command, &conf, &long_args);
        }
        // A DEL is carried out all the same.
        for command in ["ADD", "CHECK", "GC", "STATUS"] {
            refused(command, &wrong, &[]);
        }
        refused("ADD", &conf, &no_netns);
        refused("CHECK", &conf, &[]);
    }
    assert!(in_another.is_empty(), "{}", in_another.join("\n"));
}

#[test]
fn version_needs_neither_agent_nor_stdin_nor_variables() {
    let node = TestNode::new();
    let pod = node.pod("web");
    let dummies = [
        ("CNI_CONTAINERID", None),
        ("CNI_NETNS", None),
        ("CNI_IFNAME", None),
        ("CNI_PATH", None),
    ];
    for stdin in ["", r#"{"cniVersion": "1.0.0"}"#, "dummy"] {
        let answer = pod
            .exec_with("VERSION", stdin.as_bytes(), &dummies)
            .success();
        assert_eq!(answer["supportedVersions"], json!(VERSIONS), "{stdin:?}");
    }
}

#[test]
fn an_attachment_made_under_one_name_is_checked_and_deleted_under_the_other() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::for_numbered_pods());
    let new = plugin_binary();
    let old = PathBuf::from("/run/ovn-k8s-cni-overlay");
    std::fs::copy(&new, node.path("/run/ovn-k8s-cni-overlay")).unwrap();
    for (add, del) in [(&old, &new), (&new, &old)] {
        let pod = node.numbered_pod(11);
        let mut conf = conf();
        conf["type"] = json!("ovn-k8s-cni-overlay");
        conf["runtimeConfig"] = json!({"io.kubernetes.cri.pod-annotations": pod.annotations});
        let result = pod
            .exec_binary(add, "ADD", conf.to_string().as_bytes(), &[])
            .success();
        conf["type"] = json!("podwire-cni");
        conf["prevResult"] = result;
        for command in ["CHECK", "DEL"] {
            pod.exec_binary(del, command, conf.to_string().as_bytes(), &[])
                .success();
        }
    }
    node.leftovers().assert_none();
}
