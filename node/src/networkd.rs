//! systemd-networkd: what it says of a NIC, the same for the bridge that the NIC is moved into, and
//! its reload.
//!
//! The files are below /run: a boot forgets them, and the NIC comes up by the machine's own
//! configuration. The bridge has the NIC's MAC address and identity association, so that a DHCP
//! server takes it for the same client.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use podwire_daemon::files::FileEvents;
use tokio::time::timeout;

/// Below /run/systemd/network: for the NIC, and for the bridge. The first file that matches a link
/// applies (systemd.network(5)).
pub(crate) const FILES: [&str; 2] = [
    "/run/systemd/network/04-podwire-uplink.network",
    "/run/systemd/network/04-podwire-br-ex.network",
];

/// Time limit of an answer.
const LIMIT: Duration = Duration::from_secs(10);
/// How long it may take until it configures a link.
const TAKEN: Duration = Duration::from_secs(3);
const NAME: &str = "org.freedesktop.network1";

/// Sections that mean the same for a bridge.
const SECTIONS: [&str; 11] = [
    "Match",
    "Link",
    "Network",
    "Address",
    "Neighbor",
    "IPv6AddressLabel",
    "RoutingPolicyRule",
    "Route",
    "DHCPv4",
    "DHCPv6",
    "IPv6AcceptRA",
];
/// Settings of the section Network that make the NIC a part of another link, or lie on it, and
/// those that a NIC in a bridge can't have.
const LINKS: [&str; 12] = [
    "Bond",
    "Bridge",
    "VRF",
    "VLAN",
    "IPVLAN",
    "MACVLAN",
    "MACVTAP",
    "VXLAN",
    "Tunnel",
    "MACsec",
    "BatmanAdvanced",
    "Xfrm",
];

/// A link that it configures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Managed {
    /// The path of its file.
    file: String,
    /// The text of the file and of its drop-ins.
    text: String,
    /// Whether it has done all that the file says, and so knows its DHCP servers' leases.
    pub(crate) is_done: bool,
    /// Of the client identifier that a DHCP server knows.
    iaid: Option<u32>,
}

impl Managed {
    /// What it says of a link; None if it does not configure it.
    pub(crate) fn of_link(index: u32) -> Option<Self> {
        let state = std::fs::read_to_string(format!("/run/systemd/netif/links/{index}")).ok()?;
        let value = |wanted: &str| {
            let mut lines = state.lines().filter_map(|line| line.split_once('='));
            lines.find_map(|(key, value)| (key == wanted).then(|| value.to_owned()))
        };
        let admin = value("ADMIN_STATE")?;
        if ["unmanaged", "initialized", "pending"].contains(&&*admin) {
            return None;
        }
        let file = value("NETWORK_FILE").unwrap_or_default();
        let mut text = std::fs::read_to_string(&file).unwrap_or_default();
        for drop_in in drop_ins(&file).values() {
            text.push('\n');
            text += &std::fs::read_to_string(drop_in).unwrap_or_default();
        }
        let lease = std::fs::read_to_string(format!("/run/systemd/netif/leases/{index}"));
        Some(Self {
            file,
            text,
            is_done: admin == "configured",
            iaid: lease.ok().as_deref().and_then(iaid),
        })
    }

    /// The texts of [`FILES`].
    ///
    /// # Errors
    /// What of the NIC's configuration has no equivalent for a bridge, as text.
    pub(crate) fn files(&self, nic: &str, bridge: &str) -> Result<[String; 2], Vec<String>> {
        let mut reasons = Vec::new();
        let mut of_bridge = format!("{}\n[Match]\nName={bridge}\n", crate::FILE_MARK);
        let mut section = "";
        let (mut has_v4, mut has_v6) = (false, false);
        for line in self.text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|it| it.strip_suffix(']')) {
                section = name;
                if !SECTIONS.contains(&name) {
                    reasons.push(format!("the section [{name}]"));
                } else if name != "Match" {
                    let _ = writeln!(of_bridge, "\n[{name}]");
                }
                continue;
            }
            let key = line.split('=').next().unwrap_or_default().trim();
            match section {
                "Network" if LINKS.contains(&key) => reasons.push(line.to_owned()),
                // The bridge has the NIC's by Open vSwitch's database.
                "Link" if ["MACAddress", "MTUBytes", "ActivationPolicy"].contains(&key) => {}
                "Match" | "" => {}
                _ => {
                    has_v4 |= section == "DHCPv4" && key == "IAID";
                    has_v6 |= section == "DHCPv6" && key == "IAID";
                    let _ = writeln!(of_bridge, "{line}");
                }
            }
        }
        if self.text.is_empty() {
            reasons.push("a file that can't be read".to_owned());
        }
        let name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
        let (name, own) = (name(&self.file), name(FILES[0]));
        if !name.is_empty() && name < own {
            reasons.push(format!(
                "the name {name}, before that of podwire's {own}: the first file that matches a \
                 link applies; give it a later one"
            ));
        }
        // What others set on the NIC stays on the bridge.
        of_bridge += "\n[Network]\nKeepConfiguration=static\n";
        for (section, has) in [("DHCPv4", has_v4), ("DHCPv6", has_v6)] {
            // By itself it would derive it from the link's name, or its MAC address.
            if let Some(iaid) = self.iaid.filter(|_| !has) {
                let _ = writeln!(of_bridge, "\n[{section}]\nIAID={iaid}");
            }
        }
        if !reasons.is_empty() {
            let of = |reason: String| {
                let file = &self.file;
                format!(
                    "systemd-networkd manages {nic} by {file}, whose configuration has no \
                     equivalent for a bridge: {reason}"
                )
            };
            return Err(reasons.into_iter().map(of).collect());
        }
        let of_nic = format!(
            "{}\n[Match]\nName={nic}\n\n[Link]\nUnmanaged=yes\n",
            crate::FILE_MARK
        );
        Ok([of_nic, of_bridge])
    }
}

