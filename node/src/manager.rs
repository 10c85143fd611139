//! The program that configures a link beside podwire, and would do so again after a move.

use std::path::Path;

use podwire_daemon::process::{is_in_pod, sees_systemd};

use crate::GATEWAY;
use crate::network_manager::{self, StandIns};
use crate::networkd;

/// A program that configures a link, and what it says of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Manager {
    Networkd(networkd::Managed),
    NetworkManager(Box<network_manager::Managed>),
}

/// Which of them were told to configure the bridge instead of the NIC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tells {
    pub(crate) networkd: bool,
    pub(crate) network_manager: bool,
}

impl Manager {
    /// What configures a link; None if nothing that podwire can tell to configure a bridge.
    pub(crate) async fn look(link: &str, index: u32) -> Option<Self> {
        if let Some(managed) = networkd::Managed::of_link(index) {
            return Some(Self::Networkd(managed));
        }
        let managed = network_manager::Managed::look(link, index).await?;
        Some(Self::NetworkManager(Box::new(managed)))
    }

    /// For people.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Networkd(_) => "systemd-networkd",
            Self::NetworkManager(_) => "NetworkManager",
        }
    }

    /// Whether it renews on another link what has a lifetime.
    pub(crate) fn renews(&self) -> bool {
        match self {
            Self::Networkd(_) => true,
            Self::NetworkManager(managed) => managed.renews(),
        }
    }

    /// Why it can't configure the bridge as it does the NIC.
    pub(crate) async fn refusals(
        &self,
        nic: &str,
        bridge: &str,
        stand_ins: &StandIns,
    ) -> Vec<String> {
        match self {
            Self::Networkd(managed) => {
                let files = managed.files(nic, bridge).err().into_iter().flatten();
                let unheard = networkd::ping().await.err().map(|it| it.to_string());
                files.chain(unheard).collect()
            }
            Self::NetworkManager(managed) => managed.reasons(nic, stand_ins),
        }
    }

    /// That it has not configured a NIC yet: a DHCP server would take the bridge for another
    /// client.
    pub(crate) fn undone(&self, nic: &str) -> Option<String> {
        let (is_done, ask) = match self {
            Self::Networkd(managed) => (managed.is_done, "networkctl status"),
            Self::NetworkManager(managed) => {
                (managed.is_done || !managed.renews(), "nmcli device show")
            }
        };
        let name = self.name();
        (!is_done).then(|| {
            format!(
                "{name} has not configured {nic} yet (`{ask} {nic}`): a DHCP server may not have \
                 answered"
            )
        })
    }
}

impl Tells {
    /// What is so now.
    pub(crate) fn look() -> Self {
        Self {
            networkd: networkd::is_told(),
            network_manager: network_manager::is_told(),
        }
    }

    /// The program that was told.
    pub(crate) fn name(self) -> Option<&'static str> {
        match (self.networkd, self.network_manager) {
            (true, _) => Some("systemd-networkd"),
            (_, true) => Some("NetworkManager"),
            _ => None,
        }
    }
}

/// Why this process can't see what configures a NIC: it is in a pod, which nobody has given the
/// machine's own directories.
pub(crate) fn hidden(nic: &str) -> Option<String> {
    (is_in_pod() && !sees_systemd()).then(|| {
        format!(
            "a container does not see which program configures {nic}: it is moved into {GATEWAY}, \
             and out of it, by `podwire node` on the machine itself"
        )
    })
}

/// A program that configures a NIC, and that podwire can't tell to configure a bridge.
pub(crate) fn other(nic: &str) -> Option<&'static str> {
    let text = |path: String| std::fs::read_to_string(path).unwrap_or_default();
    let ifupdown = text("/run/network/ifstate".to_owned());
    let mut ifupdown = ifupdown.lines();
    if ifupdown.any(|line| line.split('=').next() == Some(nic)) {
        return Some("ifupdown");
    }
    ["dhclient", "dhcpcd"].into_iter().find(|name| {
        let stems = [format!("{name}.{nic}"), format!("{name}-{nic}")];
        let files = stems.iter().map(|stem| format!("/run/{stem}.pid"));
        let own = [&*stems[0], &*stems[1], nic];
        let files = files.chain(own.map(|stem| format!("/run/dhcpcd/{stem}.pid")));
        files.into_iter().any(|path| Path::new(&path).exists())
    })
}
