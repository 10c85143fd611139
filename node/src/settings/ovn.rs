//! ovn-controller's settings in the flags.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::{DataBridge, Mode, SettingsError, bad};
use crate::overlap::not_for_pods;
use crate::{GATEWAY, TUNNEL};

/// The format of a key's value.
#[derive(Clone, Copy)]
enum Kind {
    Switch,
    Number,
    Text,
}

use Kind::{Number, Switch, Text};

/// The keys of `external_ids` that tune ovn-controller (ovn-controller(8), of 23.03 and newer),
/// except those with a flag of their own.
const OPTIONS: [(&str, Kind); 20] = [
    ("ovn-bridge-remote-probe-interval", Number),
    ("ovn-chassis-mac-mappings", Text),
    ("ovn-cms-options", Text),
    ("ovn-enable-flow-based-tunnels", Switch),
    ("ovn-enable-lflow-cache", Switch),
    ("ovn-encap-csum", Switch),
    ("ovn-encap-df_default", Switch),
    ("ovn-encap-tos", Text),
    ("ovn-is-interconn", Switch),
    ("ovn-limit-lflow-cache", Number),
    ("ovn-match-northd-version", Switch),
    ("ovn-memlimit-lflow-cache-kb", Number),
    ("ovn-monitor-all", Switch),
    ("ovn-ofctrl-wait-before-clear", Number),
    ("ovn-openflow-probe-interval", Number),
    ("ovn-remote-probe-interval", Number),
    ("ovn-set-local-ip", Switch),
    ("ovn-transport-zones", Text),
    ("ovn-trim-limit-lflow-cache", Number),
    ("ovn-trim-timeout-ms", Number),
];

/// Addresses separated by commas, each once.
pub(super) fn encap_ips(text: Option<&str>) -> Result<Vec<IpAddr>, SettingsError> {
    let mut ips = Vec::new();
    for part in text.into_iter().flat_map(|text| text.split(',')) {
        let problem = "expected IP addresses of this machine, as in 192.0.2.11";
        let ip = part.trim().parse();
        let ip: IpAddr = ip.map_err(|_| bad("--encap-ip", part, problem))?;
        if let Some(special) = not_for_pods(&ip.into()) {
            let problem = format!("no tunnel can end there, {special}: {problem}");
            return Err(bad("--encap-ip", part, problem));
        }
        if ips.contains(&ip) {
            return Err(bad("--encap-ip", part, "it is named twice"));
        }
        ips.push(ip);
    }
    Ok(ips)
}

/// Bridges by physical network.
pub(super) fn bridge_mappings(
    texts: &[String],
    integration: &str,
) -> Result<BTreeMap<String, String>, SettingsError> {
    let flag = "--bridge-mapping";
    let mut mappings = BTreeMap::new();
    // ovn-kubernetes' own lists use commas.
    let texts = texts.iter().flat_map(|text| text.split(','));
    for text in texts.filter(|text| !text.is_empty()) {
        let Some((network, bridge)) = text
            .split_once(':')
            .filter(|(network, bridge)| !network.is_empty() && !bridge.is_empty())
        else {
            let problem = "expected a network and a bridge, as in physnet1:br-data";
            return Err(bad(flag, text, problem));
        };
        if bridge == integration {
            let problem = "the integration bridge has no way to a physical network: name another";
            return Err(bad(flag, text, problem));
        }
        if let Some(other) = mappings.insert(network.to_owned(), bridge.to_owned()) {
            return Err(bad(
                flag,
                text,
                format!("the network is on {other} already"),
            ));
        }
    }
    Ok(mappings)
}

/// Bridges with their NICs.
pub(super) fn data_bridges(
    texts: &[String],
    integration: &str,
    mode: Mode,
) -> Result<Vec<DataBridge>, SettingsError> {
    let flag = "--data-bridge";
    let mut bridges: Vec<DataBridge> = Vec::new();
    for text in texts {
        let parts: Vec<&str> = text.split(':').collect();
        let (name, nic, network) = match parts[..] {
            [name, nic] => (name, nic, None),
            [name, nic, network] => (name, nic, Some(network)),
            _ => ("", "", None),
        };
        // linux/if.h: IFNAMSIZ, with the end.
        let is_link = |it: &str| {
            let is_graphic = it.chars().all(|it| it.is_ascii_graphic() && it != '/');
            !it.is_empty() && it.len() < 16 && is_graphic
        };
        let is_network = |it: &str| !it.is_empty() && !it.contains(',');
        if !is_link(name) || !is_link(nic) || !network.is_none_or(is_network) {
            let problem = "expected a bridge, a NIC and perhaps a physical network, as in \
                           br-data:eth1:physnet1";
            return Err(bad(flag, text, problem));
        }
        if [integration, GATEWAY, TUNNEL].contains(&name) || name == nic {
            return Err(bad(
                flag,
                text,
                format!("{name} is another link: choose another name"),
            ));
        }
        if mode == Mode::Plain && network.is_some() {
            let problem = "the physical network is for OVN: omit it, or use --mode ovn";
            return Err(bad(flag, text, problem));
        }
        if bridges.iter().any(|it| it.name == name || it.nic == nic) {
            return Err(bad(flag, text, "the bridge or the NIC is named twice"));
        }
        bridges.push(DataBridge {
            name: name.to_owned(),
            nic: nic.to_owned(),
            network: network.map(str::to_owned),
            by: (flag, text.clone()),
        });
    }
    Ok(bridges)
}

/// Adds the physical networks of bridges to those by physical network.
pub(super) fn map(
    bridges: &[DataBridge],
    mappings: &mut BTreeMap<String, String>,
) -> Result<(), SettingsError> {
    for bridge in bridges {
        let Some(network) = &bridge.network else {
            continue;
        };
        let other = mappings.insert(network.clone(), bridge.name.clone());
        if let Some(other) = other.filter(|other| *other != bridge.name) {
            let problem = format!("physical network {network} is on {other} already");
            let (setting, value) = &bridge.by;
            return Err(bad(setting, value, problem));
        }
    }
    Ok(())
}

/// Keys with their values; if a key occurs twice, the last one counts.
pub(super) fn options(texts: &[String]) -> Result<BTreeMap<String, String>, SettingsError> {
    let flag = "--ovn-option";
    let mut options = BTreeMap::new();
    for text in texts {
        let (key, value) = text.split_once('=').unwrap_or((text, ""));
        let Some((_, kind)) = OPTIONS.iter().find(|(known, _)| *known == key) else {
            let known: Vec<&str> = OPTIONS.iter().map(|(key, _)| *key).collect();
            let problem = format!("expected KEY=VALUE with one of {}", known.join(", "));
            return Err(bad(flag, text, problem));
        };
        let (is_one, expected) = match kind {
            Switch => (["true", "false"].contains(&value), "true or false"),
            Number => (value.parse::<u32>().is_ok(), "a whole number"),
            Text => (!value.is_empty(), "a value"),
        };
        if !is_one {
            return Err(bad(
                flag,
                text,
                format!("expected {expected} behind {key}="),
            ));
        }
        options.insert(key.to_owned(), value.to_owned());
    }
    Ok(options)
}
