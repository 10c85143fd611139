//! A lease: what a server gave, and what follows from its times.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::{IpNet, Ipv4Net};
use podwire_netns::Netns;
use serde::{Deserialize, Serialize};

use super::{Place, Provided};

/// A lease without an end, as servers write it (RFC 2131, section 3.3).
pub(super) const FOREVER: u32 = u32::MAX;

/// The least time between two attempts to extend a lease (RFC 2131, section 4.4.5), unless the
/// lease is so short that an eighth of it is less.
const LEAST_PAUSE: Duration = Duration::from_secs(60);

/// A lease, as the attachment's entry in the intent log has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Lease {
    /// The interface in the pod.
    pub ifname: String,
    /// The address with its prefix length.
    pub address: Ipv4Net,
    /// The server's identifier.
    pub server: Ipv4Addr,
    /// The MAC address that the server's answers come from: its own, or a relay's.
    pub server_mac: [u8; 6],
    /// Routers, the first one first.
    pub routers: Vec<Ipv4Addr>,
    /// Further routes (option 121).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<(Ipv4Net, Ipv4Addr)>,
    /// Name servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub name_servers: Vec<Ipv4Addr>,
    /// The domain of the pod's names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The options that its client sends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub provided: Vec<Provided>,
    /// When it was last given, in nanoseconds since boot.
    pub since: u64,
    /// What is due when.
    pub times: Times,
}

/// The times of a lease, in seconds from when it was last given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// When its server is asked for more time (T1).
    pub renewal: u32,
    /// When any server is asked (T2).
    pub rebinding: u32,
    /// When it ends; 0 if it is lost already.
    pub end: u32,
}

/// What is due for a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Nothing.
    Bound,
    /// To ask its server for more time.
    Renewing,
    /// To ask any server.
    Rebinding,
    /// To be without the address.
    Ended,
}

impl Times {
    /// The times of a lost lease.
    const LOST: Self = Self {
        renewal: 0,
        rebinding: 0,
        end: 0,
    };
}

impl Lease {
    /// Its address as the rest of the agent writes it.
    pub fn net(&self) -> IpNet {
        self.address.into()
    }

    /// The interface that it is for, in the pod's namespace.
    pub fn place(&self, netns: Arc<Netns>) -> Place {
        Place {
            netns,
            ifname: self.ifname.clone(),
            provided: self.provided.clone(),
        }
    }

    /// What is due. `now` is in nanoseconds since boot, here and below.
    pub fn stage(&self, now: u64) -> Stage {
        let Times {
            renewal,
            rebinding,
            end,
        } = self.times;
        match end {
            FOREVER => Stage::Bound,
            _ if self.until(end, now).is_zero() => Stage::Ended,
            _ if self.until(rebinding, now).is_zero() => Stage::Rebinding,
            _ if self.until(renewal, now).is_zero() => Stage::Renewing,
            _ => Stage::Bound,
        }
    }

    /// The time until its server is to be asked for more time; None without an end.
    pub fn until_renewal(&self, now: u64) -> Option<Duration> {
        (self.times.end != FOREVER).then(|| self.until(self.times.renewal, now))
    }

    /// The time that is left of it.
    pub fn left(&self, now: u64) -> Duration {
        self.until(self.times.end, now)
    }

    /// The pause after an attempt to extend it that failed: half of what remains before any server
    /// is asked or, after that, before the end.
    pub fn pause(&self, now: u64) -> Duration {
        let remains = match self.until(self.times.rebinding, now) {
            Duration::ZERO => self.left(now),
            remains => remains,
        };
        let least = LEAST_PAUSE.min(Duration::from_secs(self.times.end.into()) / 8);
        (remains / 2).max(least).min(remains)
    }

    /// The same with the times and the server of its extension. Address, routes and names stay:
    /// they are what the runtime was told.
    pub fn extended_by(&self, extension: &Self) -> Self {
        Self {
            server: extension.server,
            server_mac: extension.server_mac,
            since: extension.since,
            times: extension.times,
            ..self.clone()
        }
    }

