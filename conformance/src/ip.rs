//! Links, addresses and routes of the calling thread's network namespace, as iproute2 tells them.

use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use crate::exec::tool;
use crate::trouble::{Step, Trouble};

/// A link with its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) name: String,
    pub(crate) mac: String,
    pub(crate) mtu: u64,
    /// Without IPv6 link-local ones, which the kernel gives by itself.
    pub(crate) addresses: Vec<IpNet>,
}

/// A route that somebody asked for, or that came with an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    pub(crate) dst: IpNet,
    pub(crate) gw: Option<IpAddr>,
    pub(crate) dev: String,
    pub(crate) table: String,
    /// Made by the kernel for an address.
    pub(crate) is_kernels: bool,
}

pub(crate) fn links() -> Result<Vec<Link>, Trouble> {
    Ok(list(&["-json", "address", "show"])?
        .iter()
        .filter(|shown| shown["ifname"].is_string())
        .map(link)
        .collect())
}

/// Routes of every table, but for the kernel's own tables and link-local and multicast ranges.
pub(crate) fn routes() -> Result<Vec<Route>, Trouble> {
    let mut routes = Vec::new();
    for family in ["-4", "-6"] {
        let shown = list(&["-json", family, "route", "show", "table", "all"])?;
        routes.extend(shown.iter().filter_map(|shown| route(shown, family)));
    }
    Ok(routes)
}

/// Runs `ip` for its effect.
pub(crate) fn ip(arguments: &[&str]) -> Result<(), Trouble> {
    tool("ip", arguments).map(drop)
}

fn link(shown: &Value) -> Link {
    let addresses = shown["addr_info"].as_array().into_iter().flatten();
    Link {
        name: text(&shown["ifname"]),
        mac: text(&shown["address"]),
        mtu: shown["mtu"].as_u64().unwrap_or_default(),
        addresses: addresses.filter_map(address).collect(),
    }
}

fn address(shown: &Value) -> Option<IpNet> {
    let address: IpAddr = shown["local"].as_str()?.parse().ok()?;
    if matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
        return None;
    }
    let length = u8::try_from(shown["prefixlen"].as_u64()?).ok()?;
    IpNet::new(address, length).ok()
}

fn route(shown: &Value, family: &str) -> Option<Route> {
    if shown["type"].as_str().is_some_and(|kind| kind != "unicast") {
        return None;
    }
    let dst = match (shown["dst"].as_str()?, family) {
        ("default", "-4") => "0.0.0.0/0".parse().ok()?,
        ("default", _) => "::/0".parse().ok()?,
        (net, _) => network(net)?,
    };
    let is_of_every_link = match dst.addr() {
        IpAddr::V6(v6) => v6.is_unicast_link_local() || v6.is_multicast(),
        IpAddr::V4(_) => false,
    };
    if is_of_every_link {
        return None;
    }
    Some(Route {
        dst,
        gw: shown["gateway"].as_str().and_then(|gw| gw.parse().ok()),
        dev: text(&shown["dev"]),
        table: shown["table"].as_str().unwrap_or("main").to_owned(),
        is_kernels: shown["protocol"] == "kernel",
    })
}

/// A network with its prefix length, or a host without.
pub(crate) fn network(text: &str) -> Option<IpNet> {
    text.parse::<IpNet>()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

fn list(arguments: &[&str]) -> Result<Vec<Value>, Trouble> {
    let printed = tool("ip", arguments)?;
    // Where there is nothing to list, ip prints nothing at all.
    if printed.trim().is_empty() {
        return Ok(Vec::new());
    }
    serde_json::from_str(&printed).step(|| format!("read the output of ip {}", arguments.join(" ")))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
