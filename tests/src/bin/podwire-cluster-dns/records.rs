//! The records of a name.

use std::net::IpAddr;

use serde_json::Value;
use simple_dns::rdata::{A, AAAA, CNAME as Alias, PTR, RData, SRV};
use simple_dns::{CLASS, Name, QTYPE, ResourceRecord, TYPE};

use crate::api::Api;
use crate::hosts::Hosts;

/// The question that an alias answers, as it answers every other.
pub(crate) const CNAME: QTYPE = QTYPE::TYPE(TYPE::CNAME);
const ZONE: &str = ".cluster.local";
/// In seconds, as CoreDNS has it for services.
const TTL: u32 = 5;

/// What is known of a name.
pub(crate) enum Answer {
    /// Nothing.
    NoSuchName,
    /// Its records of all types.
    Records(Vec<ResourceRecord<'static>>),
}

/// Who knows the names.
pub(crate) enum Source {
    /// The API server.
    Cluster(Api),
    /// A file.
    Hosts(Hosts),
}

/// All records of a name, which is in lower case, without the last dot.
pub(crate) async fn answer(source: &Source, name: &str) -> kube::Result<Answer> {
    match source {
        Source::Cluster(api) => of_cluster(api, name).await,
        Source::Hosts(hosts) => Ok(match reversed(name) {
            Some(address) => found(name, hosts.name(address).map(|it| RData::PTR(PTR(to(it))))),
            None => found(name, hosts.addresses(name).map(address_data)),
        }),
    }
}

async fn of_cluster(api: &Api, name: &str) -> kube::Result<Answer> {
    if let Some(address) = reversed(name) {
        let services = api.services().await?;
        let service = services
            .iter()
            .find(|service| addresses(service).contains(&address));
        return Ok(found(
            name,
            service.map(|it| RData::PTR(PTR(to(&own_name(it))))),
        ));
    }
    let Some(labels) = name.strip_suffix(ZONE) else {
        return Ok(Answer::NoSuchName);
    };
    let mut labels: Vec<&str> = labels.split('.').collect();
    labels.reverse();
    let data = match labels[..] {
        ["pod", _, dashed] => undashed(dashed).map(address_data).into_iter().collect(),
        // They exist, without a record of their own.
        ["svc"] | ["pod"] => return Ok(Answer::Records(Vec::new())),
        ["svc", namespace, service] => of_service(api, namespace, service).await?,
        ["svc", namespace, service, host] => {
            let endpoints = api.endpoints(namespace, service).await?;
            let hosts = hosts(&endpoints).into_iter();
            let own = hosts.filter(|(name, _)| name == host);
            own.map(|(_, address)| address_data(address)).collect()
        }
        ["svc", namespace, service, protocol, port] => {
            of_port(api, (namespace, service), protocol, port).await?
        }
        _ => Vec::new(),
    };
    Ok(found(name, data))
}

fn found(name: &str, data: impl IntoIterator<Item = RData<'static>>) -> Answer {
    let record = |data| ResourceRecord::new(to(name), CLASS::IN, TTL, data);
    let records: Vec<_> = data.into_iter().map(record).collect();
    if records.is_empty() {
        Answer::NoSuchName
    } else {
        Answer::Records(records)
    }
}

/// The service's own addresses; those of its endpoints when it has none; the name that it stands
/// for.
async fn of_service(api: &Api, namespace: &str, name: &str) -> kube::Result<Vec<RData<'static>>> {
    let service = api.service(namespace, name).await?;
    let spec = &service["spec"];
    if let ("ExternalName", Some(name)) = (text(&spec["type"]), spec["externalName"].as_str()) {
        return Ok(vec![RData::CNAME(Alias(to(name)))]);
    }
    let addresses = if is_headless(&service) {
        let hosts = hosts(&api.endpoints(namespace, name).await?);
        hosts.into_iter().map(|(_, address)| address).collect()
    } else {
        addresses(&service)
    };
    Ok(addresses.into_iter().map(address_data).collect())
}