    /// The same as one that has ended, and whose address the pod no longer has.
    pub fn lost(&self) -> Self {
        Self {
            times: Times::LOST,
            ..self.clone()
        }
    }

    /// Whether the pod no longer has the address.
    pub fn is_lost(&self) -> bool {
        self.times == Times::LOST
    }

    fn until(&self, seconds: u32, now: u64) -> Duration {
        let moment = u64::from(seconds).saturating_mul(1_000_000_000);
        Duration::from_nanos(self.since.saturating_add(moment).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn lease(renewal: u32, rebinding: u32, end: u32) -> Lease {
        Lease {
            ifname: "net1".into(),
            address: "192.0.2.7/24".parse().unwrap(),
            server: Ipv4Addr::new(192, 0, 2, 1),
            server_mac: [2, 0, 0, 0, 0, 1],
            routers: Vec::new(),
            routes: Vec::new(),
            name_servers: Vec::new(),
            domain: None,
            provided: Vec::new(),
            since: 100 * SECOND,
            times: Times {
                renewal,
                rebinding,
                end,
            },
        }
    }

    #[test]
    fn each_time_of_a_lease_begins_a_stage() {
        let lease = lease(60, 105, 120);
        for (seconds, stage) in [
            (100, Stage::Bound),
            (159, Stage::Bound),
            (160, Stage::Renewing),
            (204, Stage::Renewing),
            (205, Stage::Rebinding),
            (219, Stage::Rebinding),
            (220, Stage::Ended),
        ] {
            assert_eq!(lease.stage(seconds * SECOND), stage, "{seconds}");
        }
        assert_eq!(
            lease.until_renewal(110 * SECOND),
            Some(Duration::from_secs(50))
        );
        assert_eq!(lease.left(210 * SECOND), Duration::from_secs(10));
    }

    #[test]
    fn a_lease_without_an_end_is_not_renewed() {
        let lease = lease(60, 105, FOREVER);
        assert_eq!(lease.until_renewal(0), None);
        assert_eq!(lease.stage(u64::MAX), Stage::Bound);
    }

    #[test]
    fn a_lost_lease_has_ended_whenever_it_is_asked() {
        let lost = lease(60, 105, 120).lost();
        assert!(lost.is_lost());
        assert_eq!(lost.stage(lost.since), Stage::Ended);
        assert_eq!(lost.until_renewal(lost.since), Some(Duration::ZERO));
    }

    #[test]
    fn attempts_come_closer_to_each_other_but_not_closer_than_a_minute_and_none_is_after_the_end() {
        let hour = lease(1800, 3150, 3600);
        let pause = |lease: &Lease, at: u64| lease.pause((100 + at) * SECOND).as_secs();
        assert_eq!(pause(&hour, 1800), 675);
        assert_eq!(pause(&hour, 3000), 75);
        assert_eq!(pause(&hour, 3080), 60);
        assert_eq!(pause(&hour, 3100), 50, "T2");
        assert_eq!(pause(&hour, 3150), 225);
        assert_eq!(pause(&hour, 3590), 10, "the end");
        let short = lease(2, 4, 8);
        assert_eq!(pause(&short, 2), 1);
        assert_eq!(pause(&short, 7), 1);
    }

    #[test]
    fn an_extension_changes_neither_address_nor_routes() {
        let lease = lease(60, 105, 120);
        let mut extension = lease.clone();
        extension.address = "192.0.2.7/16".parse().unwrap();
        extension.routers = vec![Ipv4Addr::new(192, 0, 2, 254)];
        extension.since = 160 * SECOND;
        extension.server = Ipv4Addr::new(192, 0, 2, 2);
        let extended = lease.extended_by(&extension);
        assert_eq!(
            (extended.address, &*extended.routers),
            (lease.address, &[][..])
        );
        assert_eq!(
            (extended.since, extended.server),
            (extension.since, extension.server)
        );
    }
}
