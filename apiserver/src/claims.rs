//! Which service has an address of those that whoever may create services can name: external IPs
//! and load balancers' addresses (CVE-2020-8554).

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

/// The addresses that a service names.
#[derive(Debug)]
pub struct Claims<'a, N> {
    /// Its name.
    pub service: &'a N,
    /// When it was created, in seconds since 1970, and its uid.
    pub age: (i64, &'a str),
    /// Its cluster IPs.
    pub cluster_ips: &'a [IpAddr],
    /// Its external IPs and its load balancer's addresses.
    pub external_ips: BTreeSet<IpAddr>,
    /// Protocol, as the API names it but in lower case, and port.
    pub ports: Vec<(String, u16)>,
}

/// The addresses that a service can't have, by protocol, each with the reason.
pub type Refused = BTreeMap<(SocketAddr, String), String>;

/// The services that can't have all addresses that they name. A cluster IP is its service's alone,
/// an address that is `reserved` (which gives its description) nobody's; an older service goes
/// before a younger one.
pub fn refused<'a, N: Ord>(
    services: impl Iterator<Item = Claims<'a, N>>,
    reserved: impl Fn(IpAddr) -> Option<String>,
    named: impl Fn(&N) -> String,
) -> BTreeMap<&'a N, Refused> {
    let services: Vec<_> = services.collect();
    let external = services.iter().flat_map(|it| &it.external_ips);
    let external: HashSet<IpAddr> = external.copied().collect();
    let mut cluster_ips = HashMap::new();
    for claims in services.iter().filter(|_| !external.is_empty()) {
        let own = claims.cluster_ips.iter().filter(|it| external.contains(it));
        cluster_ips.extend(own.map(|address| (*address, claims.service)));
    }
    let mut claiming: Vec<_> = services
        .into_iter()
        .filter(|it| !it.external_ips.is_empty())
        .collect();
    claiming.sort_by_key(|it| (it.age, it.service));
    let mut holders: HashMap<(SocketAddr, String), &N> = HashMap::new();
    let mut refused: BTreeMap<&N, Refused> = BTreeMap::new();
    for Claims {
        service,
        cluster_ips: own,
        external_ips,
        ports,
        ..
    } in claiming
    {
        for address in external_ips.into_iter().filter(|it| !own.contains(it)) {
            let holder = cluster_ips.get(&address);
            let taken = holder.map(|it| format!("a cluster IP of service {}", named(it)));
            let taken = taken.or_else(|| reserved(address));
            for (protocol, port) in &ports {
                let key = (SocketAddr::new(address, *port), protocol.clone());
                let reason = match (&taken, holders.entry(key.clone())) {
                    (Some(taken), _) => format!("{address} is {taken}"),
                    (None, Entry::Occupied(holder)) if *holder.get() != service => {
                        let holder = named(holder.get());
                        format!("the older service {holder} has {protocol} {}", key.0)
                    }
                    (None, entry) => {
                        entry.or_insert(service);
                        continue;
                    }
                };
                refused.entry(service).or_default().insert(key, reason);
            }
        }
    }
    refused
}

/// What a service is told.
pub fn text(refused: &Refused) -> String {
    let reasons: BTreeSet<&str> = refused.values().map(String::as_str).collect();
    let reasons: Vec<_> = reasons.into_iter().collect();
    format!(
        "external IPs or load balancer's addresses that it can't have are left out: {}",
        reasons.join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service<'a>(
        service: &'a &str,
        age: (i64, &'a str),
        cluster_ips: &'a [IpAddr],
        (external, ports): (&str, &[u16]),
    ) -> Claims<'a, &'a str> {
        Claims {
            service,
            age,
            cluster_ips,
            external_ips: external.split(' ').map(|it| it.parse().unwrap()).collect(),
            ports: ports.iter().map(|port| ("tcp".to_owned(), *port)).collect(),
        }
    }

    #[test]
    fn an_address_is_the_older_services_and_a_cluster_ip_its_services_alone() {
        let names = ["dns", "a-younger", "older", "same-age", "thief"];
        let ip = |last: u8| IpAddr::from([10, 96, 0, last]);
        let ips = [[ip(10)], [ip(11)], [ip(12)], [ip(13)], [ip(14)]];
        let [dns, younger, older, same, thief] = [
            service(&names[0], (9, "u"), &ips[0], ("10.96.0.10", &[53])),
            service(&names[1], (5, "u"), &ips[1], ("198.51.100.1", &[80, 443])),
            service(&names[2], (1, "b"), &ips[2], ("198.51.100.1", &[80])),
            service(&names[3], (1, "c"), &ips[3], ("198.51.100.1", &[80])),
            service(
                &names[4],
                (0, "u"),
                &ips[4],
                ("10.96.0.10 192.0.2.1", &[53]),
            ),
        ];
        let node = IpAddr::from([192, 0, 2, 1]);
        let refused = refused(
            [dns, younger, older, same, thief].into_iter(),
            |address| (address == node).then(|| "an address of node n".to_owned()),
            |name| (*name).to_owned(),
        );
        let told: Vec<_> = refused
            .iter()
            .map(|(name, it)| (**name, it.len(), text(it)))
            .collect();
        let of_older = "the older service older has tcp 198.51.100.1:80";
        let of_thief = "10.96.0.10 is a cluster IP of service dns; 192.0.2.1 is an address of";
        let expected = [
            ("a-younger", 1, of_older),
            ("same-age", 1, of_older),
            ("thief", 2, of_thief),
        ];
        assert_eq!(told.len(), expected.len(), "{told:?}");
        for ((name, count, text), (expected, number, part)) in told.iter().zip(expected) {
            assert_eq!((*name, *count), (expected, number));
            assert!(text.contains(part), "{text}");
        }
    }
}
