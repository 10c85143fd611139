//! The pure parts of an ADD: reading the request and the annotation, planning, the transaction, and
//! the replica's update, the last with few and with many ports known.

#![allow(clippy::unwrap_used, reason = "a benchmark's panic is its report")]
#![allow(missing_docs, reason = "criterion's macros make public items")]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use podwire::plan::{AttachmentKey, InterfaceSpec, NodeFacts, PodRef, Subject, plan};
use podwire::pods::NetworkKey;
use podwire::pods::pod_networks::PodNetworks;
use podwire_cni::spec::NetConf;
use podwire_ovs::replica::{Db, MonitorMethod, Schema};
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{self, PortSpec, StringMap};
use serde_json::{Value, json};

const CONTAINER: &str = "3f2b9c0d1e4a5b6c7d8e9f00112233445566778899aabbccddeeff0011223344";

fn annotation() -> String {
    json!({"default": {
        "ip_addresses": ["10.244.1.5/24", "fd00:10:244:1::5/64"],
        "mac_address": "0a:58:0a:f4:01:05",
        "gateway_ips": ["10.244.1.1", "fd00:10:244:1::1"],
        "routes": [{"dest": "10.96.0.0/16", "nextHop": "10.244.1.1"}],
    }})
    .to_string()
}

fn conf() -> Vec<u8> {
    json!({
        "cniVersion": "1.1.0", "name": "pods", "type": "podwire-cni",
        "capabilities": {"io.kubernetes.cri.pod-annotations": true},
        "runtimeConfig": {"io.kubernetes.cri.pod-annotations":
            {"k8s.ovn.org/pod-networks": annotation()}},
    })
    .to_string()
    .into_bytes()
}

fn request(criterion: &mut Criterion) {
    let (conf, annotation) = (conf(), annotation());
    criterion.bench_function("parse the network configuration", |bench| {
        bench.iter(|| NetConf::parse(black_box(&conf)).unwrap());
    });
    criterion.bench_function("parse the pod-networks annotation", |bench| {
        bench.iter(|| {
            let networks = PodNetworks::parse(black_box(&annotation)).unwrap();
            networks.interface(&NetworkKey::Default).unwrap()
        });
    });
}

fn planning(criterion: &mut Criterion) {
    let key = AttachmentKey {
        network: "pods".into(),
        container_id: CONTAINER.into(),
        ifname: "eth0".into(),
    };
    let pod = PodRef {
        namespace: Some("default".into()),
        name: "web".into(),
        uid: Some("0e3f7d3e-0f5e-4d0c-a000-3f2b9c0d1e4a".into()),
    };
    let interfaces = [InterfaceSpec {
        addresses: vec![
            "10.244.1.5/24".parse().unwrap(),
            "fd00::5/64".parse().unwrap(),
        ],
        gateways: vec!["10.244.1.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        ..InterfaceSpec::default()
    }];
    let node = NodeFacts {
        bridge: "br-int".into(),
        netdev_datapath: false,
        default_mtu: 1500,
        quiet_pods: true,
        has_routers: false,
    };
    let subject = Subject {
        key: &key,
        pod: Some(&pod),
        netns: "/run/netns/cni-1",
    };
    criterion.bench_function("plan one dual-stack port", |bench| {
        bench.iter(|| plan(black_box(&subject), black_box(&interfaces), &node).unwrap());
    });
}

fn transaction(criterion: &mut Criterion) {
    let spec = PortSpec {
        name: CONTAINER[..15].into(),
        external_ids: ids(1).into_iter().collect::<StringMap>(),
        ..PortSpec::default()
    };
    let bridge = uuid(0, 0);
    criterion.bench_function("build a port's transaction", |bench| {
        bench.iter(|| vswitch::add_port(bridge, black_box(&spec), &[]));
    });
}

fn replica(criterion: &mut Criterion) {
    let schema = std::fs::read_to_string("/usr/share/openvswitch/vswitch.ovsschema").unwrap();
    let schema = Schema::parse(&schema).unwrap();
    let method = MonitorMethod::Conditional;
    for ports in [10, 1000] {
        let mut db = Db::new(&vswitch::tables());
        db.set_schema(&schema).unwrap();
        db.load(method, &snapshot(ports)).unwrap();
        let (add, number, remove) = updates(ports + 1);
        criterion.bench_function(
            &format!("replica: a port comes, is numbered, goes; {ports} known"),
            |bench| {
                bench.iter_batched(
                    || (),
                    |()| {
                        for update in [&add, &number, &remove] {
                            db.apply(method, black_box(update)).unwrap();
                        }
                    },
                    BatchSize::SmallInput,
                );
            },
        );
    }
}

fn ids(number: usize) -> Vec<(String, String)> {
    [
        ("attached_mac", "0a:58:0a:f4:01:05".to_owned()),
        ("iface-id", format!("default_web{number}")),
        (
            "ip_addresses",
            "10.244.1.5/24,fd00:10:244:1::5/64".to_owned(),
        ),
        ("sandbox", format!("{number:064x}")),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn uuid(table: u128, number: usize) -> Uuid {
    Uuid::from_bytes((table << 64 | number as u128).to_be_bytes())
}

fn rows(number: usize) -> (Value, Value) {
    let map: Vec<_> = ids(number)
        .into_iter()
        .map(|(key, value)| json!([key, value]))
        .collect();
    let name = format!("p{number}");
    (
        json!({"name": name, "external_ids": ["map", map], "ofport": number}),
        json!({"name": name, "interfaces": ["uuid", uuid(1, number).to_string()]}),
    )
}

fn snapshot(ports: usize) -> String {
    let mut interfaces = json!({});
    let mut port_rows = json!({});
    let mut references = Vec::new();
    for number in 0..ports {
        let (interface, port) = rows(number);
        interfaces[uuid(1, number).to_string()] = json!({ "initial": interface });
        port_rows[uuid(2, number).to_string()] = json!({ "initial": port });
        references.push(json!(["uuid", uuid(2, number).to_string()]));
    }
    let bridge = json!({"name": "br-int", "ports": ["set", references]});
    json!({
        "Bridge": {(uuid(3, 0).to_string()): {"initial": bridge}},
        "Port": port_rows,
        "Interface": interfaces,
    })
    .to_string()
}

fn updates(number: usize) -> (String, String, String) {
    let (mut interface, port) = rows(number);
    interface["ofport"] = json!(["set", []]);
    let (interface_row, port_row) = (uuid(1, number).to_string(), uuid(2, number).to_string());
    // Of a set, update2 tells the elements that came or went.
    let bridge = json!({(uuid(3, 0).to_string()): {"modify": {"ports": ["uuid", port_row]}}});
    let add = json!({
        "Bridge": bridge,
        "Port": {(port_row.clone()): {"insert": port}},
        "Interface": {(interface_row.clone()): {"insert": interface}},
    });
    let numbered = json!({"Interface": {(interface_row.clone()): {"modify": {"ofport": number}}}});
    let remove = json!({
        "Bridge": bridge,
        "Port": {(port_row): {"delete": null}},
        "Interface": {(interface_row): {"delete": null}},
    });
    (add.to_string(), numbered.to_string(), remove.to_string())
}

criterion_group!(pure, request, planning, transaction, replica);
criterion_main!(pure);
