//! The kustomizations of deploy/, each beside all others: what one applies and deletes is its own.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use podwire_tests::agent_binary;
use podwire_tests::process::finish;
use serde_json::Value;

use super::render::{config, exact, kustomization, manifests, of_kind, parsed, render, whole};

/// Each directory of deploy/ with a kustomization, by its path there.
pub(super) fn sets() -> BTreeMap<String, Vec<Value>> {
    let deploy = manifests().join("..").canonicalize().unwrap();
    let mut found = BTreeMap::new();
    let mut directories = vec![deploy.clone()];
    while let Some(directory) = directories.pop() {
        let is_set = |directory: &Path| {
            directory.join("kustomization.yaml").exists()
                && kustomization(directory)["kind"] == "Kustomization"
        };
        if is_set(&directory) {
            let name = directory.strip_prefix(&deploy).unwrap();
            found.insert(name.display().to_string(), render(&directory));
        }
        let entries = fs::read_dir(directory).unwrap();
        let entries = entries.map(|entry| entry.unwrap().path());
        directories.extend(entries.filter(|path| path.is_dir()));
    }
    // A base is part of each overlay, and nobody applies it.
    found.remove("kubernetes/base").unwrap();
    found.remove("cluster/base").unwrap();
    assert!(found.len() >= 8, "{:?}", found.keys());
    // Each component that is no part of an overlay, on top of one.
    for entry in fs::read_dir(deploy.join("cluster/components")).unwrap() {
        let component = entry.unwrap().file_name().into_string().unwrap();
        if !["one-member", "openvswitch"].contains(&&*component) {
            let name = format!("ovn-one+{component}");
            found.insert(format!("cluster/overlays/{name}"), whole(&name));
        }
    }
    found
}

/// The directory of a set, or a new one with a kustomization that makes it.
fn directory_of(set: &str, new: &Path) -> PathBuf {
    let deploy = manifests().join("..");
    let Some((overlay, component)) = set.split_once('+') else {
        return deploy.join(set);
    };
    let text = format!(
        "resources: [../../deploy/{overlay}]\n\
         components: [../../deploy/cluster/components/{component}]\n"
    );
    fs::write(new.join("kustomization.yaml"), text).unwrap();
    new.to_owned()
}

/// What Kubernetes tells objects apart by.
fn identity(object: &Value) -> String {
    let group = object["apiVersion"].as_str().unwrap();
    let group = group.rsplit_once('/').map_or("", |(group, _)| group);
    let [namespace, name] = ["namespace", "name"].map(|key| &object["metadata"][key]);
    format!("{group} {} {namespace} {name}", object["kind"])
}

#[test]
fn deleting_one_set_takes_nothing_from_another() {
    let mut sets = sets();
    // The whole network is made of all others.
    sets.retain(|name, _| !name.starts_with("cluster/"));
    let is_overlay = |name: &str| name.starts_with("kubernetes/overlays/");
    let mut owners = BTreeMap::new();
    for (set, objects) in &sets {
        for object in objects {
            let other = owners.insert(identity(object), set);
            // Of the overlays a cluster has one.
            let other = other.filter(|other| !(is_overlay(other) && is_overlay(set)));
            assert_eq!(other, None, "{set}: {}", identity(object));
        }
    }
}

#[test]
fn all_objects_of_one_name_have_one_content_unless_an_overlay_patches_them() {
    let mut contents: BTreeMap<String, (String, Value)> = BTreeMap::new();
    for (set, objects) in sets() {
        for object in objects {
            // A component's patches are its purpose.
            if set.starts_with("cluster/") {
                continue;
            }
            let key = identity(&object);
            let kind = object["kind"].as_str().unwrap();
            if set.starts_with("kubernetes/overlays/") && matches!(kind, "DaemonSet" | "ConfigMap")
            {
                continue;
            }
            if let Some((other, content)) = contents.insert(key, (set.clone(), object.clone())) {
                assert_eq!(content, object, "in {other} and {set}");
            }
        }
    }
}

#[test]
fn every_field_of_every_set_is_one_that_kubernetes_knows() {
    for (set, objects) in sets() {
        for object in objects {
            match object["kind"].as_str().unwrap() {
                "Namespace" => drop(exact::<Namespace>(&object)),
                "ServiceAccount" => drop(exact::<ServiceAccount>(&object)),
                "ConfigMap" => drop(exact::<ConfigMap>(&object)),
                "ClusterRole" => drop(exact::<ClusterRole>(&object)),
                "ClusterRoleBinding" => drop(exact::<ClusterRoleBinding>(&object)),
                "Role" => drop(exact::<Role>(&object)),
                "RoleBinding" => drop(exact::<RoleBinding>(&object)),
                "DaemonSet" => drop(exact::<DaemonSet>(&object)),
                "Deployment" => drop(exact::<Deployment>(&object)),
                "StatefulSet" => drop(exact::<StatefulSet>(&object)),
                "PodDisruptionBudget" => drop(exact::<PodDisruptionBudget>(&object)),
                "NetworkPolicy" => drop(exact::<NetworkPolicy>(&object)),
                // Other tests have the first three, and Kubernetes no type of the last two.
                "ValidatingAdmissionPolicy"
                | "ValidatingAdmissionPolicyBinding"
                | "PodMonitor"
                | "NetworkAttachmentDefinition" => {}
                other => panic!("{set}: {other}"),
            }
        }
    }
}

