//! Plans compared with their requests, by what they create.

mod link;
mod result;
mod routes;
mod rows;

use podwire_netns::{PodIpv6, Route};

use super::*;

const ID: &str = "3f2b9c0d1e4a5b6c7d8e9f00112233445566778899aabbccddeeff0011223344";

fn key(ifname: &str) -> AttachmentKey {
    AttachmentKey {
        network: "pods".into(),
        container_id: ID.into(),
        ifname: ifname.into(),
    }
}

fn pod() -> PodRef {
    PodRef {
        namespace: Some("default".into()),
        name: "web".into(),
        uid: Some("uid-1".into()),
    }
}

fn node() -> NodeFacts {
    NodeFacts {
        bridge: "br-int".into(),
        netdev_datapath: true,
        default_mtu: 1500,
        quiet_pods: true,
        has_routers: false,
    }
}

fn spec(addresses: &[&str], gateways: &[&str]) -> InterfaceSpec {
    InterfaceSpec {
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        gateways: gateways.iter().map(|text| text.parse().unwrap()).collect(),
        ..InterfaceSpec::default()
    }
}

fn route(dst: &str, gateway: Option<&str>) -> Route {
    Route::new(
        dst.parse().unwrap(),
        gateway.map(|text| text.parse().unwrap()),
    )
}

fn planned(interfaces: &[InterfaceSpec]) -> Result<Vec<PortPlan>, PlanError> {
    let (key, pod) = (key("eth0"), pod());
    plan(
        &Subject {
            key: &key,
            pod: Some(&pod),
            netns: "/run/netns/a",
        },
        interfaces,
        &node(),
    )
}

fn refusal(spec: InterfaceSpec) -> String {
    planned(&[spec]).unwrap_err().to_string()
}
