//! Services and their endpoints, reduced to what a service proxy depends on.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use podwire_apiserver::object::Metadata;

use crate::{Name, SERVICE_NAME, api};

/// A protocol that services can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// The API's default.
    #[default]
    Tcp,
    /// Without connections.
    Udp,
    /// RFC 9260.
    Sctp,
}

impl Protocol {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// By its name in the API, which may be absent.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "" => Some(Self::default()),
            _ => Self::ALL.into_iter().find(|it| it.api_name() == name),
        }
    }

    /// Its name in the API.
    pub fn api_name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        }
    }

    /// Its name in nftables and OVN.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    /// Its number in IP headers (IANA).
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
        }
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A service that has at least one cluster IP.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// Distinguishes several services with this name over time.
    pub uid: Name,
    /// Seconds since 1970.
    pub created: i64,
    /// Its cluster IPs.
    pub cluster_ips: Vec<IpAddr>,
    /// Its external IPs.
    pub external_ips: Vec<IpAddr>,
    /// The addresses of a load balancer that sends packets with these addresses to the nodes.
    pub balancer_ips: Vec<IpAddr>,
    /// The clients that may use those; see [`Service::sources`].
    pub source_ranges: Vec<IpNet>,
    /// Its ports.
    pub ports: Vec<ServicePort>,
    /// `externalTrafficPolicy: Local`.
    pub is_external_local: bool,
    /// `internalTrafficPolicy: Local`: its cluster IPs lead only to endpoints on the client's node.
    pub is_internal_local: bool,
    /// Session affinity by client address, in seconds.
    pub affinity: Option<u32>,
    /// `healthCheckNodePort`, if its external traffic policy is Local.
    pub health_port: Option<u16>,
    /// Whether endpoints that are not ready count as ready.
    pub publish_unready: bool,
}

/// A port of a service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServicePort {
    /// Its name, which links it to the ports of endpoints; may be empty.
    pub name: String,
    /// Its protocol.
    pub protocol: Protocol,
    /// The number that clients use.
    pub port: u16,
    /// The number on addresses of nodes.
    pub node_port: Option<u16>,
}

/// A part of a service's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice {
    /// The endpoints.
    pub endpoints: Vec<Endpoint>,
    /// By the port's name: protocol and number.
    pub ports: BTreeMap<String, (Protocol, u16)>,
}

/// An endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// The node that it is on.
    pub node: Option<Box<str>>,
    /// Accepts new connections.
    pub ready: bool,
    /// Still answers while it terminates.
    pub serving: bool,
}

impl Service {
    /// The relevant part of a service; `None` for one that is headless, an alias or another
    /// proxy's.
    pub fn of(service: &api::Service) -> Option<Self> {
        let (metadata, spec) = (&service.metadata, &service.spec);
        let cluster_ips = parsed(spec.all_cluster_ips());
        if cluster_ips.is_empty() || is_ignored(metadata) {
            return None;
        }
        let ingress = service.status.load_balancer.ingress.iter();
        // A load balancer in proxy mode sends packets to node ports (KEP-1860).
        let ingress = ingress.filter(|it| it.ip_mode != "Proxy");
        let seconds = spec.session_affinity_config.client_ip.timeout_seconds;
        let seconds = seconds.and_then(|seconds| u32::try_from(seconds).ok());
        let ports = spec.ports.iter().filter_map(|it| {
            Some(ServicePort {
                name: it.name.clone(),
                protocol: Protocol::named(&it.protocol)?,
                port: port(it.port)?,
                node_port: port(it.node_port),
            })
        });
        let is_external_local = spec.external_traffic_policy == "Local";
        let created = metadata.creation_timestamp;
        Some(Self {
            uid: metadata.uid.as_str().into(),
            created: created.map_or(i64::MAX, |time| time.as_second()),
            cluster_ips,
            external_ips: parsed(&spec.external_ips),
            balancer_ips: parsed(ingress.map(|it| &it.ip)),
            source_ranges: parsed(&spec.load_balancer_source_ranges),
            ports: ports.collect(),
            is_external_local,
            is_internal_local: spec.internal_traffic_policy == "Local",
            // Kubernetes' default.
            affinity: (spec.session_affinity == "ClientIP").then(|| seconds.unwrap_or(10_800)),
            health_port: port(spec.health_check_node_port).filter(|_| is_external_local),
            publish_unready: spec.publish_not_ready_addresses,
        })
    }

    /// The clients that may use its load balancer's addresses of a family, without overlaps; empty
    /// for all.
    pub fn sources(&self, v4: bool) -> Vec<IpNet> {
        let ranges = self.source_ranges.iter();
        let own = ranges.filter(|it| it.addr().is_ipv4() == v4);
        IpNet::aggregate(&own.copied().collect())
    }

    /// Whether nodes lead clients from outside to it.
    pub fn is_exposed(&self) -> bool {
        let mut ports = self.ports.iter();
        ports.any(|port| port.node_port.is_some())
            || !self.external_ips.is_empty()
            || !self.balancer_ips.is_empty()
    }

