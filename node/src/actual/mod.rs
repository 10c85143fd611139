//! The machine's actual state: the part that a plan is about.

mod dump;
mod firewall;
mod in_use;
mod kernel;
mod switch;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::Path;

use ipnet::IpNet;
use podwire_ovs::client::{Client, TlsKeys};
use podwire_ovs::value::Uuid;

use crate::firewalld::{Firewalld, FirewalldSeen, Rule};
use crate::nft::NftError;
use crate::overlap::InUse;
use crate::southbound::EndSeen;

pub(crate) use dump::destination;
pub(crate) use switch::{MAPPINGS, tables};

/// The units of Open vSwitch's daemons.
pub(crate) const UNITS: [&str; 2] = ["ovs-vswitchd.service", "ovsdb-server.service"];

/// podwire's keys of the switch, each with its former value; None if it did not exist.
pub(crate) type Owned = BTreeMap<String, Option<String>>;

/// The actual state.
#[derive(Debug, Clone, Default)]
pub(crate) struct Actual {
    /// podwire's part of Open vSwitch's database.
    pub(crate) switch: SwitchSeen,
    /// Number of pods' ports.
    pub(crate) pods: usize,
    /// Links by name.
    pub(crate) links: BTreeMap<String, LinkSeen>,
    pub(crate) addresses: Vec<AddressSeen>,
    /// Those of podwire's links.
    pub(crate) neighbours: Vec<NeighbourSeen>,
    /// Those in table main, and podwire's in any table.
    pub(crate) routes: Vec<RouteSeen>,
    /// What the machine needs for itself.
    pub(crate) in_use: Vec<InUse>,
    /// The link of the default route.
    pub(crate) default_link: Option<String>,
    /// Whether the kernel has IPv6.
    pub(crate) has_ipv6: bool,
    /// Whether it has IPv6 forwarding per interface (6.17).
    pub(crate) force_forwarding: bool,
    /// Whether the uplink accepts router advertisements (ip-sysctl.rst, accept_ra).
    pub(crate) accept_ra: Option<String>,
    /// Values below /proc/sys by path: those requested, if they exist.
    pub(crate) sysctls: BTreeMap<String, String>,
    /// The texts of Open vSwitch's units, by name.
    pub(crate) units: BTreeMap<String, String>,
    /// Files by path: those requested, if they exist.
    pub(crate) files: BTreeMap<String, String>,
    /// firewalld's state; None if it does not run.
    pub(crate) firewalld: Option<FirewalldSeen>,
    /// The nftables table; None if it does not exist.
    pub(crate) table: Option<TableSeen>,
    /// Whether the table of services exists.
    pub(crate) services: bool,
}

/// podwire's part of Open vSwitch's database.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct SwitchSeen {
    /// Whether the database answers; otherwise this is its last known state.
    pub(crate) answers: bool,
    /// The row of `Open_vSwitch`.
    pub(crate) root: Option<Uuid>,
    /// Its external_ids; the entries of its bridge mappings and its other_config, prefixed with
    /// [`MAPPING`] or [`CONFIG`].
    ///
    /// [`MAPPING`]: crate::MAPPING
    /// [`CONFIG`]: crate::CONFIG
    pub(crate) keys: BTreeMap<String, String>,
    /// Those that podwire set.
    pub(crate) owned: Owned,
    /// The content of /etc/openvswitch/system-id.conf, or else the key.
    pub(crate) system_id: Option<String>,
    /// Its TLS keys.
    pub(crate) ssl: Option<SslSeen>,
    /// Bridges by name.
    pub(crate) bridges: BTreeMap<String, BridgeSeen>,
    /// The tunnel ends of chassis in the southbound database; None if it does not answer or is not
    /// queried.
    pub(crate) ends: Option<Vec<EndSeen>>,
    /// The port with the management port's name.
    pub(crate) port: Option<PortSeen>,
    /// Ports on the tunnel bridge that have podwire's mark, by name.
    pub(crate) tunnels: BTreeMap<String, TunnelSeen>,
}

/// The row of `SSL`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SslSeen {
    pub(crate) uuid: Uuid,
    pub(crate) keys: TlsKeys,
    pub(crate) ours: bool,
}

/// A row of `Bridge` with its local port's `Interface`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BridgeSeen {
    pub(crate) uuid: Uuid,
    pub(crate) datapath: String,
    pub(crate) mac: Option<String>,
    pub(crate) local: Option<Uuid>,
    pub(crate) mtu_request: Option<u32>,
    pub(crate) ours: bool,
}

/// A row of `Port` with the `Interface` that is a tunnel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TunnelSeen {
    pub(crate) port: Uuid,
    pub(crate) interface: Uuid,
    pub(crate) remote: Option<String>,
    /// The node at the other end.
    pub(crate) node: String,
    pub(crate) protected: bool,
}

