//! The result of an ADD, held against what the kernel has.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{CASE, MUST, MUST_SINCE_1_0, MUST_SINCE_1_1, SHOULD_SINCE_1_0, members};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, Verdict, broken, not_applicable, require};
use crate::ip::{Link, network};
use crate::spec::Version;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "result/version",
        section: "5, ADD Success",
        says: "`cniVersion`: The same version supplied on input",
        levels: MUST,
        test: version,
        ..CASE
    },
    Case {
        id: "result/container-interface",
        section: "5, ADD Success",
        says: "`interfaces`: An array of all interfaces created by the attachment",
        levels: MUST,
        test: container_interface,
        ..CASE
    },
    Case {
        id: "result/host-interfaces",
        section: "5, ADD Success",
        says: "An array of all interfaces created by the attachment, including any host-level interfaces",
        levels: MUST_SINCE_1_0,
        test: host_interfaces,
        ..CASE
    },
    Case {
        id: "result/sandbox",
        section: "5, ADD Success",
        says: "For interfaces created inside the container, this should be the value passed via `CNI_NETNS`",
        levels: SHOULD_SINCE_1_0,
        test: sandbox,
        ..CASE
    },
    Case {
        id: "result/no-sandbox-on-host",
        section: "5, ADD Success",
        says: "`sandbox`: The isolation domain reference for the interface, or empty if on the host",
        levels: MUST,
        test: no_sandbox_on_host,
        ..CASE
    },
    Case {
        id: "result/mac",
        section: "5, ADD Success",
        says: "`mac`: The hardware address of the interface (if applicable)",
        levels: MUST,
        test: mac,
        ..CASE
    },
    Case {
        id: "result/mtu",
        section: "5, ADD Success",
        says: "`mtu`: The MTU of the interface (if applicable)",
        levels: MUST_SINCE_1_1,
        test: mtu,
        ..CASE
    },
    Case {
        id: "result/ips-form",
        section: "5, ADD Success",
        says: "`address`: an IP address in CIDR notation; `gateway`: the default gateway for this subnet",
        levels: MUST,
        test: ips_form,
        ..CASE
    },
    Case {
        id: "result/ips-version",
        section: "Well-known Structures, IPs (0.4)",
        says: "`version` (string): either \"4\" or \"6\" and corresponds to the IP version of the addresses in the entry",
        levels: MUST,
        until: Some(Version::V0_4_0),
        test: ips_version,
        ..CASE
    },
    Case {
        id: "result/ips-interface",
        section: "5, ADD Success",
        says: "`interface`: the index into the `interfaces` list indicating which interface this IP configuration should be applied to",
        levels: MUST,
        test: ips_interface,
        ..CASE
    },
    Case {
        id: "result/ips-assigned",
        section: "5, ADD Success",
        says: "`ips`: IPs assigned by this attachment",
        levels: MUST,
        test: ips_assigned,
        ..CASE
    },
    Case {
        id: "result/ips-complete",
        section: "5, ADD Success",
        says: "`ips`: IPs assigned by this attachment",
        levels: MUST,
        test: ips_complete,
        ..CASE
    },
    Case {
        id: "result/routes-form",
        section: "5, ADD Success",
        says: "`dst`: The destination of the route, in CIDR notation; `gw`: The next hop address",
        levels: MUST,
        test: routes_form,
        ..CASE
    },
    Case {
        id: "result/routes-made",
        section: "5, ADD Success",
        says: "`routes`: Routes created by this attachment",
        levels: MUST,
        test: routes_made,
        ..CASE
    },
    Case {
        id: "result/dns-form",
        section: "5, ADD Success",
        says: "`dns`: a dictionary consisting of DNS configuration information",
        levels: MUST,
        test: dns_form,
        ..CASE
    },
];

fn version(bench: &Bench<'_>) -> Held {
    let result = bench.attach()?.result;
    require(result["cniVersion"] == bench.version.as_str(), || {
        format!(
            "asked in {}, it answered in {}",
            bench.version, result["cniVersion"]
        )
    })
}

fn container_interface(bench: &Bench<'_>) -> Held {
    own_interface(&bench.attach()?).map(drop)
}

