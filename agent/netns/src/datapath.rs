//! Whether the switch reads packets from a host end. Its Interface row can't tell: an ofport only
//! means that ovs-vswitchd once opened a device with that name.

use std::collections::HashSet;
use std::{fs, io};

use super::LinkState;

/// Every packet socket of the network namespace (`packet_seq_show` in net/packet/af_packet.c).
const PACKET_SOCKETS: &str = "/proc/net/packet";
/// ETH_P_ALL, in that file's format.
const ALL_PROTOCOLS: &str = "0003";

/// The links from which a datapath of Open vSwitch reads packets, at the time of reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Datapath {
    /// The kernel's: a port's link has the datapath's local port as its master.
    Kernel,
    /// ovs-vswitchd's own (`datapath_type=netdev`): it reads packet sockets, each bound to one
    /// link.
    Userspace {
        /// The indexes of the links with packet sockets bound to them.
        bound: HashSet<u32>,
    },
}

/// Why no packet passes between a host end and the switch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPackets {
    /// The link is down.
    #[error("host link {0} is down")]
    Down(String),
    /// ovs-vswitchd listens on a device that is gone, or on none.
    #[error(
        "no packet socket of ovs-vswitchd is bound to host link {0}: its port carries no packets"
    )]
    NotHeard(String),
    /// The kernel's datapath has no port for this device.
    #[error("host link {0} is not a port of the kernel's datapath: its port carries no packets")]
    NoVport(String),
}

impl Datapath {
    /// Reads the present state, in the network namespace of this process.
    ///
    /// # Errors
    /// The kernel's list of packet sockets can't be read.
    pub fn read(userspace: bool) -> io::Result<Self> {
        match userspace {
            true => Ok(Self::Userspace {
                bound: bound_to(&fs::read_to_string(PACKET_SOCKETS)?),
            }),
            false => Ok(Self::Kernel),
        }
    }

    /// Why no packet passes between this host end and the switch; None if they pass.
    pub fn fault(&self, host_end: &LinkState) -> Option<NoPackets> {
        let name = || host_end.name.clone();
        match self {
            _ if !host_end.up => Some(NoPackets::Down(name())),
            Self::Userspace { bound } if !bound.contains(&host_end.ifindex) => {
                Some(NoPackets::NotHeard(name()))
            }
            Self::Kernel if host_end.master.is_none() => Some(NoPackets::NoVport(name())),
            _ => None,
        }
    }
}

/// The links with sockets that receive every frame. A socket whose link is gone has -1.
fn bound_to(table: &str) -> HashSet<u32> {
    let ifindex = |line: &str| {
        let mut columns = line.split_whitespace().skip(3);
        let all = columns.next()? == ALL_PROTOCOLS;
        columns
            .next()?
            .parse()
            .ok()
            .filter(|ifindex| all && *ifindex > 0)
    };
    table.lines().filter_map(ifindex).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
ffff92f0c6b1a000 3      3    0003   1073741826     1 0      0      64337
ffff92f0c6b1b000 3      3    0003   -1    0 0      0      64338
ffff92f0c6b1c000 3      3    0806   7     1 0      0      64339
ffff92f0c6b1d000 3      3    0003   0     1 0      0      64340
";

    fn link(ifindex: u32, up: bool, master: Option<u32>) -> LinkState {
        LinkState {
            ifindex,
            name: "3f2b9c0d1e4a5b6".into(),
            up,
            mac: None,
            mtu: 1500,
            kind: Some("veth".into()),
            peer_ifindex: None,
            group: 0,
            master,
        }
    }

    #[test]
    fn a_socket_counts_that_gets_every_frame_of_a_living_link() {
        assert_eq!(bound_to(TABLE), HashSet::from([1_073_741_826]));
    }

    #[test]
    fn a_host_end_that_is_down_or_that_no_datapath_has_carries_no_packets() {
        let userspace = Datapath::Userspace {
            bound: HashSet::from([9]),
        };
        assert_eq!(userspace.fault(&link(9, true, None)), None);
        let name = || "3f2b9c0d1e4a5b6".to_owned();
        for (datapath, link, fault) in [
            (&userspace, link(9, false, None), NoPackets::Down(name())),
            (&userspace, link(8, true, None), NoPackets::NotHeard(name())),
            (
                &Datapath::Kernel,
                link(9, true, None),
                NoPackets::NoVport(name()),
            ),
        ] {
            assert_eq!(datapath.fault(&link), Some(fault));
        }
        assert_eq!(Datapath::Kernel.fault(&link(9, true, Some(3))), None);
    }
}
