//! The operations.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::attachments::{
    self, exists, host_end, ip, ip_in, list_in, mark, record, set_mark, take_address,
};
use crate::request::Request;
use crate::result::{Given, result};
use crate::{Done, Failed, fault, members};
use crate::{delegate, roles};

/// How long an ADD that refuses company stays, so that its company is sure to meet it.
const LONG_ENOUGH: Duration = Duration::from_millis(300);

/// ADD: an address, a veth pair, and both told.
pub(crate) fn add(request: &Request) -> Done<Value> {
    let refusals = [
        ("wants-status", !mark("status").exists()),
        ("outage-is-final", mark("outage").exists()),
        (
            "refuses-prev-result",
            request.conf.contains_key("prevResult"),
        ),
        (
            "never-again",
            mark(&format!("seen-{}", request.id)).exists(),
        ),
        (
            "one-interface-per-container",
            attachments::of_network(&request.network)?
                .iter()
                .any(|it| it.record["id"] == request.id.as_str()),
        ),
    ];
    if let Some((name, _)) = refusals.iter().find(|(name, so)| *so && fault(name)) {
        return Err(Failed::new(100, *name));
    }
    if fault("never-again") {
        set_mark(&format!("seen-{}", request.id))?;
    }
    if !fault("refuses-company") {
        return attach(request);
    }
    let alone = mark("alone");
    fs::create_dir_all(alone.parent().unwrap_or(Path::new("/")))?;
    fs::File::create_new(&alone).map_err(|_| Failed::new(11, "somebody else is at it"))?;
    std::thread::sleep(LONG_ENOUGH);
    let done = attach(request);
    fs::remove_file(&alone)?;
    done
}

fn attach(request: &Request) -> Done<Value> {
    match request.conf.get("role").and_then(Value::as_str) {
        Some("chained") => return roles::adjust(request),
        Some("ipam") => return roles::give(request),
        _ => {}
    }
    if fault("makes-do-without-netns") && list_in(&request.netns, &["link"]).is_err() {
        return result(request, &Given::own("10.77.0.2/24".into()));
    }
    let leaky = fault("ipam-leaks-on-failure");
    let early = match leaky {
        true => delegate::call(request, "ADD")?,
        false => None,
    };
    let links = list_in(&request.netns, &["link", "show"]).map_err(|failed| {
        let code = if fault("reserved-code") { 42 } else { 3 };
        Failed { code, ..failed }
    })?;
    if links
        .iter()
        .any(|link| link["ifname"] == request.ifname.as_str())
    {
        if !fault("replaces-existing") {
            if fault("failed-add-leaves-link") {
                leave_link(request)?;
            }
            return Err(Failed::new(100, format!("{} exists", request.ifname)));
        }
        ip_in(&request.netns, &["link", "delete", &request.ifname])?;
    }
    let answer = match early {
        Some(answer) => Some(answer),
        None => match delegate::call(request, "ADD") {
            Ok(answer) => answer,
            Err(failed) => {
                if fault("failed-add-leaves-link") {
                    leave_link(request)?;
                }
                if !fault("ipam-not-undone") {
                    // The error that counts is the one that there is already.
                    let _ = delegate::call(request, "DEL");
                }
                return Err(failed);
            }
        },
    };
    let given = match &answer {
        Some(answer) => Given::from_ipam(answer),
        None => Given::own(take_address(request)?),
    };
    record(request, &given.address)?;
    if !fault("no-interface") {
        wire(request, &given)?;
    }
    let result = result(request, &given)?;
    match fault("no-result") {
        true => std::process::exit(0),
        false => Ok(result),
    }
}

fn wire(request: &Request, given: &Given) -> Done {
    let ifname = match fault("always-eth0") {
        true => "eth0",
        false => request.ifname.as_str(),
    };
    let (host, netns) = (host_end(request), request.netns.as_str());
    ip(&[
        "link", "add", &host, "type", "veth", "peer", "name", ifname, "netns", netns,
    ])?;
    ip(&["link", "set", &host, "up"])?;
    if !fault("address-not-assigned") {
        ip_in(netns, &["address", "add", &given.address, "dev", ifname])?;
    }
    ip_in(netns, &["link", "set", ifname, "up"])?;
    let routes = match fault("routes-not-made") || fault("address-not-assigned") {
        true => &[],
        false => given.routes.as_slice(),
    };
    for route in routes {
        let dst = route["dst"].as_str().unwrap_or_default();
        let gw = route["gw"].as_str().unwrap_or(&given.gateway);
        // Another interface may have the same one.
        ip_in(netns, &["route", "append", dst, "via", gw, "dev", ifname])?;
    }
    if fault("changes-others") {
        for link in list_in(netns, &["link", "show"])? {
            let name = link["ifname"].as_str().unwrap_or_default();
            if name != ifname && name != "lo" {
                ip_in(netns, &["address", "flush", "dev", name])?;
            }
        }
    }
    Ok(())
}

fn leave_link(request: &Request) -> Done {
    ip(&[
        "link",
        "add",
        &host_end(request),
        "type",
        "veth",
        "peer",
        "name",
        "left0",
    ])
    .map(drop)
}