fn host_interfaces(bench: &Bench<'_>) -> Held {
    let before = bench.footprint()?;
    let attached = bench.attach()?;
    let now = bench.footprint()?;
    let listed: Vec<&str> = members(&attached.result["interfaces"])
        .iter()
        .filter(|interface| !is_in_sandbox(interface))
        .filter_map(|interface| interface["name"].as_str())
        .collect();
    for link in now.links_beyond(&before) {
        require(listed.contains(&link.as_str()), || {
            format!("ADD made {link} on the host, and the result lists {listed:?} there")
        })?;
    }
    let there = crate::ip::links()?;
    for name in listed {
        require(there.iter().any(|link| link.name == name), || {
            format!("the result lists {name}, which the host does not have")
        })?;
    }
    Ok(())
}

fn sandbox(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let sandbox = &own_interface(&attached)?.1["sandbox"];
    let netns = attached.container.netns.to_string_lossy();
    require(*sandbox == *netns, || {
        format!("sandbox is {sandbox}, and CNI_NETNS was {netns}")
    })
}

fn no_sandbox_on_host(bench: &Bench<'_>) -> Held {
    let before = bench.footprint()?;
    let attached = bench.attach()?;
    let made = bench.footprint()?.links_beyond(&before);
    if made.is_empty() {
        return not_applicable("it makes no link on the host");
    }
    for interface in members(&attached.result["interfaces"]) {
        let name = interface["name"].as_str().unwrap_or_default();
        let is_on_host = made.iter().any(|made| made == name);
        require(!is_on_host || !is_in_sandbox(interface), || {
            format!(
                "{name} is on the host, and listed in sandbox {}",
                interface["sandbox"]
            )
        })?;
    }
    Ok(())
}

fn mac(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let told = &own_interface(&attached)?.1["mac"];
    let seen = own_link(&attached)?.mac;
    let is_same = told
        .as_str()
        .is_some_and(|told| told.eq_ignore_ascii_case(&seen));
    require(is_same, || {
        format!("mac is {told}, and {IFNAME} has {seen}")
    })
}

fn mtu(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let told = &own_interface(&attached)?.1["mtu"];
    let seen = own_link(&attached)?.mtu;
    require(*told == seen, || {
        format!("mtu is {told}, and {IFNAME} has {seen}")
    })
}

fn ips_form(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    for ip in ips(&attached)? {
        let text = ip["address"].as_str().unwrap_or_default();
        let Ok(address) = text.parse::<IpNet>() else {
            return broken(format!("address is {}, not CIDR notation", ip["address"]));
        };
        let gateway = match &ip["gateway"] {
            Value::Null => continue,
            gateway => gateway,
        };
        let parsed: Option<IpAddr> = gateway.as_str().and_then(|text| text.parse().ok());
        let fits = parsed.is_some_and(|parsed| parsed.is_ipv4() == address.addr().is_ipv4());
        require(fits, || {
            format!("gateway of {address} is {gateway}, not an address of its family")
        })?;
    }
    Ok(())
}

fn ips_version(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    for ip in ips(&attached)? {
        let text = ip["address"].as_str().unwrap_or_default();
        let family = if text.contains(':') { "6" } else { "4" };
        require(ip["version"] == family, || {
            format!("version of {text} is {}, not \"{family}\"", ip["version"])
        })?;
    }
    Ok(())
}

fn ips_interface(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let interfaces = members(&attached.result["interfaces"]).len();
    let own = own_interface(&attached)?.0;
    let assigned = own_link(&attached)?.addresses;
    for ip in ips(&attached)? {
        let index = &ip["interface"];
        let is_index = index.as_u64().is_some_and(|it| it < interfaces as u64);
        require(index.is_null() || is_index, || {
            format!("interface is {index}, and there are {interfaces}")
        })?;
        let is_own = address(ip).is_some_and(|address| assigned.contains(&address));
        require(!is_own || *index == own, || {
            let address = &ip["address"];
            format!("{address} is on {IFNAME}, interface {own}, and listed with {index}")
        })?;
    }
    Ok(())
}

