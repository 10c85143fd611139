//! Checks whether a pod's largest packet fits through the tunnels.

use std::fs;
use std::path::Path;

use podwire_netns::{LinkState, Netlink};

use super::switch::ObservedSwitch;
use super::{Examined, Finding, Kind};
use podwire::config::usual::MANAGEMENT_PORT;
use podwire::inspect::StatusView;
use podwire::ports::Encapsulation;

/// Compares the pods' MTU with that of the tunnels' underlay; None without a tunnel.
pub(super) async fn examine(
    seen: &ObservedSwitch,
    status: Option<&StatusView>,
    netlink: &Netlink,
) -> Option<Examined> {
    let tunnel = tunnel(seen)?;
    let underlay = underlay(&tunnel, netlink).await?;
    let mut room = underlay.mtu.checked_sub(tunnel.overhead())?;
    let mut carries = format!(
        "{} over {} (MTU {}) carries {room}",
        tunnel.kinds.join(", "),
        underlay.name,
        underlay.mtu
    );
    let cluster = netlink.host_link(MANAGEMENT_PORT).await.ok().flatten();
    if let Some(port) = cluster.filter(|port| port.mtu < room) {
        room = port.mtu;
        carries = format!("the cluster's pods have that of {MANAGEMENT_PORT}, {room}");
    }
    let mut findings = Vec::new();
    if let Some(status) = status.filter(|status| status.mtu > room) {
        let what = format!(
            "pods get MTU {}, and {carries}: large packets to other nodes are lost",
            status.mtu
        );
        findings.push(match status.mtu_file.as_deref() {
            Some(file) => Finding::wrong(Kind::MtuTooLarge, what).fix(set_mtu(room, file)),
            None => Finding::wrong(
                Kind::MtuTooLarge,
                format!("{what}; set --mtu on the agent's command line to {room}"),
            )
            .look(format!("tr '\\0' ' ' < /proc/{}/cmdline", status.pid)),
        });
    }
    let large: Vec<&str> = seen
        .ports
        .iter()
        .filter(|port| port.mtu.is_some_and(|mtu| mtu > i64::from(room)))
        .map(|port| port.pod.as_deref().unwrap_or(&port.name))
        .collect();
    if let Some(first) = large.first() {
        let what = format!(
            "pods with a larger MTU than the {room} that get through: {}, such as {first}; \
             recreate them once that is fixed",
            large.len()
        );
        findings.push(Finding::note(Kind::PodsMtuTooLarge, what));
    }
    Some(Examined {
        about: Kind::MtuTooLarge.about(),
        seen: carries,
        findings,
    })
}

/// The command that sets the pods' MTU: the agent reloads its file when that changes.
fn set_mtu(mtu: u32, file: &Path) -> String {
    let directory = file.parent().unwrap_or(Path::new("/")).display();
    let has_lines = fs::metadata(file).is_ok_and(|file| file.len() > 0);
    let file = file.display();
    if has_lines {
        format!("sed -i -e '1i mtu = {mtu}' -e '/^ *mtu *=/d' {file}")
    } else {
        format!("mkdir -p {directory} && echo 'mtu = {mtu}' > {file}")
    }
}

/// OVN's tunnels, or else the first of the switch's own that has a local address and headers of
/// known size.
fn tunnel(seen: &ObservedSwitch) -> Option<Encapsulation> {
    let ovn = &seen.switch.ovn;
    if let Some(ends) = &ovn.encap_ip {
        let kinds = ovn.encap_type.as_deref().unwrap_or("geneve");
        return Some(Encapsulation::of(kinds, ends));
    }
    let mut own = seen.switch.tunnels.iter();
    own.find_map(|tunnel| {
        let is_known = ["geneve", "vxlan", "stt", "gre"].contains(&tunnel.kind.as_str());
        let found = Encapsulation::of(&tunnel.kind, tunnel.local.as_ref()?);
        (is_known && !found.ends.is_empty()).then_some(found)
    })
}

/// The link that the tunnels' packets leave by; of several, the one with the smallest MTU.
async fn underlay(tunnel: &Encapsulation, netlink: &Netlink) -> Option<LinkState> {
    let mut links = Vec::new();
    for end in &tunnel.ends {
        links.extend(netlink.link_of_address(*end).await.ok()?);
    }
    links.into_iter().min_by_key(|link| link.mtu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_is_set_in_a_file_that_is_there_or_is_yet_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("podwire/podwire.toml");
        let run = |command: &str| {
            let shell = std::process::Command::new("sh")
                .args(["-c", command])
                .status();
            assert!(shell.unwrap().success(), "{command}");
            fs::read_to_string(&file).unwrap()
        };
        assert_eq!(run(&set_mtu(1400, &file)), "mtu = 1400\n");
        for (before, after) in [
            ("mode = 'ovn'", "mtu = 1442\nmode = 'ovn'"),
            ("mtu = 1500\n", "mtu = 1442\n"),
            ("#mtu = 1500\nmtu = 1400\n", "mtu = 1442\n#mtu = 1500\n"),
        ] {
            fs::write(&file, before).unwrap();
            assert_eq!(run(&set_mtu(1442, &file)), after);
        }
    }
}