/// DEL: whatever there is of it goes.
pub(crate) fn del(request: &Request) -> Done {
    let no_prev = request.version >= "0.4.0".into() && !request.conf.contains_key("prevResult");
    let refusals = [
        ("del-wants-prev-result", no_prev),
        ("del-wants-netns-there", !Path::new(&request.netns).exists()),
    ];
    if let Some((name, _)) = refusals.iter().find(|(name, so)| *so && fault(name)) {
        return Err(Failed::new(7, *name));
    }
    if fault("del-does-nothing") {
        return Ok(());
    }
    let mut attachments = attachments::of_network(&request.network)?;
    attachments.retain(|it| {
        it.is(&request.id, &request.ifname)
            || (fault("del-by-container") && it.record["id"] == request.id.as_str())
            || fault("del-takes-all")
    });
    if attachments.is_empty() && fault("del-once") {
        return Err(Failed::new(3, "no such attachment"));
    }
    for attachment in &attachments {
        roles::readjust(request)?;
        attachment.remove()?;
    }
    if attachments.is_empty() && fault("ipam-leaks-on-failure") {
        return Ok(());
    }
    delegate::call(request, "DEL").map(drop)
}

/// CHECK: prevResult compared with what exists.
pub(crate) fn check(request: &Request) -> Done<Option<Value>> {
    if fault("check-always-passes") {
        return Ok(None);
    }
    let differs = |what: String| Err(Failed::new(103, what));
    if fault("check-always-fails") {
        return differs("something".into());
    }
    let Some(prev) = request.conf.get("prevResult") else {
        return Err(Failed::new(7, "prevResult is missing"));
    };
    if request.conf.contains_key("role") {
        return roles::check(request);
    }
    if !exists(&host_end(request)) {
        return differs(format!("{} is gone", host_end(request)));
    }
    let links = list_in(&request.netns, &["address", "show"])?;
    let own = links
        .iter()
        .find(|link| link["ifname"] == request.ifname.as_str());
    let Some(own) = own else {
        return differs(format!("{} is gone", request.ifname));
    };
    let addresses: Vec<String> = members(&own["addr_info"])
        .iter()
        .filter(|address| address["family"] == "inet")
        .map(|address| {
            let local = address["local"].as_str().unwrap_or_default();
            format!("{local}/{}", address["prefixlen"])
        })
        .collect();
    let interfaces = members(&prev["interfaces"]);
    let expected: Vec<&str> = members(&prev["ips"])
        .iter()
        .filter(|ip| {
            let index = ip["interface"].as_u64().unwrap_or_default();
            let interface = interfaces.get(usize::try_from(index).unwrap_or_default());
            interface.is_some_and(|it| it["name"] == request.ifname.as_str())
        })
        .filter_map(|ip| ip["address"].as_str())
        .collect();
    if let Some(missing) = expected
        .iter()
        .find(|it| !addresses.iter().any(|has| has == *it))
    {
        return differs(format!("{missing} is gone"));
    }
    if fault("check-exact-addresses") && addresses.len() != expected.len() {
        return differs("there is another address".into());
    }
    let routes = list_in(&request.netns, &["-4", "route", "show"])?;
    for route in members(&prev["routes"]) {
        let dst = route["dst"].as_str().unwrap_or_default();
        let shown = if dst == "0.0.0.0/0" { "default" } else { dst };
        if !routes.iter().any(|route| route["dst"] == shown) {
            return differs(format!("the route to {dst} is gone"));
        }
    }
    let others = routes.iter().filter(|route| route["protocol"] != "kernel");
    if fault("check-exact-routes") && others.count() != members(&prev["routes"]).len() {
        return differs("there is another route".into());
    }
    delegate::call(request, "CHECK")?;
    Ok(fault("check-prints-result").then(|| prev.clone()))
}

/// GC: what is not listed goes.
pub(crate) fn gc(request: &Request) -> Done {
    let valid = request.conf.get("cni.dev/valid-attachments");
    let valid = valid.map_or(&[][..], members);
    let delegated = delegate::call(request, "GC");
    if fault("gc-stops-at-error") && delegated.is_err() {
        return delegated.map(drop);
    }
    let mut attachments = match fault("gc-of-all-networks") {
        true => attachments::of_all_networks()?,
        false => attachments::of_network(&request.network)?,
    };
    attachments.retain(|it| {
        let is_valid = valid.iter().any(|valid| {
            valid["containerID"] == it.record["id"]
                && (valid["ifname"] == it.record["ifname"] || fault("gc-by-container"))
        });
        !is_valid || fault("gc-takes-all")
    });
    if fault("gc-does-nothing") {
        attachments.clear();
    }
    if fault("gc-wants-something") && attachments.is_empty() {
        return Err(Failed::new(100, "nothing to collect"));
    }
    for attachment in &attachments {
        attachment.remove()?;
    }
    delegated.map(drop)
}

/// STATUS: whether it can serve.
pub(crate) fn status(request: &Request) -> Done {
    set_mark("status")?;
    let is_down = Path::new("/run/faulty-cni-outage").exists();
    if fault("never-ready") || (is_down && !fault("always-ready")) {
        set_mark("outage")?;
        let code = if fault("code-999-for-status") {
            999
        } else {
            50
        };
        return Err(Failed::new(code, "not available"));
    }
    delegate::call(request, "STATUS").map(drop)
}