/// A row of `Port` with its `Interface`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PortSeen {
    pub(crate) uuid: Uuid,
    pub(crate) interface: Option<Uuid>,
    /// Its bridge.
    pub(crate) bridge: Option<(String, Uuid)>,
    pub(crate) kind: String,
    pub(crate) iface_id: Option<String>,
    pub(crate) mac: Option<String>,
    pub(crate) mtu_request: Option<u32>,
    /// podwire's mark: empty if podwire created it, otherwise the columns from before it was taken
    /// over.
    pub(crate) mark: Option<String>,
    /// ovs-vswitchd's error.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LinkSeen {
    pub(crate) index: u32,
    pub(crate) up: bool,
    pub(crate) mtu: u32,
    pub(crate) mac: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AddressSeen {
    pub(crate) link: String,
    pub(crate) address: IpNet,
    pub(crate) ours: bool,
    /// Of global scope.
    pub(crate) universe: bool,
    /// The same, and neither secondary nor temporary.
    pub(crate) global: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NeighbourSeen {
    pub(crate) link: String,
    pub(crate) ip: IpAddr,
    pub(crate) mac: Option<String>,
    pub(crate) permanent: bool,
    pub(crate) ours: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RouteSeen {
    pub(crate) destination: IpNet,
    pub(crate) via: Option<IpAddr>,
    pub(crate) link: Option<String>,
    pub(crate) source: Option<IpAddr>,
    pub(crate) ours: bool,
    /// The number of its origin, as `ip route` shows it after `proto`.
    pub(crate) protocol: u8,
    pub(crate) table: u32,
    pub(crate) metric: u32,
}

/// The nftables table, and whether that of services exists.
pub(crate) type Tables = (Option<TableSeen>, bool);

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TableSeen {
    /// Chains, each with its hook's type and name.
    pub(crate) chains: Vec<String>,
    /// Rules: chain and comment.
    pub(crate) rules: Vec<(String, String)>,
}

/// Why the machine's state can't be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("read the kernel's {what}: {source}")]
    Netlink {
        what: &'static str,
        source: rtnetlink::Error,
    },
    #[error(transparent)]
    Firewall(#[from] NftError),
}

impl Actual {
    /// Reads everything; the nftables tables unless they are known.
    pub(crate) async fn all(
        client: &Client,
        southbound: Option<&Client>,
        firewalld: Option<&Firewalld>,
        handle: &rtnetlink::Handle,
        interface: Option<&str>,
        tables: Option<Tables>,
    ) -> Result<Self, ReadError> {
        let mut actual = Self {
            switch: SwitchSeen::of(client, southbound),
            pods: switch::pods(client),
            ..Self::default()
        };
        actual.units = UNITS.iter().filter_map(|name| unit(name)).collect();
        actual.see_kernel(handle).await?;
        let uplink = interface.or(actual.default_link.as_deref());
        if let Some(firewalld) = firewalld {
            actual.firewalld = firewalld.look(uplink.unwrap_or_default()).await;
        }
        actual.accept_ra =
            uplink.and_then(|link| read_sysctl(&format!("net/ipv6/conf/{link}/accept_ra")).ok());
        let tables = match tables {
            Some(known) => known,
            None => firewall::tables().await?,
        };
        (actual.table, actual.services) = tables;
        Ok(actual)
    }

    /// A key of the switch that podwire did not set.
    pub(crate) fn key(&self, key: &str) -> Option<&str> {
        self.switch.keys.get(key).map(String::as_str)
    }

    /// Reads these values below /proc/sys.
    pub(crate) fn see_sysctls(&mut self, paths: &[&str]) {
        let paths = paths.iter().copied();
        let seen = paths.filter_map(|path| Some((path.to_owned(), read_sysctl(path).ok()?)));
        self.sysctls = seen.collect();
    }

    /// Queries firewalld for these rules.
    pub(crate) async fn see_rules(
        &mut self,
        firewalld: Option<&Firewalld>,
        rules: &BTreeSet<Rule>,
    ) {
        let (Some(firewalld), Some(seen)) = (firewalld, &mut self.firewalld) else {
            return;
        };
        for rule in rules.iter().filter(|_| seen.uplink_zone.is_some()) {
            match firewalld.zone_of(rule).await {
                Ok(Some(zone)) => drop(seen.rules.insert(rule.clone(), zone)),
                Ok(None) => {}
                Err(_) => return seen.uplink_zone = None,
            }
        }
    }

    /// Reads these files.
    pub(crate) fn see_files(&mut self, paths: Vec<String>) {
        let files = paths.into_iter();
        let seen =
            files.filter_map(|path| Some((path.clone(), std::fs::read_to_string(path).ok()?)));
        self.files = seen.collect();
    }
}

/// A unit's text (systemd.unit(5), unit file load path).
fn unit(name: &str) -> Option<(String, String)> {
    let directories = ["/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib"];
    let paths = directories.map(|directory| format!("{directory}/systemd/system/{name}"));
    let text = paths
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())?;
    Some((name.to_owned(), text))
}

/// Reads a value below /proc/sys of this process's network namespace.
pub(crate) fn read_sysctl(path: &str) -> io::Result<String> {
    let text = std::fs::read_to_string(Path::new("/proc/sys").join(path))?;
    Ok(text.trim().to_owned())
}

/// The values that the kernel writes along with one: those of every link along with `all`
/// (ip-sysctl.rst, conf/all/forwarding). The written one comes first.
pub(crate) fn written_with(path: &str) -> Vec<String> {
    let mut paths = vec![path.to_owned()];
    if path == "net/ipv6/conf/all/forwarding" {
        let links = std::fs::read_dir("/proc/sys/net/ipv6/conf").into_iter();
        let of_links = links.flatten().flatten().map(|entry| {
            let link = entry.file_name().to_string_lossy().into_owned();
            format!("net/ipv6/conf/{link}/forwarding")
        });
        paths.extend(of_links.filter(|other| other != path));
    }
    paths
}
