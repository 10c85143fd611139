//! OVN's language of matches, as far as the rows use it.

use std::net::IpAddr;

use ipnet::IpNet;
use podwire_cluster::ObjectName;

use super::Rows;
use crate::world::Packet;

pub(super) fn tokens(text: &str) -> Vec<String> {
    let mut spaced = text.to_owned();
    for sign in ["(", ")", "{", "}", ","] {
        spaced = spaced.replace(sign, &format!(" {sign} "));
    }
    spaced.split_whitespace().map(str::to_owned).collect()
}

/// Reads and evaluates a match at the same time.
pub(super) struct Parser<'a> {
    pub(super) rows: &'a Rows,
    pub(super) packet: &'a Packet,
    pub(super) ports: (Option<&'a ObjectName>, Option<&'a ObjectName>),
    pub(super) left: &'a [String],
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> &'a str {
        let (first, rest) = self.left.split_first().unwrap();
        self.left = rest;
        first
    }

    fn take(&mut self, token: &str) -> bool {
        let is_it = self.left.first().is_some_and(|it| it == token);
        if is_it {
            self.next();
        }
        is_it
    }

    pub(super) fn any(&mut self) -> bool {
        let mut found = self.all();
        while self.take("||") {
            found |= self.all();
        }
        found
    }

    fn all(&mut self) -> bool {
        let mut found = self.one();
        while self.take("&&") {
            found &= self.one();
        }
        found
    }

    fn one(&mut self) -> bool {
        if self.take("(") {
            let found = self.any();
            assert!(self.take(")"));
            return found;
        }
        let first = self.next();
        if let Ok(from) = first.parse::<u16>() {
            assert!(self.take("<="));
            let number = self.number();
            assert!(self.take("<="));
            let to: u16 = self.next().parse().unwrap();
            return number.is_some_and(|number| (from..=to).contains(&number));
        }
        if !self.take("==") {
            return self.is(first);
        }
        match first {
            "inport" | "outport" => {
                let group = self.next().strip_prefix('@').unwrap();
                let port = if first == "inport" {
                    self.ports.0
                } else {
                    self.ports.1
                };
                port.is_some_and(|(ns, name)| self.rows.is_member(group, &format!("{ns}_{name}")))
            }
            "ip4.src" | "ip4.dst" | "ip6.src" | "ip6.dst" => {
                let address = if first.ends_with("src") {
                    self.packet.from
                } else {
                    self.packet.to
                };
                let values = self.values();
                let is_of_family = address.is_ipv4() == first.starts_with("ip4");
                let is_in = |value: &&str| match value.strip_prefix('$') {
                    Some(set) => self.rows.is_member(set, &address.to_string()),
                    None => match value.parse::<IpNet>() {
                        Ok(net) => net.contains(&address),
                        Err(_) => value.parse::<IpAddr>().unwrap() == address,
                    },
                };
                values.iter().any(is_in) && is_of_family
            }
            field => {
                let number = self.field(field);
                let values = self.values();
                values
                    .iter()
                    .any(|it| Some(it.parse::<u16>().unwrap()) == number)
            }
        }
    }

    fn values(&mut self) -> Vec<&'a str> {
        if !self.take("{") {
            return vec![self.next()];
        }
        let mut found = Vec::new();
        while !self.take("}") {
            found.push(self.next());
            self.take(",");
        }
        found
    }

    fn number(&mut self) -> Option<u16> {
        let field = self.next();
        self.field(field)
    }

    /// The destination port, if the packet is of the field's protocol.
    fn field(&self, field: &str) -> Option<u16> {
        let protocol = field.strip_suffix(".dst").unwrap();
        (self.packet.protocol.to_lowercase() == protocol).then_some(self.packet.port)
    }

    fn is(&self, name: &str) -> bool {
        match name {
            "ip" => true,
            "ip4" => self.packet.from.is_ipv4(),
            "ip6" => self.packet.from.is_ipv6(),
            "tcp" | "udp" | "sctp" => self.packet.protocol.to_lowercase() == name,
            "arp" | "nd" => false,
            other => panic!("{other}"),
        }
    }
}
