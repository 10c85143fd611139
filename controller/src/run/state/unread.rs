//! What rows tell of services and slices that could not be read at the start.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use podwire_cluster::service::{Endpoint, Protocol, Service, ServicePort, Slice};
use podwire_ovs::nb::Table;
use podwire_ovs::replica::{Db, Row as Found};

use super::State;
use crate::cluster::{Name, ObjectName};
use crate::key::{Key, Of};
use crate::want::NODE_SWITCH;

impl State {
    /// A slice can't be read. One that comes later has no endpoints yet.
    pub(crate) fn learn_unread_slice(&mut self, id: ObjectName, service: Option<Name>) {
        if self.is_held(Of::Service) && !self.cluster.slices.has(&id) {
            let service = service.map(|service| (id, service));
            self.unread_slices.extend(service);
        }
    }

    /// Gives a service's slices that could not be read the endpoints that its rows have and no
    /// other slice has.
    pub(super) fn fill_unread_slices(&mut self, id: &ObjectName, db: &Db) {
        let slices = self.unread_slices.iter();
        let own = slices.filter(|(slice, service)| (&slice.0, *service) == (&id.0, &id.1));
        let own: Vec<ObjectName> = own.map(|(slice, _)| slice.clone()).collect();
        let Some(service) = self.cluster.services.get(id).filter(|_| !own.is_empty()) else {
            return;
        };
        let others: Vec<_> = self.cluster.slices.of(&id.0, &id.1).collect();
        let slice = slice_in_rows(id, service, &others, db);
        for name in own {
            self.unread_slices.remove(&name);
            let slice = (id.1.clone(), slice.clone());
            self.cluster.slices.set(name, Some(slice));
        }
    }

    /// The services that can't be read, with the addresses and ports of their rows; they were there
    /// before all others.
    pub(super) fn unread_services(&self, db: &Db) -> BTreeMap<ObjectName, Service> {
        let services = self.unreadable.iter().filter(|key| key.of == Of::Service);
        let services = services.map(|key| {
            let mut service = Service {
                created: i64::MIN,
                ..Service::default()
            };
            for row in balancers(&key.id(), db) {
                let protocol = protocol(&row).unwrap_or_default();
                for (vip, _) in vips(&row) {
                    service.external_ips.push(vip.ip());
                    service.ports.push(ServicePort {
                        protocol,
                        port: vip.port(),
                        ..ServicePort::default()
                    });
                }
            }
            (key.id(), service)
        });
        services.collect()
    }
}

/// One has the same ports for all its endpoints: a row's endpoint with another number is left out.
fn slice_in_rows(id: &ObjectName, service: &Service, others: &[&Slice], db: &Db) -> Slice {
    let mut slice = Slice::default();
    let mut nodes: BTreeMap<IpAddr, Option<Box<str>>> = BTreeMap::new();
    for row in balancers(id, db) {
        let name = row.str("name").unwrap_or_default();
        let node = name.split_once(NODE_SWITCH).map(|(_, node)| node);
        for (vip, endpoints) in vips(&row) {
            let mut ports = service.ports.iter();
            let port =
                ports.find(|it| it.port == vip.port() && protocol(&row) == Some(it.protocol));
            let Some(port) = port else {
                continue;
            };
            for endpoint in endpoints {
                let number = (port.protocol, endpoint.port());
                let has = |other: &&Slice| {
                    let mut all = other.endpoints.iter();
                    other.ports.get(&port.name) == Some(&number)
                        && all.any(|it| it.address == endpoint.ip())
                };
                if others.iter().any(has) {
                    continue;
                }
                let own = slice.ports.entry(port.name.clone());
                if *own.or_insert(number) == number {
                    let known = nodes.entry(endpoint.ip()).or_default();
                    *known = known.take().or(node.map(Into::into));
                }
            }
        }
    }
    let endpoints = nodes.into_iter().map(|(address, node)| Endpoint {
        address,
        node,
        ready: true,
        serving: true,
    });
    slice.endpoints = endpoints.collect();
    slice
}

/// A service's load balancers.
fn balancers<'a>(id: &ObjectName, db: &'a Db) -> Vec<Found<'a>> {
    let key = Key::service(id.clone()).to_string();
    db.nb_of_object(Table::LoadBalancer, key).collect()
}

fn protocol(row: &Found<'_>) -> Option<Protocol> {
    let mut all = Protocol::ALL.into_iter();
    all.find(|it| row.str("protocol") == Some(it.name()))
}

/// The addresses of a load balancer, each with its endpoints.
fn vips<'a>(row: &Found<'a>) -> impl Iterator<Item = (SocketAddr, Vec<SocketAddr>)> + use<'a> {
    row.map("vips").strings().filter_map(|(vip, endpoints)| {
        let endpoints = endpoints.split(',').filter_map(|it| it.parse().ok());
        Some((vip.parse().ok()?, endpoints.collect()))
    })
}
