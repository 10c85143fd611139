//! The result of an ADD.

use serde_json::{Value, json};

use crate::attachments::{GATEWAY, host_end, ip, list_in};
use crate::request::Request;
use crate::{Done, fault, members};

/// What an attachment has got, as IPAM says it.
#[derive(Debug)]
pub(crate) struct Given {
    pub(crate) address: String,
    pub(crate) gateway: String,
    pub(crate) routes: Vec<Value>,
    pub(crate) dns: Value,
}

impl Given {
    /// An address of its own subnet.
    pub(crate) fn own(address: String) -> Given {
        Given {
            address,
            gateway: GATEWAY.into(),
            routes: vec![json!({"dst": "0.0.0.0/0", "gw": GATEWAY})],
            dns: json!({"nameservers": ["192.0.2.1"]}),
        }
    }

    /// An IPAM plugin's.
    pub(crate) fn from_ipam(answer: &Value) -> Given {
        let ip = members(&answer["ips"]).first().cloned().unwrap_or_default();
        let text = |member: &str| ip[member].as_str().unwrap_or_default().to_owned();
        Given {
            address: text("address"),
            gateway: text("gateway"),
            routes: members(&answer["routes"]).to_vec(),
            dns: match fault("ipam-dns-dropped") {
                true => json!({}),
                false => answer["dns"].clone(),
            },
        }
    }
}

/// The result, with prevResult in it.
pub(crate) fn result(request: &Request, given: &Given) -> Done<Value> {
    let prev = match fault("prev-result-dropped") {
        true => Value::Null,
        false => request.conf.get("prevResult").cloned().unwrap_or_default(),
    };
    let mut interfaces = members(&prev["interfaces"]).to_vec();
    let host = host_end(request);
    let shown = ip(&["-json", "link", "show", "dev", &host]).unwrap_or_default();
    let shown: Value = serde_json::from_str(&shown).unwrap_or_default();
    if !fault("host-interface-omitted") {
        let mut interface = interface(request, &host, &shown[0]);
        if fault("sandbox-on-host") {
            interface["sandbox"] = request.netns.as_str().into();
        }
        interfaces.push(interface);
    }
    let index = match () {
        () if fault("wrong-interface-index") => 0,
        () if fault("indexes-not-shifted") => 1,
        () => interfaces.len(),
    };
    let links = list_in(&request.netns, &["link", "show"]).unwrap_or_default();
    let own = links
        .iter()
        .find(|link| link["ifname"] == request.ifname.as_str());
    let mut inside = interface(request, &request.ifname, own.unwrap_or(&Value::Null));
    inside["sandbox"] = match fault("sandbox-by-other-path") {
        true => "/proc/1/ns/net".into(),
        false => request.netns.as_str().into(),
    };
    if fault("wrong-mac") {
        inside["mac"] = "02:00:00:00:00:01".into();
    }
    interfaces.push(inside);

    let mut ips = members(&prev["ips"]).to_vec();
    if !fault("ips-omitted") {
        ips.push(address(request, given, index));
    }
    let mut routes = members(&prev["routes"]).to_vec();
    routes.extend(given.routes.iter().cloned().map(|mut route| {
        if fault("routes-without-prefix") {
            route["dst"] = "0.0.0.0".into();
        }
        route
    }));
    let version = match fault("result-in-another-version") {
        true => "0.2.0",
        false => request.version.as_str(),
    };
    let dns = match prev["dns"].is_object() {
        true => prev["dns"].clone(),
        false => given.dns.clone(),
    };
    let mut result = json!({
        "cniVersion": version, "interfaces": interfaces, "ips": ips, "routes": routes, "dns": dns,
    });
    if fault("interfaces-omitted") {
        result["interfaces"] = json!([]);
    }
    if fault("dns-as-list") {
        result["dns"] = json!(["192.0.2.1"]);
    }
    Ok(result)
}

fn interface(request: &Request, name: &str, shown: &Value) -> Value {
    let mut interface = json!({"name": name, "mac": shown["address"]});
    if request.version == "1.1.0" && !fault("no-mtu") {
        interface["mtu"] = shown["mtu"].clone();
    }
    interface
}

fn address(request: &Request, given: &Given, index: usize) -> Value {
    let mut address = json!({
        "address": given.address, "gateway": given.gateway, "interface": index,
    });
    if request.version.starts_with("0.") && !fault("ips-without-version") {
        address["version"] = "4".into();
    }
    if fault("ips-without-prefix") {
        address["address"] = given.address.split('/').next().into();
    }
    address
}
