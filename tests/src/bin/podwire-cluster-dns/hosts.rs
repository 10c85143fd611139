//! The block `hosts` of CoreDNS' configuration, which is all that the specs' own servers have.

use std::net::IpAddr;

/// Addresses and their names.
pub(crate) struct Hosts(Vec<(IpAddr, String)>);

impl Hosts {
    /// The lines of the block: an address and its names.
    pub(crate) fn of(corefile: &str) -> Self {
        let lines = corefile.lines().map(str::trim);
        let block = lines
            .skip_while(|line| !line.starts_with("hosts"))
            .skip(1)
            .take_while(|line| *line != "}");
        let hosts = block.filter_map(|line| {
            let mut words = line.split_whitespace();
            let address = words.next()?.parse().ok()?;
            Some(words.map(move |name| (address, name.to_ascii_lowercase())))
        });
        Self(hosts.flatten().collect())
    }

    /// A name's addresses.
    pub(crate) fn addresses(&self, name: &str) -> impl Iterator<Item = IpAddr> {
        let own = self.0.iter().filter(move |(_, of)| of == name);
        own.map(|(address, _)| *address)
    }

    /// The name of an address.
    pub(crate) fn name(&self, address: IpAddr) -> Option<&str> {
        let own = self.0.iter().find(|(it, _)| *it == address);
        own.map(|(_, name)| name.as_str())
    }
}
