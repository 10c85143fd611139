use serde_json::json;

use super::*;

/// The document's own, with the blanks that it has.
const DESIGN: &str = r#"
apiVersion: v1
kind: onapNetwork
metadata:
  name: ovn-ls-24
spec:
  config: '{
    "cnitype" : "ovn",
    "name": " ovn-ls-24",
    "subnet": " 172.16.24.0/24",
    "gateway": " 172.16.24.1"
    }'
"#;

const PROVIDER: &str = "
apiVersion: k8s.plugin.opnfv.org/v1alpha1
kind: ProviderNetwork
metadata: {name: pnetwork, namespace: nfv}
spec:
  cniType: ovn4nfv
  ipv4Subnets:
  - subnet: 172.16.33.0/24
    name: subnet1
    gateway: 172.16.33.1/24
    excludeIps: 172.16.33.2 172.16.33.5..172.16.33.10
  providerNetType: VLAN
  vlan:
    vlanId: '100'
    providerInterfaceName: eth0
    logicalInterfaceName: eth0.100
    vlanNodeSelector: specific
    nodeLabelList: [kubernetes.io/hostname=ubuntu18]
---
kind: Deployment
";

fn imported(text: &str) -> Result<String, String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let done = import(&[file.path().to_owned()], "own");
    let path = format!("{}: ", file.path().display());
    done.map_err(|error| error.to_string().replace(&path, ""))
}

fn configs(text: &str) -> Vec<(String, Value)> {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let all = objects.iter().filter(|it| !it.is_null()).map(|object| {
        let metadata = &object["metadata"];
        let field = |name: &str| metadata[name].as_str().unwrap();
        let config = object["spec"]["config"].as_str().unwrap();
        let id = format!("{}/{}", field("namespace"), field("name"));
        (id, serde_json::from_str(config).unwrap())
    });
    all.collect()
}

#[test]
fn the_document_s_network_and_ovn4nfv_s_become_definitions() {
    let text = imported(DESIGN).unwrap();
    let expected = json!({
        "cniVersion": "1.0.0", "type": "podwire-cni", "name": "ovn-ls-24",
        "netAttachDefName": "own/ovn-ls-24", "topology": "layer2",
        "subnets": "172.16.24.0/24", "excludeSubnets": "172.16.24.1/32",
    });
    assert_eq!(configs(&text), [("own/ovn-ls-24".to_owned(), expected)]);
    assert!(
        text.contains("# spec.config.gateway: no router has 172.16.24.1"),
        "{text}"
    );
    let text = imported(PROVIDER).unwrap();
    let expected = json!({
        "cniVersion": "1.0.0", "type": "podwire-cni", "name": "pnetwork",
        "netAttachDefName": "nfv/pnetwork", "topology": "localnet", "vlanID": 100,
        "subnets": "172.16.33.0/24",
        "excludeSubnets":
            "172.16.33.1/32,172.16.33.2/32,172.16.33.5/32,172.16.33.6/31,172.16.33.8/31,\
             172.16.33.10/32",
    });
    assert_eq!(configs(&text), [("nfv/pnetwork".to_owned(), expected)]);
    for part in [
        "pnetwork:BRIDGE",
        "\"eth0\" has to be",
        "\"Deployment\" is no network",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let direct = PROVIDER
        .replace("VLAN", "DIRECT")
        .replace("  vlan:", "  direct:");
    let direct = direct.replace("vlanNode", "directNode");
    let direct = direct.replace("    vlanId: '100'\n", "");
    let direct = direct.replace("    logicalInterfaceName: eth0.100\n", "");
    let (_, config) = configs(&imported(&direct).unwrap()).remove(0);
    assert_eq!(
        (&config["topology"], &config["vlanID"]),
        (&json!("localnet"), &Value::Null)
    );
}

#[test]
fn what_can_t_be_had_is_named_by_its_field() {
    let network = PROVIDER.replace("ProviderNetwork", "Network");
    let network = network.split("  providerNetType").next().unwrap();
    assert!(imported(network).is_ok());
    for (text, expected) in [
        (
            DESIGN.replace("\"ovn\"", "\"flannel\""),
            "spec.config.cnitype: \"flannel\" is not ovn",
        ),
        (
            DESIGN.replace(" 172.16.24.0/24", "172.16.24.7/24"),
            "spec.config.subnet: 172.16.24.7/24",
        ),
        (
            DESIGN.replace(" 172.16.24.1", "10.0.0.1"),
            "spec.config.gateway: 10.0.0.1 is not in",
        ),
        (
            DESIGN.replace("\"subnet\"", "\"mask\""),
            "spec.config.mask: there is no such field",
        ),
        (
            DESIGN.replace(" ovn-ls-24\",", "a b\","),
            "spec.config.name: \"a b\" has other",
        ),
        (
            format!("{network}  dns: {{domain: x}}\n"),
            "spec.dns: a definition has none",
        ),
        (
            format!("{network}  routes: [{{dst: x}}]\n"),
            "spec.routes: a definition has none",
        ),
        (
            network.replace("ovn4nfv", "sriov"),
            "spec.cniType: \"sriov\" is not ovn4nfv",
        ),
        (
            network.replace("..", "-"),
            "spec.ipv4Subnets[0].excludeIps: \"172.16.33.5-172.16.33.10\" is neither",
        ),
        (
            format!("{network}  - subnet: 10.1.0.0/24\n"),
            "spec.ipv4Subnets and spec.ipv6Subnets: 172.16.33.0/24 and 10.1.0.0/24 are of one",
        ),
        (
            PROVIDER.replace("'100'", "'4095'"),
            "spec.vlan.vlanId: 4095 is no number from 1",
        ),
        (
            PROVIDER.replace("'100'", "'x'"),
            "spec.vlan.vlanId: \"x\" is no number",
        ),
        (
            PROVIDER.replace("VLAN", "GRE"),
            "spec.providerNetType: \"GRE\" is neither",
        ),
        ("kind: Pod\n".to_owned(), "it has no onapNetwork"),
    ] {
        let error = imported(&text).unwrap_err();
        assert!(error.contains(expected), "{expected} in {error}");
    }
}