/// The drop-ins of a file, by name; those below /etc come before those below /run, and those before
/// the others.
fn drop_ins(file: &str) -> BTreeMap<String, String> {
    let name = Path::new(file).file_name().unwrap_or_default();
    let name = name.to_string_lossy();
    let mut found = BTreeMap::new();
    for root in ["/usr/lib", "/usr/local/lib", "/run", "/etc"] {
        let directory = format!("{root}/systemd/network/{name}.d");
        let entries = std::fs::read_dir(&directory)
            .into_iter()
            .flatten()
            .flatten();
        for entry in entries {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".conf") {
                found.insert(name.clone(), format!("{directory}/{name}"));
            }
        }
    }
    found
}

/// Of a lease's client identifier, ff IAID DUID (RFC 4361 section 6.1). One that is a MAC address
/// has none.
fn iaid(lease: &str) -> Option<u32> {
    let mut lines = lease.lines();
    let identifier = lines.find_map(|line| line.strip_prefix("CLIENTID=ff"))?;
    u32::from_str_radix(identifier.get(..8)?, 16).ok()
}

/// Whether it is told to configure the bridge.
pub(crate) fn is_told() -> bool {
    FILES.iter().any(|path| Path::new(path).exists())
}

/// Why it was not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkdError {
    #[error("ask systemd-networkd over D-Bus: {0}")]
    Bus(Box<zbus::Error>),
    #[error("listen to what systemd-networkd says of a link: {0}")]
    Listen(#[source] std::io::Error),
    #[error("systemd-networkd does not answer within {limit} ms", limit = LIMIT.as_millis())]
    Silent,
}

/// Has it read its files, and configure the links by them.
pub(crate) async fn reload() -> Result<(), NetworkdError> {
    call("org.freedesktop.network1.Manager", "Reload").await
}

/// Waits until it configures a link, by which time it has removed from the link what it does not
/// know; for a moment, since the link may be gone.
pub(crate) async fn managed(index: u32) -> Result<(), NetworkdError> {
    let state = format!("/run/systemd/netif/links/{index}");
    let waited = async {
        loop {
            let events = FileEvents::of_names(&[state.clone().into()])?;
            if Managed::of_link(index).is_some() {
                return Ok(());
            }
            events.next().await?;
        }
    };
    match timeout(TAKEN, waited).await {
        Ok(waited) => waited.map_err(NetworkdError::Listen),
        Err(_) => Ok(()),
    }
}

/// Whether it would be reached.
pub(crate) async fn ping() -> Result<(), NetworkdError> {
    call("org.freedesktop.DBus.Peer", "Ping").await
}

async fn call(interface: &str, method: &str) -> Result<(), NetworkdError> {
    let called = async {
        let builder = zbus::connection::Builder::system().method_timeout(LIMIT);
        let connection = builder.build().await?;
        let path = "/org/freedesktop/network1";
        let answer = connection.call_method(Some(NAME), path, Some(interface), method, &());
        answer.await.map(drop)
    };
    let called = timeout(LIMIT, called)
        .await
        .map_err(|_| NetworkdError::Silent)?;
    called.map_err(|error| NetworkdError::Bus(Box::new(error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn managed(text: &str) -> Managed {
        Managed {
            file: "/etc/systemd/network/10-eth0.network".to_owned(),
            text: text.to_owned(),
            is_done: true,
            iaid: iaid("T1=60\nCLIENTID=ff3ec10eed00020000ab110033bdebf95e192c\n"),
        }
    }

    #[test]
    fn a_bridge_gets_the_configuration_of_its_nic_and_its_identity() {
        let own = "[Match]\nName=eth*\n[Link]\nMTUBytes=1400\nRequiredForOnline=no\n[Network]\n\
                   DHCP=yes\n# why\n[DHCPv6]\nIAID=7\n";
        let [of_nic, of_bridge] = managed(own).files("eth0", "br-ex").unwrap();
        assert!(
            of_nic.ends_with("Name=eth0\n\n[Link]\nUnmanaged=yes\n"),
            "{of_nic}"
        );
        let after = of_bridge.strip_prefix(crate::FILE_MARK).unwrap();
        let lines: Vec<&str> = after.lines().filter(|line| !line.is_empty()).collect();
        assert_eq!(
            lines,
            [
                "[Match]",
                "Name=br-ex",
                "[Link]",
                "RequiredForOnline=no",
                "[Network]",
                "DHCP=yes",
                "# why",
                "[DHCPv6]",
                "IAID=7",
                "[Network]",
                "KeepConfiguration=static",
                "[DHCPv4]",
                "IAID=1052839661",
            ]
        );
    }

    #[test]
    fn what_a_bridge_cannot_have_is_refused_by_name() {
        let own = "[Match]\nName=eth0\n[Network]\nVLAN=vlan7\n[SR-IOV]\nVirtualFunction=0\n";
        let reasons = managed(own).files("eth0", "br-ex").unwrap_err();
        assert!(reasons[0].ends_with("a bridge: VLAN=vlan7"), "{reasons:?}");
        assert!(
            reasons[1].ends_with("a bridge: the section [SR-IOV]"),
            "{reasons:?}"
        );
        let mut first = managed("[Match]\nName=eth0\n");
        first.file = "/etc/systemd/network/00-eth0.network".to_owned();
        let reasons = first.files("eth0", "br-ex").unwrap_err();
        assert!(
            reasons[0].contains("a bridge: the name 00-eth0.network, before"),
            "{reasons:?}"
        );
    }
}
