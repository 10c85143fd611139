//! The addresses, routes and DNS of a result.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::{own_interface, own_link};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Held, Verdict, broken, not_applicable, require};
use crate::cases::members;
use crate::ip::network;

pub(super) fn ips_form(bench: &Bench<'_>) -> Held {
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

pub(super) fn ips_version(bench: &Bench<'_>) -> Held {
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

pub(super) fn ips_interface(bench: &Bench<'_>) -> Held {
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

pub(super) fn ips_assigned(bench: &Bench<'_>) -> Held {
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

pub(super) fn ips_complete(bench: &Bench<'_>) -> Held {
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

pub(super) fn routes_form(bench: &Bench<'_>) -> Held {
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

pub(super) fn routes_made(bench: &Bench<'_>) -> Held {
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

pub(super) fn dns_form(bench: &Bench<'_>) -> Held {
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

pub(super) fn abbreviated(bench: &Bench<'_>) -> Held {
    let result = bench.attach()?.result;
    require(members(&result["interfaces"]).is_empty(), || {
        format!("it lists interfaces: {}", result["interfaces"])
    })?;
    for ip in members(&result["ips"]) {
        require(ip["interface"].is_null(), || {
            format!("it has an interface: {ip}")
        })?;
    }
    Ok(())
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
