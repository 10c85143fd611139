//! The Helm chart, by helm itself, where `make chart` has made it and fetched helm; without these
//! this does nothing.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use podwire_tests::TestNode;
use podwire_tests::kubernetes::Kubernetes;
use podwire_tests::process::{Finished, finish};
use serde_json::Value;

use super::render::{manifests, parsed, render, whole};
use super::served::for_release;

const LIMIT: Duration = Duration::from_secs(120);
const SERVER: &str = "apiServer.host=192.0.2.1";
const THREE: &str = "members={192.0.2.1,192.0.2.2,192.0.2.3}";
const ONE: &str = "members={192.0.2.1}";

struct Chart {
    helm: PathBuf,
    chart: PathBuf,
    /// Where helm keeps its own files.
    home: tempfile::TempDir,
}

impl Chart {
    fn find() -> Option<Self> {
        let target = manifests().join("../../target");
        let helm = target.join("tools/helm");
        let version = env!("CARGO_PKG_VERSION");
        let chart = target.join(format!("chart/podwire-{version}.tgz"));
        if !helm.exists() || !chart.exists() {
            eprintln!("not run: there is no chart; `make chart` makes it");
            return None;
        }
        let home = tempfile::tempdir().unwrap();
        Some(Self { helm, chart, home })
    }

    /// `helm VERB podwire CHART` with values.
    fn command(&self, verb: &str, values: &[&str]) -> Command {
        let mut command = self.helm([verb, "podwire"]);
        command.arg(&self.chart);
        command.args(values.iter().flat_map(|value| ["--set", value]));
        command
    }

    fn helm<const N: usize>(&self, words: [&str; N]) -> Command {
        let mut command = Command::new(&self.helm);
        command.args(words).args(["--namespace", "podwire-system"]);
        for variable in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
            command.env(variable, self.home.path());
        }
        command
    }

    #[track_caller]
    fn template(&self, values: &[&str]) -> Finished {
        finish(self.command("template", values), b"", LIMIT).unwrap()
    }
}

type Objects = BTreeMap<(String, String), Value>;

/// By kind and name, without what the namespace's own kustomization has. A component moves the
/// containers that it patches to the front.
fn by_name(objects: impl IntoIterator<Item = Value>) -> Objects {
    let named = objects.into_iter().map(|mut object| {
        let containers = object.pointer_mut("/spec/template/spec/containers");
        if let Some(Value::Array(containers)) = containers {
            containers.sort_by_key(|it| it["name"].to_string());
        }
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let place = (text(&object["kind"]), text(&object["metadata"]["name"]));
        (place, object)
    });
    let is_own = |(kind, name): &(String, String)| kind != "Namespace" && name != "podwire-nobody";
    named.filter(|(place, _)| is_own(place)).collect()
}

#[track_caller]
fn rendered(chart: &Chart, values: &[&str]) -> Objects {
    let text = chart.template(values).success("helm template");
    let text = text.strip_prefix("---\n").unwrap();
    by_name(parsed(text, &chart.chart))
}

#[test]
fn the_chart_has_the_objects_of_the_kustomizations_whatever_is_chosen() {
    let Some(chart) = Chart::find() else {
        return;
    };
    let mut sets = Vec::new();
    for (overlay, members) in [("ovn", THREE), ("ovn-one", ONE)] {
        for (families, of_families) in [("both", ""), ("ipv4", "+ipv4"), ("ipv6", "+ipv6")] {
            for (large, of_large) in [("false", ""), ("true", "+large")] {
                for (gateway, of_gateway) in [("routed", ""), ("shared", "+shared-gateway")] {
                    let values = [
                        format!("network={overlay},families={families}"),
                        format!("large={large},gateway={gateway}"),
                        members.to_owned(),
                        SERVER.to_owned(),
                    ];
                    let set = whole(&format!("{overlay}{of_families}{of_large}{of_gateway}"));
                    sets.push((values.to_vec(), set));
                }
            }
        }
    }
    sets.push((vec!["network=plain".to_owned()], whole("plain")));
    let deploy = manifests().join("..");
    for (network, members, base) in [
        ("ovn", THREE, "cluster/base"),
        ("plain", "members={}", "kubernetes/overlays/plain"),
    ] {
        let mut values = vec![format!("network={network},openvswitch=false")];
        if network == "ovn" {
            values.extend([members.to_owned(), SERVER.to_owned()]);
        }
        sets.push((values, render(&deploy.join(base))));
    }
    for (values, set) in sets {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        let (mut made, expected) = (rendered(&chart, &values), by_name(set));
        for (place, object) in expected {
            assert_eq!(made.remove(&place), Some(object), "{values:?}: {place:?}");
        }
        assert_eq!(made, Objects::new(), "{values:?}");
    }
}

