//! The bridge's profile: the NIC's, with the identity that its DHCP servers know.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use zbus::wire::Array;
use zbus::{OwnedVariant, Variant};

use super::{ID, Managed, Settings, UUID};

/// Of the section connection: what is about the network, and not about the link.
const KEPT: [&str; 5] = ["zone", "metered", "mdns", "llmnr", "dns-over-tls"];
/// Sections that are about the link, and stay with the NIC, which keeps what they have set.
const OF_NIC: [&str; 5] = ["connection", "802-3-ethernet", "ethtool", "user", "link"];
const OF_ADDRESSES: [&str; 3] = ["ipv4", "ipv6", "proxy"];
/// Where the bridge's profile has the NIC's: a key of its section user.
const OWN: &str = "podwire.profile";
/// The same as address-data and route-data, of which the two must not differ.
const OLD: [&str; 2] = ["addresses", "routes"];
/// Methods of a family for which a profile can't have addresses.
const WITHOUT: [&str; 3] = ["disabled", "ignore", "link-local"];
/// NM_SETTING_IP6_CONFIG_ADDR_GEN_MODE_EUI64, which goes with a token.
const EUI64: i32 = 0;
/// NM_SETTING_TUN_MODE_TAP: what a bridge of Open vSwitch's userspace datapath is.
const TAP: u32 = 2;

/// How the names of the files begin that netplan has written for it (netplan-generate(8)).
const NETPLANS: &str = "netplan-";

/// What stands in for a lease until NetworkManager has its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StandIns {
    pub(crate) addresses: Vec<IpNet>,
    /// Destination, gateway and metric.
    pub(crate) routes: Vec<(IpNet, Option<IpAddr>, u32)>,
}

/// A profile for a bridge.
#[derive(Debug)]
pub(crate) struct Told {
    settings: Settings,
    stand_ins: StandIns,
}

/// A setting that is a text.
pub(super) fn of(settings: &Settings, section: &str, key: &str) -> Option<String> {
    settings.get(section)?.get(key).and_then(text)
}

pub(super) fn text(value: &OwnedVariant) -> Option<String> {
    match &**value {
        Variant::Str(text) => Some(text.to_string()),
        _ => None,
    }
}

/// The UUID of the NIC's profile, from the bridge's.
pub(super) fn nic_uuid(settings: &Settings) -> Option<String> {
    let data = settings.get("user")?.get("data")?.clone();
    BTreeMap::<String, String>::try_from(data).ok()?.remove(OWN)
}

impl Managed {
    /// Why the link can't have a bridge that is configured as it.
    pub(super) fn refused(&self, link: &str, file: &str) -> Vec<String> {
        let settings = &self.settings;
        let mut reasons = Vec::new();
        let name = file.rsplit('/').next().unwrap_or_default();
        if name.starts_with(NETPLANS) {
            return vec![format!(
                "netplan has written {link}'s profile {} ({file}): `netplan apply` has \
                 NetworkManager forget that {link} is in a bridge, and configure it again; have \
                 netplan's renderer be networkd, or use a profile of NetworkManager's own",
                self.id
            )];
        }
        let has = |section: &str, key: &str| of(settings, section, key);
        let known = OF_NIC.iter().chain(&OF_ADDRESSES);
        let known: Vec<&str> = known.copied().collect();
        let others = settings.keys().filter(|it| !known.contains(&it.as_str()));
        reasons.extend(others.map(|name| format!("the section {name}")));
        let kind = has("connection", "type").unwrap_or_default();
        if kind != "802-3-ethernet" {
            reasons.push(format!("connection.type={kind}"));
        }
        for key in ["master", "controller"] {
            let master = has("connection", key);
            reasons.extend(master.map(|it| format!("connection.{key}={it}")));
        }
        let methods = [
            ("ipv4", ["auto", "manual", "disabled"].as_slice()),
            (
                "ipv6",
                &["auto", "dhcp", "manual", "link-local", "disabled"],
            ),
        ];
        for (section, can) in methods {
            let method = has(section, "method").unwrap_or_default();
            if !can.contains(&&*method) {
                reasons.push(format!("{section}.method={method}"));
            }
        }
        let of = |reason: String| {
            let id = &self.id;
            format!(
                "NetworkManager manages {link} by the profile {id}, which has no equivalent for a \
                 bridge: {reason}"
            )
        };
        reasons.into_iter().map(of).collect()
    }

    /// Why it can't configure a bridge as it does a link.
    pub(crate) fn reasons(&self, link: &str, stand_ins: &StandIns) -> Vec<String> {
        let mut reasons = self.reasons.clone();
        if stand_ins.identifiers().len() > 1 {
            reasons.push(format!(
                "the profile {} gives {link} addresses with several interface identifiers, which \
                 would be others on a bridge: set ipv6.addr-gen-mode to eui64, or a token",
                self.id
            ));
        }
        reasons
    }

