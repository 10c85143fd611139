//! Reads the machine's actual state: the part that a plan is about.

mod dump;
mod in_use;
mod kernel;
mod switch;
mod uplink;

use std::collections::{BTreeMap, BTreeSet};

use podwire_ovs::client::Client;

use crate::firewall::{self, Table};
use crate::firewalld::{Firewalld, Rule};
use crate::items::{Actual, ObservedTable, Tables, read_sysctl};
use crate::moved::Moved;
use crate::nft::{self, NftError};

pub(crate) use in_use::gateway;
pub(crate) use switch::{switch, tables as watched_tables};
pub(crate) use uplink::gateways;

/// The units of Open vSwitch's daemons.
pub(crate) const UNITS: [&str; 2] = ["ovs-vswitchd.service", DATABASE_UNIT];
/// That of the database's.
pub(crate) const DATABASE_UNIT: &str = "ovsdb-server.service";

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
    /// Reads the switch and the kernel alone, with what it has on the links of a gateway bridge.
    pub(crate) async fn links_of_gateway(
        client: &Client,
        handle: &rtnetlink::Handle,
        moved: &Moved,
    ) -> Result<Self, ReadError> {
        let mut actual = Self {
            switch: switch(client, None),
            moved: Some(moved.clone()),
            ..Self::default()
        };
        let links = [moved.nic.clone(), moved.bridge.clone()];
        actual.read_kernel(handle, &links).await?;
        Ok(actual)
    }

    /// Reads everything; the nftables tables unless they are known. `holds` names links of a
    /// gateway bridge.
    pub(crate) async fn all(
        client: &Client,
        southbound: Option<&Client>,
        firewalld: Option<&Firewalld>,
        handle: &rtnetlink::Handle,
        (interface, holds): (Option<&str>, &[String]),
        tables: Option<Tables>,
    ) -> Result<Self, ReadError> {
        let mut actual = Self {
            switch: switch(client, southbound),
            pods: switch::pods(client),
            ..Self::default()
        };
        actual.units = UNITS.iter().filter_map(|name| unit(name)).collect();
        actual.read_kernel(handle, holds).await?;
        let uplink = interface.or(actual.default_link.as_deref());
        if let Some(firewalld) = firewalld {
            actual.firewalld = firewalld.observe(uplink.unwrap_or_default()).await;
        }
        actual.accept_ra =
            uplink.and_then(|link| read_sysctl(&format!("net/ipv6/conf/{link}/accept_ra")).ok());
        let tables = match tables {
            Some(known) => known,
            None => self::tables(&actual).await?,
        };
        (actual.tables, actual.services) = tables;
        Ok(actual)
    }

    /// Reads these values below /proc/sys.
    pub(crate) fn read_sysctls(&mut self, paths: &[&str]) {
        let paths = paths.iter().copied();
        let seen = paths.filter_map(|path| Some((path.to_owned(), read_sysctl(path).ok()?)));
        self.sysctls = seen.collect();
    }

    /// Queries firewalld for these rules.
    pub(crate) async fn read_rules(
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
    pub(crate) fn read_files(&mut self, paths: Vec<String>) {
        let files = paths.into_iter();
        let seen =
            files.filter_map(|path| Some((path.clone(), std::fs::read_to_string(path).ok()?)));
        self.files = seen.collect();
    }
}

/// Lists podwire's tables, as far as they exist, and checks whether that of services does.
async fn tables(actual: &Actual) -> Result<Tables, NftError> {
    let there = nft::tables().await?;
    let mut tables = BTreeMap::new();
    let names = firewall::NAMES.into_iter();
    for name in names.filter(|it| there.contains(*it)) {
        if let Some(listed) = nft::list(name).await? {
            let link = Table::link(name).and_then(|link| actual.index(link));
            tables.insert(name, ObservedTable::of(&listed, link));
        }
    }
    let services = there.iter().any(|it| it.starts_with(nft::SERVICES));
    Ok((tables, services))
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