    /// The endpoints behind a port, of those that are `wanted`: the ones that are ready; if none
    /// is, those that still serve while they terminate.
    pub fn endpoints<'a>(
        &self,
        port: &ServicePort,
        slices: impl Iterator<Item = &'a Slice>,
        wanted: impl Fn(&Endpoint) -> bool,
    ) -> BTreeSet<SocketAddr> {
        let (mut ready, mut ending) = (BTreeSet::new(), BTreeSet::new());
        for slice in slices {
            let Some((protocol, number)) = slice.ports.get(&port.name) else {
                continue;
            };
            if *protocol != port.protocol {
                continue;
            }
            for endpoint in slice.endpoints.iter().filter(|it| wanted(it)) {
                let target = SocketAddr::new(endpoint.address, *number);
                if endpoint.ready || self.publish_unready {
                    ready.insert(target);
                } else if endpoint.serving {
                    ending.insert(target);
                }
            }
        }
        if ready.is_empty() { ending } else { ready }
    }
}

impl Slice {
    /// The service of a slice, and its endpoints; `None` if it belongs to no service, or is
    /// another proxy's.
    pub fn of(slice: &api::EndpointSlice) -> Option<(Name, Self)> {
        let service = slice.metadata.labels.get(SERVICE_NAME)?;
        if is_ignored(&slice.metadata) {
            return None;
        }
        let ports = slice.ports.iter().filter_map(|it| {
            let number = port(it.port)?;
            Some((it.name.clone(), (Protocol::named(&it.protocol)?, number)))
        });
        let endpoints = slice.endpoints.iter().filter_map(|endpoint| {
            // Further addresses of one endpoint must not be used (discovery/v1).
            let address: IpAddr = endpoint.addresses.first()?.parse().ok()?;
            // The API forbids those of every host.
            if address.is_loopback() || address.is_unspecified() {
                return None;
            }
            let ready = endpoint.conditions.ready.unwrap_or(true);
            Some(Endpoint {
                address,
                node: endpoint.node().map(Into::into),
                ready,
                serving: endpoint.conditions.serving.unwrap_or(ready),
            })
        });
        let slice = Self {
            endpoints: endpoints.collect(),
            ports: ports.collect(),
        };
        Some((service.as_str().into(), slice))
    }
}

/// Whether proxies ignore an object, as kube-proxy does (the selector of its informers): it is for
/// another proxy, or headless.
fn is_ignored(metadata: &Metadata) -> bool {
    let labels = [
        "service.kubernetes.io/service-proxy-name",
        "service.kubernetes.io/headless",
    ];
    labels.iter().any(|it| metadata.labels.contains_key(*it))
}

/// Those that are valid.
pub fn parsed<'a, T: FromStr>(texts: impl IntoIterator<Item = &'a String>) -> Vec<T> {
    let texts = texts.into_iter();
    texts.filter_map(|text| text.trim().parse().ok()).collect()
}

/// A valid port number.
fn port(number: Option<i64>) -> Option<u16> {
    u16::try_from(number?).ok().filter(|number| *number != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn service(labels: &Value, spec: &Value) -> Option<Service> {
        let object = json!({
            "metadata": { "labels": labels }, "spec": spec,
            "status": { "loadBalancer": { "ingress": [
                { "ip": "198.51.100.1", "ipMode": "VIP" },
                { "ip": "198.51.100.2", "ipMode": "Proxy" },
            ] } },
        });
        Service::of(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn headless_ones_aliases_and_those_of_other_proxies_are_no_services() {
        let spec = json!({ "clusterIP": "10.96.0.1" });
        assert!(service(&json!({ "app": "web" }), &spec).is_some());
        for spec in [json!({ "clusterIP": "None" }), json!({})] {
            assert_eq!(service(&json!({}), &spec), None);
        }
        for label in ["service-proxy-name", "headless"] {
            let labels = json!({ format!("service.kubernetes.io/{label}"): "" });
            assert_eq!(service(&labels, &spec), None);
            let mut labels = labels;
            let slice = |labels: &Value| {
                let slice = json!({ "metadata": { "labels": labels } });
                Slice::of(&serde_json::from_value(slice).unwrap())
            };
            labels[SERVICE_NAME] = "web".into();
            assert_eq!(slice(&labels), None);
            assert!(slice(&json!({ SERVICE_NAME: "web" })).is_some());
        }
    }

    #[test]
    fn a_balancer_in_proxy_mode_has_no_address_and_ranges_are_those_of_a_family() {
        let ranges = ["192.0.2.0/24", "192.0.2.0/25", "fd00::/8"];
        let spec = json!({ "clusterIP": "10.96.0.1", "loadBalancerSourceRanges": ranges });
        let service = service(&json!({}), &spec).unwrap();
        assert_eq!(service.balancer_ips, [IpAddr::from([198, 51, 100, 1])]);
        let net = |text: &str| -> IpNet { text.parse().unwrap() };
        assert_eq!(service.sources(true), [net("192.0.2.0/24")]);
        assert_eq!(service.sources(false), [net("fd00::/8")]);
    }
}