/// What the databases and the chassis need of a cluster that has no network yet.
#[test]
fn what_makes_the_network_needs_none() {
    for set in ["cluster/overlays/ovn", "cluster/overlays/ovn-one"] {
        let objects = render(&manifests().join("..").join(set));
        for object in objects {
            let (spec, name) = (&object["spec"], &object["metadata"]["name"]);
            let pod = &spec["template"]["spec"];
            if pod.is_null() {
                continue;
            }
            assert_eq!(pod["hostNetwork"], true, "{name}");
            let class = pod["priorityClassName"].as_str().unwrap();
            let expected = match object["kind"] == "DaemonSet" {
                true => "system-node-critical",
                false => "system-cluster-critical",
            };
            assert_eq!(class, expected, "{name}");
            let containers = pod["containers"].as_array().unwrap();
            for container in containers {
                let mut before = Vec::new();
                for variable in container["env"].as_array().into_iter().flatten() {
                    let value = variable["value"].as_str().unwrap_or_default();
                    for other in value.split("$(").skip(1) {
                        let other = other.split_once(')').unwrap().0;
                        assert!(before.contains(&other), "{name}: {value}");
                    }
                    before.push(variable["name"].as_str().unwrap());
                }
                let requests = &container["resources"]["requests"];
                assert!(requests["cpu"].is_string() && requests["memory"].is_string());
                for probe in ["livenessProbe", "readinessProbe"] {
                    let probe = &container[probe];
                    let is_command = probe["exec"].is_object();
                    let deadline = probe["timeoutSeconds"].as_i64();
                    assert!(!is_command || deadline > Some(1), "{name}: {probe}");
                }
            }
            if object["kind"] != "StatefulSet" {
                continue;
            }
            let labels = &spec["selector"]["matchLabels"];
            let apart = &pod["affinity"]["podAntiAffinity"];
            let apart = &apart["requiredDuringSchedulingIgnoredDuringExecution"][0];
            assert_eq!(apart["topologyKey"], "kubernetes.io/hostname");
            assert_eq!(&apart["labelSelector"]["matchLabels"], labels);
            assert_eq!(spec["podManagementPolicy"], "Parallel");
        }
    }
}

/// Whether this machine has a kubectl with a kustomize of today: that of 1.20 is 2.0.
fn kubectl_knows_components() -> bool {
    let mut command = Command::new("kubectl");
    command.args(["version", "--client", "--output=json"]);
    let Ok(run) = finish(command, b"", Duration::from_secs(60)) else {
        return false;
    };
    let told: Value = serde_json::from_str(&run.stdout).unwrap_or_default();
    let minor = told["clientVersion"]["minor"].as_str().unwrap_or_default();
    let digits = minor.trim_end_matches(|it: char| !it.is_ascii_digit());
    digits.parse::<u32>().is_ok_and(|minor| minor >= 22)
}

/// The renderer of these tests and kubectl's, on what has components, patches and generators.
#[test]
fn kubectl_renders_what_the_tests_render() {
    if !kubectl_knows_components() {
        eprintln!("not run: there is no kubectl of Kubernetes 1.22 or later");
        return;
    }
    let mut checked = 0;
    for (name, ours) in sets() {
        let new = tempfile::tempdir_in(manifests().join("../../target")).unwrap();
        let directory = directory_of(&name, new.path());
        let set = kustomization(&directory);
        let needs = ["components", "patches", "configMapGenerator"];
        if needs.iter().all(|it| set[it].is_null()) {
            continue;
        }
        let mut command = Command::new("kubectl");
        command.arg("kustomize").arg(&directory);
        let run = finish(command, b"", Duration::from_secs(60)).unwrap();
        let text = run.success("kubectl kustomize");
        let sorted = |objects: Vec<Value>| {
            let named = objects.into_iter().map(|it| (identity(&it), it));
            named.collect::<BTreeMap<_, _>>()
        };
        let (theirs, mut ours) = (sorted(parsed(&text, &directory)), sorted(ours));
        for (object, theirs) in theirs {
            assert_eq!(Some(theirs), ours.remove(&object), "{name}: {object}");
        }
        assert!(ours.is_empty(), "{name}: {ours:?}");
        checked += 1;
    }
    assert!(checked >= 8, "{checked}");
}

