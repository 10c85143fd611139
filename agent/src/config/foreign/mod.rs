//! Converts the configuration of ovn-kubernetes and MicroShift into podwire's own settings.
//!
//! A node that migrates has their files, flags and variables already. They all leave here as a
//! [`Layer`] of podwire's own keys, so that no other module knows them. [`NAMES`] is the one table
//! of their names.

mod files;
mod flags;
mod ini;

pub(super) use files::{microshift, ovn_k8s};
pub use flags::command_line;
pub(super) use flags::{Caller, OVNKUBE, add as add_flags, layers as flag_layers};

use itertools::Itertools as _;

use super::layers::{Given, Layer, Origin};
use super::usual::NETWORK_PLUGIN_NAMES;

/// A setting of ovn-kubernetes, and its meaning for podwire. A name that it lacks is empty; a flag
/// that podwire has under the same name is left out.
struct Name {
    flag: &'static str,
    /// In the file.
    section: &'static str,
    key: &'static str,
    variable: &'static str,
    meaning: Meaning,
}

#[derive(Clone, Copy)]
enum Meaning {
    /// This setting of podwire's.
    Setting(&'static str),
    /// The MTU; Go's parser of the file accepts hexadecimal numbers too.
    Mtu,
    /// The log filter, as a number.
    LogLevel,
    /// The plugin's name, which must be one of podwire's: the agent serves it under each, so there
    /// is nothing to set.
    Plugin,
    /// The node's name; it makes ovnkube run as a node.
    Node,
    /// The name of the node to clean up.
    CleanUp,
    /// A setting of the node role; the agent has none, for this reason.
    Role(&'static str, &'static str),
    /// The pod networks of all nodes, each followed by the prefix length of a node's part.
    ClusterSubnets,
    /// A key of ovn-controller, which the node role writes.
    OvnOption(&'static str),
    /// The values that the node role accepts, because it always behaves that way; and why the agent
    /// refuses it.
    Fixed(&'static [&'static str], &'static str),
    /// podwire does not have it, for this reason: refused as a flag, and ignored in a file, which
    /// the whole cluster shares.
    NotOurs(&'static str),
}

use Meaning::{
    CleanUp, ClusterSubnets, Fixed, LogLevel, Mtu, Node, NotOurs, OvnOption, Plugin, Role, Setting,
};

const CONTROL_PLANE: &str = "the agent runs on nodes; the control plane (network controller, \
                             address management) is podwire-controller or ovnkube";
const NORTHBOUND: &str = "the control plane writes the northbound database; a node uses only the \
                          southbound database";
const GATEWAY: &str =
    "`podwire node` or ovnkube sets up a node's gateway and services; the agent wires pods";
const SERVER: &str = "the control plane serves the databases";

const REMOVE_NODE: &str = "the control plane removes a node from the cluster; run ovnkube for that";
const CLEANUP_NODE: &str = "this is `podwire uninstall --pods` for the pods' ports and `podwire \
                            node cleanup` for the rest";
const SUBNETS: &str =
    "pods get addresses from the controller's annotations, and in plain mode from --subnet";
const CONNTRACK: &str = "it is for flows of a gateway on the NIC, and podwire installs none";
const CONTROLLER: &str =
    "`podwire node` or ovnkube writes ovn-controller's settings; the agent wires pods";
const BY_ROUTES: &str =
    "pods' traffic leaves by the host's own routes, which podwire does not change";
/// The value of a flag without one.
const TRUE: &str = "true";

/// All keys of this section of the file are for the cluster.
const CLUSTERS_SECTION: &str = "ovnnorth";

const fn name(
    flag: &'static str,
    section: &'static str,
    key: &'static str,
    variable: &'static str,
    meaning: Meaning,
) -> Name {
    Name {
        flag,
        section,
        key,
        variable,
        meaning,
    }
}

/// A key of ovn-controller with the same name as flag and in the file.
const fn tuned(flag: &'static str, key: &'static str) -> Name {
    name(flag, "default", flag, "", OvnOption(key))
}

/// One row each, so that it reads as a table.
#[rustfmt::skip]
const NAMES: [Name; 51] = [
    name("init-node", "", "", "", Node),
    name("", "default", "mtu", "", Mtu),
    name("k8s-kubeconfig", "kubernetes", "kubeconfig", "KUBECONFIG", Setting("kubeconfig")),
    name("", "kubernetes", "apiserver", "K8S_APISERVER", Setting("k8s-apiserver")),
    name("", "kubernetes", "cacert", "K8S_CACERT", Setting("k8s-cacert")),
    name("", "kubernetes", "token", "K8S_TOKEN", Setting("k8s-token")),
    name("", "kubernetes", "tokenfile", "", Setting("k8s-token-file")),
    name("", "kubernetes", "token-file", "", Setting("k8s-token-file")),
    name("loglevel", "logging", "loglevel", "", LogLevel),
    name("logfile", "logging", "logfile", "", Setting("log-file")),
    name("", "cni", "conf-dir", "", Setting("cni-conf-dir")),
    name("cni-plugin", "cni", "plugin", "", Plugin),
    name("sb-address", "ovnsouth", "address", "", Setting("ovn-remote")),
    name("sb-client-privkey", "ovnsouth", "client-privkey", "", Setting("ovn-private-key")),
    name("sb-client-cert", "ovnsouth", "client-cert", "", Setting("ovn-certificate")),
    name("sb-client-cacert", "ovnsouth", "client-cacert", "", Setting("ovn-ca-cert")),
    name("init-master", "", "", "", NotOurs(CONTROL_PLANE)),
    name("init-cluster-manager", "", "", "", NotOurs(CONTROL_PLANE)),
    name("init-ovnkube-controller", "", "", "", NotOurs(CONTROL_PLANE)),
    name("remove-node", "", "", "", NotOurs(REMOVE_NODE)),
    name("cleanup-node", "", "", "", CleanUp),
    name("cluster-subnets", "default", "cluster-subnets", "", ClusterSubnets),
    name("cluster-subnet", "", "", "", ClusterSubnets),
    name("k8s-service-cidrs", "kubernetes", "service-cidrs", "", Role("service-cidrs", GATEWAY)),
    name("k8s-service-cidr", "kubernetes", "service-cidr", "", Role("service-cidrs", GATEWAY)),
    name("service-cluster-ip-range", "", "", "", Role("service-cidrs", GATEWAY)),
    name("encap-ip", "default", "encap-ip", "", Role("encap-ip", CONTROLLER)),
    name("encap-port", "default", "encap-port", "", Role("encap-port", CONTROLLER)),
    name("encap-type", "default", "encap-type", "", Fixed(&["geneve"], CONTROLLER)),
    tuned("inactivity-probe", "ovn-remote-probe-interval"),
    tuned("openflow-probe", "ovn-openflow-probe-interval"),
    tuned("monitor-all", "ovn-monitor-all"),
    tuned("ofctrl-wait-before-clear", "ovn-ofctrl-wait-before-clear"),
    tuned("enable-lflow-cache", "ovn-enable-lflow-cache"),
    tuned("lflow-cache-limit", "ovn-limit-lflow-cache"),
    tuned("lflow-cache-limit-kb", "ovn-memlimit-lflow-cache-kb"),
    name("conntrack-zone", "default", "conntrack-zone", "", NotOurs(CONNTRACK)),
    name("nb-address", "ovnnorth", "address", "", NotOurs(NORTHBOUND)),
    name("nb-client-privkey", "ovnnorth", "client-privkey", "", NotOurs(NORTHBOUND)),
    name("nb-client-cert", "ovnnorth", "client-cert", "", NotOurs(NORTHBOUND)),
    name("nb-client-cacert", "ovnnorth", "client-cacert", "", NotOurs(NORTHBOUND)),
    name("gateway-mode", "gateway", "mode", "", Fixed(&["local"], GATEWAY)),
    name("gateway-init", "", "", "", Fixed(&[TRUE], GATEWAY)),
    name("init-gateways", "", "", "", Fixed(&[TRUE], GATEWAY)),
    name("nodeport", "gateway", "nodeport", "", Fixed(&[TRUE], GATEWAY)),
    name("gateway-interface", "gateway", "interface", "", Role("interface", GATEWAY)),
    name("gateway-nexthop", "gateway", "next-hop", "", NotOurs(BY_ROUTES)),
    name("gateway-vlanid", "gateway", "vlan-id", "", NotOurs(BY_ROUTES)),
    name("", "ovnsouth", "server-privkey", "", NotOurs(SERVER)),
    name("", "ovnsouth", "server-cert", "", NotOurs(SERVER)),
    name("", "ovnsouth", "server-cacert", "", NotOurs(SERVER)),
];

/// Those with a flag.
fn flags() -> impl Iterator<Item = &'static Name> {
    NAMES.iter().filter(|name| !name.flag.is_empty())
}

/// ovn-controller's keys that flags and file may set: each is a setting's key in the layers.
pub(super) fn ovn_options() -> impl Iterator<Item = &'static str> {
    NAMES.iter().filter_map(|name| match name.meaning {
        OvnOption(key) => Some(key),
        _ => None,
    })
}

/// The settings in its variables.
pub(super) fn variables(find: impl Fn(&str) -> Option<String>) -> Layer {
    let known = NAMES.iter().filter(|name| !name.variable.is_empty());
    let settings = known.filter_map(|name| match name.meaning {
        Setting(key) => {
            let origin = Origin::Variable(name.variable.to_owned());
            Some((key.to_owned(), Given::one(find(name.variable)?, origin)))
        }
        _ => None,
    });
    settings.collect()
}

impl Meaning {
    /// The setting's key, if it is a setting.
    fn key(self) -> Option<&'static str> {
        match self {
            Setting(key) => Some(key),
            Mtu => Some("mtu"),
            LogLevel => Some("log"),
            Node | CleanUp => Some("node-name"),
            Role(key, _) => Some(key),
            ClusterSubnets => Some("cluster-subnets"),
            OvnOption(key) => Some(key),
            Plugin | Fixed(..) | NotOurs(_) => None,
        }
    }