#[test]
fn values_change_settings_resources_and_images_of_the_parts_that_they_name() {
    let Some(chart) = Chart::find() else {
        return;
    };
    let objects = rendered(
        &chart,
        &[
            THREE,
            SERVER,
            "apiServer.port=8443",
            "config.podwire-node.PODWIRE_LOG=debug",
            "resources.podwire-ovn-southbound.northd.requests.memory=1Gi",
            "images.podwire=registry.example:5000/podwire:1",
            "imagePullSecrets[0].name=pull",
        ],
    );
    let object = |kind: &str, name: &str| &objects[&(kind.to_owned(), name.to_owned())];
    let cluster = object("ConfigMap", "podwire-cluster");
    assert_eq!(cluster["data"]["KUBERNETES_SERVICE_PORT"], "8443");
    let node = object("ConfigMap", "podwire-node");
    assert_eq!(node["data"]["PODWIRE_LOG"], "debug");
    assert_eq!(node["data"]["PODWIRE_MODE"], "ovn");
    let pod = |kind, name| &object(kind, name)["spec"]["template"]["spec"];
    let southbound = pod("StatefulSet", "podwire-ovn-southbound");
    let northd = southbound["containers"].as_array().unwrap().iter();
    let requests = northd
        .filter(|it| it["name"] == "northd")
        .map(|it| &it["resources"]["requests"]);
    let requests: Vec<_> = requests.collect();
    assert_eq!(requests[0]["memory"], "1Gi");
    assert!(requests[0]["cpu"].is_string());
    let agent = pod("DaemonSet", "podwire");
    for container in ["initContainers", "containers"] {
        assert_eq!(
            agent[container][0]["image"],
            "registry.example:5000/podwire:1"
        );
    }
    assert_eq!(agent["imagePullSecrets"][0]["name"], "pull");
    let controller = pod("Deployment", "podwire-controller");
    let image = controller["containers"][0]["image"].as_str().unwrap();
    assert!(image.contains("/podwire-controller:"), "{image}");
}

#[test]
fn mistakes_in_values_are_refused_by_the_name_of_the_field() {
    let Some(chart) = Chart::find() else {
        return;
    };
    for (values, expected) in [
        (&["network=calico"][..], "network"),
        (
            &[SERVER],
            "members: network ovn has its databases on 3 nodes; 0 addresses are given",
        ),
        (
            &["network=ovn-one", THREE, SERVER],
            "on 1 nodes; 3 addresses",
        ),
        (&[THREE], "apiServer.host"),
        (&["network=plain", "large=true"], "network is plain"),
        (&[THREE, SERVER, "memebrs={a}"], "memebrs"),
        (
            &[THREE, SERVER, "config.podwire-nod.PODWIRE_LOG=debug"],
            "config.podwire-nod: network ovn has no such ConfigMap",
        ),
        (
            &[
                "network=plain",
                "resources.podwire-node.node.requests.memory=1Gi",
            ],
            "resources.podwire-node.node: network plain has no such container",
        ),
    ] {
        let refused = chart.template(values);
        assert!(!refused.status.success(), "{values:?}");
        assert!(refused.stderr.contains(expected), "{values:?}: {refused:?}");
    }
    let mut elsewhere = chart.command("template", &[THREE, SERVER]);
    elsewhere.args(["--namespace", "kube-system"]);
    let refused = finish(elsewhere, b"", LIMIT).unwrap();
    assert!(
        refused.stderr.contains("--namespace is kube-system"),
        "{refused:?}"
    );
}

#[test]
fn a_real_api_server_has_it_installed_upgraded_and_removed() {
    let Some(chart) = Chart::find() else {
        return;
    };
    if !Kubernetes::is_built() {
        eprintln!("not run: there is no API server; `make kubernetes` builds one");
        return;
    }
    let machine = TestNode::new();
    machine.run("ip", "address add 192.0.2.1/32 dev lo");
    let kubernetes = Kubernetes::start_at(&machine, "192.0.2.1".parse().unwrap());
    kubernetes.apply_files(&[
        "deploy/kubernetes/namespace/namespace.yaml",
        "deploy/kubernetes/namespace/policy.yaml",
    ]);
    let run = |command, what| kubernetes.client(command, "").unwrap().success(what);
    let listed = || {
        let kinds = "daemonsets,deployments,statefulsets,configmaps,clusterroles,\
                     clusterrolebindings,poddisruptionbudgets,serviceaccounts";
        let list = ["get", kinds, "--namespace=podwire-system", "-o", "json"];
        let list: Value = serde_json::from_str(&kubernetes.kubectl(&list, "").unwrap()).unwrap();
        let items = list["items"].as_array().unwrap().clone().into_iter();
        by_name(items.filter(|it| {
            it["metadata"]["name"]
                .as_str()
                .unwrap()
                .starts_with("podwire")
        }))
    };

    run(chart.command("install", &[THREE, SERVER]), "helm install");
    let wanted = by_name(
        whole("ovn")
            .into_iter()
            .filter_map(|it| for_release(&kubernetes, it)),
    );
    let made = listed();
    for place in wanted
        .keys()
        .filter(|(kind, _)| !kind.ends_with("Role") && kind != "RoleBinding")
    {
        assert!(made.contains_key(place), "{place:?}: {:?}", made.keys());
    }
    let strategy = |objects: &Objects| {
        let agent = &objects[&("DaemonSet".to_owned(), "podwire".to_owned())];
        agent["spec"]["updateStrategy"].clone()
    };
    assert_eq!(strategy(&made), strategy(&wanted));
    let upgrade = [THREE, SERVER, "config.podwire-node.PODWIRE_LOG=debug"];
    run(chart.command("upgrade", &upgrade), "helm upgrade");
    let node = ("ConfigMap".to_owned(), "podwire-node".to_owned());
    assert_eq!(listed()[&node]["data"]["PODWIRE_LOG"], "debug");
    run(chart.helm(["uninstall", "podwire"]), "helm uninstall");
    assert_eq!(listed(), Objects::new());
    // The namespace, with the keys in it, is not the chart's.
    let get = [
        "get",
        "namespace",
        "podwire-system",
        "networkpolicy/podwire-nobody",
    ];
    kubernetes
        .kubectl(&["get", "namespace", get[2]], "")
        .unwrap();
}
