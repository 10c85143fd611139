//! Whether a pod's largest packet fits through the tunnels.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

use super::switch::Seen;
use super::{Examined, Finding};
use crate::inspect::StatusView;
use crate::netns::Netlink;

const TUNNEL: &str = "tunnel MTU";

/// What a tunnel adds to the pod's packet within the underlay's: outer IPv4 header (IPv6: 20 more), outer transport, the
/// tunnel's own header, and the inner Ethernet header. OVN's geneve has 8 bytes of options (ovn-architecture(7)).
fn overhead(kind: &str, underlay: IpAddr) -> Option<u32> {
    let over_ipv4 = match kind {
        "geneve" => 20 + 8 + 8 + 8 + 14,
        "vxlan" => 20 + 8 + 8 + 14,
        "gre" => 20 + 8 + 14,
        _ => return None,
    };
    Some(match underlay {
        IpAddr::V4(_) => over_ipv4,
        IpAddr::V6(_) => over_ipv4 + 20,
    })
}

/// Holds the pods' MTU against the tunnels' underlay; nothing where there is no tunnel.
pub(super) async fn examine(
    seen: &Seen,
    status: Option<&StatusView>,
    netlink: &Netlink,
) -> Option<Examined> {
    let tunnel = tunnel(seen)?;
    let link = link_of(tunnel.address)?;
    let underlay_mtu = netlink.host_link(&link).await.ok()??.mtu;
    let room = underlay_mtu.checked_sub(overhead(&tunnel.kind, tunnel.address)?)?;
    let mut findings = Vec::new();
    if let Some(status) = status.filter(|status| status.mtu > room) {
        let what = format!(
            "pods get MTU {}, and {} over {link} (MTU {underlay_mtu}) carries {room}: large packets to other nodes are lost",
            status.mtu, tunnel.kind
        );
        let file = status.mtu_file.as_deref();
        findings.push(Finding::wrong(TUNNEL, what).mend(set_mtu(room, file)));
    }
    let large: Vec<&str> = seen
        .ports
        .iter()
        .filter(|port| port.mtu.is_some_and(|mtu| mtu > i64::from(room)))
        .map(|port| port.pod.as_deref().unwrap_or(&port.name))
        .collect();
    if let Some(first) = large.first() {
        let what = format!(
            "{} pods have a larger MTU than the {room} that get through, such as {first}: recreate them once it is mended",
            large.len()
        );
        findings.push(Finding::note(TUNNEL, what));
    }
    Some(Examined {
        about: TUNNEL,
        seen: format!(
            "{} over {link} (MTU {underlay_mtu}) carries {room}",
            tunnel.kind
        ),
        findings,
    })
}

/// The command that has the agent give pods this MTU: it reads its file again when that changes.
fn set_mtu(mtu: u32, file: Option<&Path>) -> String {
    let Some(file) = file else {
        return format!("systemctl cat podwire | grep -e --mtu # and make it {mtu} there");
    };
    let directory = file.parent().unwrap_or(Path::new("/")).display();
    let has_lines = fs::metadata(file).is_ok_and(|file| file.len() > 0);
    let file = file.display();
    if has_lines {
        format!("sed -i -e '1i mtu = {mtu}' -e '/^ *mtu *=/d' {file}")
    } else {
        format!("mkdir -p {directory} && echo 'mtu = {mtu}' > {file}")
    }
}

struct Tunnel {
    kind: String,
    address: IpAddr,
}

/// OVN's tunnels, or else the first of the switch's own that has an address of this node.
fn tunnel(seen: &Seen) -> Option<Tunnel> {
    let ovn = &seen.switch.ovn;
    if let Some(address) = ovn.encap_ip.as_ref().and_then(|ip| first(ip)?.parse().ok()) {
        let kind = ovn
            .encap_type
            .as_deref()
            .and_then(first)
            .unwrap_or("geneve");
        return Some(Tunnel {
            kind: kind.to_owned(),
            address,
        });
    }
    seen.switch.tunnels.iter().find_map(|tunnel| {
        Some(Tunnel {
            kind: tunnel.kind.clone(),
            address: tunnel.local.as_ref()?.parse().ok()?,
        })
    })
}

/// Both of OVN's keys may be lists.
fn first(list: &str) -> Option<&str> {
    list.split(',').map(str::trim).find(|it| !it.is_empty())
}

/// The link that has this address.
fn link_of(address: IpAddr) -> Option<String> {
    let has_it = |it: &nix::ifaddrs::InterfaceAddress| {
        let found = it.address.as_ref();
        let ipv4 = found
            .and_then(|it| it.as_sockaddr_in())
            .map(|it| IpAddr::V4(it.ip()));
        let ipv6 = found
            .and_then(|it| it.as_sockaddr_in6())
            .map(|it| IpAddr::V6(it.ip()));
        ipv4.or(ipv6) == Some(address)
    };
    let mut links = nix::ifaddrs::getifaddrs().ok()?;
    links.find(has_it).map(|link| link.interface_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_takes_what_ovn_says_it_takes() {
        let (v4, v6) = ("192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        assert_eq!(overhead("geneve", v4), Some(58));
        assert_eq!(overhead("geneve", v6), Some(78));
        assert_eq!(overhead("vxlan", v4), Some(50));
        assert_eq!(overhead("stt", v4), None);
    }

    #[test]
    fn the_mtu_is_set_in_a_file_that_is_there_or_is_yet_to_be_made_and_else_on_the_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("podwire/podwire.toml");
        let run = |command: &str| {
            let shell = std::process::Command::new("sh")
                .args(["-c", command])
                .status();
            assert!(shell.unwrap().success(), "{command}");
            fs::read_to_string(&file).unwrap()
        };
        assert_eq!(run(&set_mtu(1400, Some(&file))), "mtu = 1400\n");
        for (before, after) in [
            ("mode = 'ovn'", "mtu = 1442\nmode = 'ovn'"),
            ("mtu = 1500\n", "mtu = 1442\n"),
            ("#mtu = 1500\nmtu = 1400\n", "mtu = 1442\n#mtu = 1500\n"),
        ] {
            fs::write(&file, before).unwrap();
            assert_eq!(run(&set_mtu(1442, Some(&file))), after);
        }
        assert!(set_mtu(1442, None).contains("--mtu"));
    }
}