#[test]
fn every_namespaced_object_is_in_podwires_namespace() {
    for (set, objects) in sets() {
        for object in objects {
            let is_clusters = object["metadata"]["namespace"].is_null();
            let kind = object["kind"].as_str().unwrap();
            let is_policy = kind.starts_with("ValidatingAdmissionPolicy");
            let expected = kind.starts_with("Cluster") || kind == "Namespace" || is_policy;
            assert_eq!(is_clusters, expected, "{set}: {}", identity(&object));
        }
    }
}

/// A pod of the host's network that names a port excludes every other of its kind from its node.
#[test]
fn a_rollout_of_the_controller_and_a_drain_need_no_third_node() {
    let objects = render(&manifests().join("../controller"));
    let deployment = of_kind::<Deployment>(&objects, "Deployment").remove(0);
    let spec = deployment.spec.unwrap();
    let pod = spec.template.spec.as_ref().unwrap();
    assert_eq!((spec.replicas, pod.host_network), (Some(2), Some(true)));
    let rolling = spec.strategy.unwrap().rolling_update.unwrap();
    let json = serde_json::to_value(rolling).unwrap();
    assert_eq!(
        json,
        serde_json::json!({"maxSurge": 0, "maxUnavailable": 1})
    );

    let budgets = of_kind::<PodDisruptionBudget>(&objects, "PodDisruptionBudget");
    let [budget] = &budgets[..] else {
        panic!("{budgets:?}")
    };
    let budget = budget.spec.as_ref().unwrap();
    assert_eq!(budget.selector.as_ref(), Some(&spec.selector));
    let most = serde_json::to_value(&budget.max_unavailable).unwrap();
    assert_eq!(most, 1, "one of two may go");
}

/// Each family alone has the other one nowhere in its networks, and listens where it can.
#[test]
fn a_family_alone_is_alone_in_all_parts() {
    for (set, separator, listen) in [("ipv4", '.', "0.0.0.0"), ("ipv6", ':', "[::]")] {
        let objects = whole(&format!("ovn-one+{set}"));
        let networks = [
            ("podwire-controller", "PODWIRE_CLUSTER_SUBNETS"),
            ("podwire-node", "PODWIRE_CLUSTER_SUBNETS"),
            ("podwire-node", "PODWIRE_SERVICE_CIDRS"),
        ];
        for (name, key) in networks {
            let value = &config(&objects, name)[key];
            assert!(!value.contains(','), "{set}: {name}: {key}: {value}");
            assert!(value.contains(separator), "{set}: {name}: {key}: {value}");
        }
        assert_eq!(config(&objects, "podwire-ovn")["OVN_LISTEN"], listen);
        let metrics = &config(&objects, "podwire-controller")["PODWIRE_METRICS_ADDRESS"];
        assert_eq!(metrics, "127.0.0.1:9413");
    }
}

/// The node role reads the settings of every set, and ends for want of a database, not for them.
#[test]
fn the_node_role_takes_the_settings_of_every_set() {
    let is_map =
        |it: &&Value| it["kind"] == "ConfigMap" && it["metadata"]["name"] == "podwire-node";
    let sets = sets();
    let mut runs = Vec::new();
    for (name, objects) in sets
        .iter()
        .filter(|(_, objects)| objects.iter().any(|it| is_map(&it)))
    {
        let settings = config(objects, "podwire-node");
        let subnets = settings["PODWIRE_CLUSTER_SUBNETS"]
            .split(',')
            .map(|network| match network {
                v6 if v6.contains(':') => "fd00:10:244:1::/64",
                _ => "10.244.1.0/24",
            });
        let mut command = Command::new(agent_binary());
        command.args(["node", "plan", "--ovsdb", "unix:/nonexistent/db.sock"]);
        command.args(["--node-subnet", &subnets.collect::<Vec<_>>().join(",")]);
        command.env_clear().envs(settings).stderr(Stdio::piped());
        // Without its keys, which are files.
        for key in ["PRIVATE_KEY", "CERTIFICATE", "CA_CERT"] {
            command.env_remove(format!("PODWIRE_OVN_{key}"));
        }
        command.env("PODWIRE_OVN_REMOTE", "tcp:192.0.2.1:6642");
        runs.push((name, command.spawn().unwrap()));
    }
    assert!(runs.len() >= 5, "{runs:?}");
    for (name, run) in runs {
        let ended = run.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert!(
            said.contains("Open vSwitch's database unix:/nonexistent"),
            "{name}: {said}"
        );
    }
}

/// Those without a patch: kubectl up to 1.20 knows only resources that are files of the same
/// directory.
#[test]
fn a_kustomization_without_patches_names_files_beside_it() {
    for name in sets().keys().filter(|name| !name.contains("overlays/")) {
        let set = kustomization(&manifests().join("..").join(name));
        for resource in set["resources"].as_array().unwrap() {
            let is_beside = !resource.as_str().unwrap().contains('/');
            assert!(is_beside, "{name}: {resource}");
        }
    }
}