    /// Why the agent alone, or podwire at all, does not have it.
    fn refusal(self, caller: Caller) -> Option<&'static str> {
        match self {
            NotOurs(why) => Some(why),
            _ if caller == Caller::Ovnkube => None,
            Role(_, why) | Fixed(_, why) => Some(why),
            ClusterSubnets => Some(SUBNETS),
            OvnOption(_) => Some(CONTROLLER),
            CleanUp => Some(CLEANUP_NODE),
            Setting(_) | Mtu | LogLevel | Plugin | Node => None,
        }
    }

    /// The setting's value; the value of anything else is only checked.
    fn convert(self, value: &str) -> Result<String, String> {
        match self {
            Mtu => Ok(decimal(value)),
            LogLevel => log_filter(value),
            Plugin if !NETWORK_PLUGIN_NAMES.contains(&value) => Err(format!(
                "expected {}, and not {value:?}",
                NETWORK_PLUGIN_NAMES.join(" or ")
            )),
            Fixed(values, _) if !values.contains(&value) => Err(format!(
                "expected {}, which is the only value that podwire supports, not {value:?}",
                values.join(" or ")
            )),
            ClusterSubnets => Ok(value.split(',').map(network).join(",")),
            OvnOption(_) => Ok(decimal(value)),
            Plugin | Setting(_) | Node | CleanUp | Role(..) | Fixed(..) | NotOurs(_) => {
                Ok(value.to_owned())
            }
        }
    }
}

/// A network without the prefix length of a node's part, which follows after a second slash.
fn network(text: &str) -> &str {
    let text = text.trim();
    let second = text.match_indices('/').nth(1);
    second.map_or(text, |(at, _)| &text[..at])
}

/// gcfg reads numbers that begin with 0x as hexadecimal.
fn decimal(text: &str) -> String {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map_or_else(|| text.to_owned(), |number| number.to_string())
}

/// ovnkube's level as a log filter.
fn log_filter(level: &str) -> Result<String, String> {
    let filter = match level.trim().parse() {
        // 1 is for errors that end the program; podwire has nothing above an error.
        Ok(1 | 2) => "error",
        Ok(3) => "warn",
        Ok(4) => "info",
        Ok(5) => "debug",
        Ok(6..=10) => "trace",
        Ok(0 | 11u8..) | Err(_) => {
            return Err(format!(
                "expected 1 (fatal), 2 (error), 3 (warn), 4 (info) or 5 (debug), and not {level:?}"
            ));
        }
    };
    Ok(filter.to_owned())
}

#[cfg(test)]
mod tests;