fn ips_assigned(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let own = own_interface(&attached)?.0;
    let assigned = own_link(&attached)?.addresses;
    for ip in ips(&attached)?.iter().filter(|ip| ip["interface"] == own) {
        let is_there = address(ip).is_some_and(|address| assigned.contains(&address));
        require(is_there, || {
            format!("{} is listed, and {IFNAME} has {assigned:?}", ip["address"])
        })?;
    }
    Ok(())
}

fn ips_complete(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let listed: Vec<IpNet> = members(&attached.result["ips"])
        .iter()
        .filter_map(address)
        .collect();
    for assigned in own_link(&attached)?.addresses {
        require(listed.contains(&assigned), || {
            format!("{IFNAME} has {assigned}, and the result lists {listed:?}")
        })?;
    }
    Ok(())
}

fn routes_form(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    for route in routes(&attached)? {
        let dst = route["dst"].as_str().unwrap_or_default();
        let Ok(dst) = dst.parse::<IpNet>() else {
            return broken(format!("dst is {}, not CIDR notation", route["dst"]));
        };
        let gw = match &route["gw"] {
            Value::Null => continue,
            gw => gw,
        };
        let parsed: Option<IpAddr> = gw.as_str().and_then(|text| text.parse().ok());
        let fits = parsed.is_some_and(|parsed| parsed.is_ipv4() == dst.addr().is_ipv4());
        require(fits, || {
            format!("gw of {dst} is {gw}, not an address of its family")
        })?;
    }
    Ok(())
}

fn routes_made(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let made = attached.container.routes()?;
    for route in routes(&attached)? {
        let dst = route["dst"].as_str().and_then(network);
        let gw: Option<IpAddr> = route["gw"].as_str().and_then(|gw| gw.parse().ok());
        let is_there = made.iter().any(|it| {
            Some(it.dst.trunc()) == dst.map(|dst| dst.trunc()) && (gw.is_none() || it.gw == gw)
        });
        require(is_there, || {
            let made: Vec<_> = made.iter().map(|it| it.dst.to_string()).collect();
            format!(
                "{route} is listed, and the container has {}",
                made.join(", ")
            )
        })?;
    }
    Ok(())
}

fn dns_form(bench: &Bench<'_>) -> Held {
    let result = bench.attach()?.result;
    let dns = match &result["dns"] {
        Value::Null => return Ok(()),
        Value::Object(dns) => dns,
        other => return broken(format!("dns is {other}, not a dictionary")),
    };
    for (member, value) in dns {
        let fits = match member.as_str() {
            "nameservers" | "search" | "options" => value
                .as_array()
                .is_some_and(|all| all.iter().all(Value::is_string)),
            "domain" => value.is_string(),
            _ => true,
        };
        require(fits, || format!("dns.{member} is {value}"))?;
    }
    Ok(())
}

/// The attachment's own interface in the result, and its index.
fn own_interface(attached: &Attached) -> Result<(u64, &Value), Verdict> {
    let interfaces = members(&attached.result["interfaces"]);
    let own = interfaces
        .iter()
        .zip(0..)
        .find(|(interface, _)| interface["name"] == IFNAME && is_in_sandbox(interface));
    match own {
        Some((interface, index)) => Ok((index, interface)),
        None => {
            let listed = &attached.result["interfaces"];
            broken(format!(
                "interfaces lists no {IFNAME} with a sandbox: {listed}"
            ))
        }
    }
}

fn own_link(attached: &Attached) -> Result<Link, Verdict> {
    match attached.container.link(&attached.ifname)? {
        Some(link) => Ok(link),
        None => broken(format!("there is no {} in the container", attached.ifname)),
    }
}

fn ips(attached: &Attached) -> Result<&[Value], Verdict> {
    match members(&attached.result["ips"]) {
        [] => not_applicable("its result has no ips"),
        ips => Ok(ips),
    }
}

fn routes(attached: &Attached) -> Result<&[Value], Verdict> {
    match members(&attached.result["routes"]) {
        [] => not_applicable("its result has no routes"),
        routes => Ok(routes),
    }
}

fn address(ip: &Value) -> Option<IpNet> {
    ip["address"].as_str()?.parse().ok()
}

fn is_in_sandbox(interface: &Value) -> bool {
    let sandbox = interface["sandbox"].as_str();
    sandbox.is_some_and(|sandbox| !sandbox.is_empty())
}
