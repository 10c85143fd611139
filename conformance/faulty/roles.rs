//! The other kinds of plugins that it can be: a chained one, which sets the MTU of the interface
//! that is there, and an IPAM plugin.

use std::path::Path;

use serde_json::{Value, json};

use crate::attachments::{self, GATEWAY, ip_in, record, take_address};
use crate::request::Request;
use crate::{Done, Failed, fault};

/// ADD of the chained plugin.
pub(crate) fn adjust(request: &Request) -> Done<Value> {
    let Some(prev) = request.conf.get("prevResult") else {
        return Err(Failed::new(7, "prevResult is missing"));
    };
    set_mtu(request, "1400")?;
    record(request, "")?;
    let mut result = prev.clone();
    result["cniVersion"] = request.version.as_str().into();
    if fault("prev-result-dropped") {
        result["ips"] = json!([]);
    }
    Ok(result)
}

/// What the chained plugin's DEL undoes, where there is something left to undo it on.
pub(crate) fn readjust(request: &Request) -> Done {
    let is_chained = request
        .conf
        .get("role")
        .is_some_and(|role| role == "chained");
    if is_chained && !fault("mtu-not-undone") && Path::new(&request.netns).exists() {
        // The interface may be gone.
        let _ = set_mtu(request, "1500");
    }
    Ok(())
}

/// ADD of the IPAM plugin.
pub(crate) fn give(request: &Request) -> Done<Value> {
    let address = take_address(request)?;
    record(request, &address)?;
    let mut ip = json!({"address": address, "gateway": GATEWAY});
    if request.version.starts_with("0.") {
        ip["version"] = "4".into();
    }
    if fault("ipam-names-interface") {
        ip["interface"] = 0.into();
    }
    Ok(json!({
        "cniVersion": request.version,
        "ips": [ip],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["192.0.2.1"]},
    }))
}

/// CHECK of both: whether the attachment is known.
pub(crate) fn check(request: &Request) -> Done<Option<Value>> {
    let attachments = attachments::of_network(&request.network)?;
    let is_known = attachments
        .iter()
        .any(|it| it.is(&request.id, &request.ifname));
    match is_known {
        true => Ok(None),
        false => Err(Failed::new(103, "no such attachment")),
    }
}

fn set_mtu(request: &Request, mtu: &str) -> Done {
    ip_in(
        &request.netns,
        &["link", "set", &request.ifname, "mtu", mtu],
    )
    .map(drop)
}