/// `_port._protocol` of a service, a namespace and a name.
async fn of_port(
    api: &Api,
    (namespace, name): (&str, &str),
    protocol: &str,
    port: &str,
) -> kube::Result<Vec<RData<'static>>> {
    let is_it = |item: &&Value| {
        port.strip_prefix('_') == item["name"].as_str()
            && protocol
                .strip_prefix('_')
                .is_some_and(|protocol| protocol.eq_ignore_ascii_case(text(&item["protocol"])))
    };
    let service = api.service(namespace, name).await?;
    if !is_headless(&service) {
        let ports = items(&service["spec"]["ports"]).iter().filter(is_it);
        return Ok(ports.map(|it| srv(it, &own_name(&service))).collect());
    }
    let endpoints = api.endpoints(namespace, name).await?;
    let mut data = Vec::new();
    for subset in items(&endpoints["subsets"]) {
        for port in items(&subset["ports"]).iter().filter(is_it) {
            for (host, _) in subset_hosts(subset) {
                data.push(srv(port, &format!("{host}.{}", own_name(&service))));
            }
        }
    }
    Ok(data)
}

fn srv(port: &Value, target: &str) -> RData<'static> {
    let number = port["port"].as_u64().unwrap_or_default();
    RData::SRV(SRV {
        priority: 0,
        weight: 100,
        port: u16::try_from(number).unwrap_or_default(),
        target: to(target),
    })
}

fn is_headless(service: &Value) -> bool {
    service["spec"]["clusterIP"] == "None"
}

fn own_name(service: &Value) -> String {
    let (name, namespace) = (
        &service["metadata"]["name"],
        &service["metadata"]["namespace"],
    );
    format!("{}.{}.svc{ZONE}", text(name), text(namespace))
}

/// A service's addresses. Both fields, for services of before dual stack have the first alone.
fn addresses(service: &Value) -> Vec<IpAddr> {
    let spec = &service["spec"];
    let all = items(&spec["clusterIPs"])
        .iter()
        .chain([&spec["clusterIP"]]);
    let mut addresses: Vec<_> = all.filter_map(|it| text(it).parse().ok()).collect();
    addresses.dedup();
    addresses.truncate(items(&spec["clusterIPs"]).len().max(1));
    addresses
}

/// The name of each endpoint below its service's, and its address.
fn hosts(endpoints: &Value) -> Vec<(String, IpAddr)> {
    let subsets = items(&endpoints["subsets"]).iter();
    subsets.flat_map(subset_hosts).collect()
}

fn subset_hosts(subset: &Value) -> Vec<(String, IpAddr)> {
    let host = |item: &Value| {
        let address: IpAddr = text(&item["ip"]).parse().ok()?;
        let name = item["hostname"].as_str().map(str::to_owned);
        let dashed = || address.to_string().replace(['.', ':'], "-");
        Some((name.unwrap_or_else(dashed), address))
    };
    items(&subset["addresses"])
        .iter()
        .filter_map(host)
        .collect()
}

fn address_data(address: IpAddr) -> RData<'static> {
    match address {
        IpAddr::V4(address) => RData::A(A {
            address: address.to_bits(),
        }),
        IpAddr::V6(address) => RData::AAAA(AAAA {
            address: address.to_bits(),
        }),
    }
}

/// The address whose PTR record's name this is.
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<&str> = labels.rsplit('.').collect();
        return octets.join(".").parse().ok();
    }
    let digits: Vec<&str> = name.strip_suffix(".ip6.arpa")?.rsplit('.').collect();
    let groups: Vec<String> = digits.chunks(4).map(<[_]>::concat).collect();
    groups.join(":").parse().ok()
}

/// The address in a pod's name: 10-244-0-5.
fn undashed(dashed: &str) -> Option<IpAddr> {
    let v4 = dashed.replace('-', ".").parse().ok();
    v4.or_else(|| dashed.replace('-', ":").parse().ok())
}

/// A name for the wire; the root where it can't be one.
fn to(name: &str) -> Name<'static> {
    Name::new(name).map_or_else(|_| Name::new_unchecked(""), Name::into_owned)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