    /// The profile of a bridge whose link is a tap device (`is_tap`) or of Open vSwitch.
    pub(crate) fn told(&self, bridge: &str, is_tap: bool, stand_ins: &StandIns) -> Told {
        let mut settings: Settings = OF_ADDRESSES
            .iter()
            .filter_map(|name| Some(((*name).to_owned(), self.settings.get(*name)?.clone())))
            .collect();
        let (kind, of_kind) = match is_tap {
            true => ("tun", BTreeMap::from([("mode".to_owned(), value(TAP))])),
            false => ("generic", BTreeMap::new()),
        };
        settings.insert(kind.to_owned(), of_kind);
        let own = self.settings.get("connection");
        let kept = KEPT
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), own?.get(*key)?.clone())));
        let mut connection: BTreeMap<String, OwnedVariant> = kept.collect();
        for (key, text) in [
            ("id", ID),
            ("uuid", UUID),
            ("type", kind),
            ("interface-name", bridge),
        ] {
            connection.insert(key.to_owned(), value(text));
        }
        settings.insert("connection".to_owned(), connection);
        let data = BTreeMap::from([(OWN, &*self.uuid)]);
        let user = BTreeMap::from([("data".to_owned(), OwnedVariant::from(dict(data)))]);
        settings.insert("user".to_owned(), user);
        for section in ["ipv4", "ipv6"] {
            let Some(of_family) = settings.get_mut(section) else {
                continue;
            };
            of_family.retain(|key, _| !OLD.contains(&key.as_str()));
            // Other kinds of links have other metrics.
            if let Some(metric) = self.metric {
                let metric = value(i64::from(metric));
                of_family.entry("route-metric".to_owned()).or_insert(metric);
            }
        }
        let mut set = |section: &str, key: &str, to: Option<OwnedVariant>| {
            if let (Some(of_family), Some(to)) = (settings.get_mut(section), to) {
                of_family.insert(key.to_owned(), to);
            }
        };
        set(
            "ipv4",
            "dhcp-client-id",
            self.client_id.as_deref().map(value),
        );
        set("ipv6", "dhcp-duid", self.duid.as_deref().map(value));
        set("ipv6", "dhcp-iaid", self.iaid.as_deref().map(value));
        // By itself it would derive another one from the link's name.
        if let [token] = stand_ins.identifiers()[..] {
            let token = Ipv6Addr::from(u128::from(token)).to_string();
            set("ipv6", "token", Some(value(&*token)));
            set("ipv6", "addr-gen-mode", Some(value(EUI64)));
        }
        Told {
            settings,
            stand_ins: stand_ins.clone(),
        }
    }
}

impl Told {
    pub(super) fn with_stand_ins(&self) -> Settings {
        self.stand_ins.beside(self.settings.clone())
    }

    pub(super) fn settled(&self) -> &Settings {
        &self.settings
    }
}

impl StandIns {
    pub(crate) fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.routes.is_empty()
    }

    /// The interface identifiers of addresses by router advertisements (RFC 4291 section 2.5.1).
    fn identifiers(&self) -> Vec<u64> {
        let ips = self.addresses.iter().filter_map(|net| match net {
            IpNet::V6(net) if net.prefix_len() == 64 => Some(net.addr()),
            _ => None,
        });
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the lower half is what is wanted"
        )]
        let mut found: Vec<u64> = ips.map(|ip| u128::from(ip) as u64).collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Without those of families for which a profile can't have addresses.
    pub(super) fn accepted_by(&self, settings: &Settings) -> Self {
        let has = |net: &IpNet| {
            let section = if net.addr().is_ipv6() { "ipv6" } else { "ipv4" };
            let method = of(settings, section, "method").unwrap_or_default();
            !WITHOUT.contains(&&*method)
        };
        let addresses = self.addresses.iter().filter(|net| has(net));
        let routes = self.routes.iter().filter(|(net, ..)| has(net));
        Self {
            addresses: addresses.copied().collect(),
            routes: routes.copied().collect(),
        }
    }

    /// A profile with them.
    pub(super) fn beside(&self, mut settings: Settings) -> Settings {
        for (section, is_v6) in [("ipv4", false), ("ipv6", true)] {
            let Some(of_family) = settings.get_mut(section) else {
                continue;
            };
            of_family.retain(|key, _| !OLD.contains(&key.as_str()));
            let nets = self.addresses.iter();
            let nets = nets.filter(|net| net.addr().is_ipv6() == is_v6);
            let addresses = nets.map(|net| {
                BTreeMap::from([
                    ("address", Variant::from(net.addr().to_string())),
                    ("prefix", Variant::from(u32::from(net.prefix_len()))),
                ])
            });
            extend(of_family, "address-data", addresses.collect());
            let routes = self.routes.iter();
            let routes = routes.filter(|(net, ..)| net.addr().is_ipv6() == is_v6);
            let routes = routes.map(|(net, gateway, metric)| {
                let mut route = BTreeMap::from([
                    ("dest", Variant::from(net.addr().to_string())),
                    ("prefix", Variant::from(u32::from(net.prefix_len()))),
                    ("metric", Variant::from(*metric)),
                ]);
                let gateway = gateway.map(|ip| ("next-hop", Variant::from(ip.to_string())));
                route.extend(gateway);
                route
            });
            extend(of_family, "route-data", routes.collect());
        }
        settings
    }
}

/// Appends to a list of dictionaries.
fn extend(
    to: &mut BTreeMap<String, OwnedVariant>,
    key: &str,
    more: Vec<BTreeMap<&'static str, Variant<'static>>>,
) {
    let seen = to.get(key).map(|seen| (**seen).clone());
    let mut all = match seen {
        Some(Variant::Array(seen)) => seen.iter().cloned().collect(),
        _ => Vec::new(),
    };
    all.extend(more.into_iter().map(Variant::from));
    // A list of nothing has no type of its own.
    let Some(first) = all.first() else { return };
    let mut list = Array::new(first.value_signature());
    let appended = all.into_iter().try_for_each(|entry| list.append(entry));
    if let (Ok(()), Ok(list)) = (appended, OwnedVariant::try_from(Variant::from(list))) {
        to.insert(key.to_owned(), list);
    }
}

fn dict(of: BTreeMap<&str, &str>) -> BTreeMap<String, String> {
    let owned = of.into_iter();
    owned
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn value<'a>(of: impl Into<Variant<'a>>) -> OwnedVariant {
    // Only a file descriptor can't be owned.
    OwnedVariant::try_from(of.into()).expect("these are numbers and texts")
}
