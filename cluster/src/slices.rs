//! EndpointSlices: from an API server of any version, and by their service.

use std::collections::{BTreeMap, HashMap};

use futures_util::stream::{Stream, unfold};
use podwire_apiserver::watch::{Connect, Event, Selection, Watch};
use tracing::info;

use crate::api::EndpointSlice;
use crate::{Name, ObjectName};

/// The label in which a slice names its service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Follows all EndpointSlices of a cluster: of discovery.k8s.io/v1, since Kubernetes 1.21, or if
/// the server does not have it, of v1beta1, until 1.24. A server with neither is asked for both in
/// turn.
pub fn endpoint_slices<C>(connect: C) -> impl Stream<Item = Event<EndpointSlice>> + Send
where
    C: Connect + Clone + Send + 'static,
{
    let beta = Selection {
        api: Some("discovery.k8s.io/v1beta1"),
        ..Selection::default()
    };
    let both = Both {
        v1: Watch::new(connect.clone(), Selection::default()),
        v1beta1: Watch::new(connect, beta),
        is_beta: false,
    };
    unfold(both, |mut both| async move {
        let event = both.next().await;
        Some((event, both))
    })
}

struct Both<C> {
    v1: Watch<EndpointSlice, C>,
    v1beta1: Watch<EndpointSlice, C>,
    is_beta: bool,
}

impl<C: Connect + Send> Both<C> {
    async fn next(&mut self) -> Event<EndpointSlice> {
        if !self.is_beta {
            match self.v1.next().await {
                Event::Failed(failure) if failure.is_missing() => self.is_beta = true,
                event => return event,
            }
            info!("the API server has no discovery.k8s.io/v1; EndpointSlices come from v1beta1");
        }
        let event = self.v1beta1.next().await;
        self.is_beta = !matches!(&event, Event::Failed(failure) if failure.is_missing());
        event
    }
}

/// Slices by their service, which may change.
#[derive(Clone, Debug)]
pub struct Slices<S> {
    /// By namespace, service and the slice's name.
    by_service: BTreeMap<(Name, Name, Name), S>,
    services: HashMap<ObjectName, Name>,
}

impl<S> Default for Slices<S> {
    fn default() -> Self {
        Self {
            by_service: BTreeMap::new(),
            services: HashMap::new(),
        }
    }
}

impl<S: PartialEq> Slices<S> {
    /// Sets a slice of a service, or removes one; returns the services whose slices differ now.
    pub fn set(&mut self, name: ObjectName, slice: Option<(Name, S)>) -> Vec<ObjectName> {
        let (namespace, own) = name.clone();
        let mut changed = Vec::new();
        let service = slice.as_ref().map(|(service, _)| service.clone());
        let former = match &service {
            Some(service) => self.services.insert(name, service.clone()),
            None => self.services.remove(&name),
        };
        if let Some(former) = former.filter(|former| Some(former) != service.as_ref()) {
            let key = (namespace.clone(), former.clone(), own.clone());
            self.by_service.remove(&key);
            changed.push((namespace.clone(), former));
        }
        if let Some((service, slice)) = slice {
            let key = (namespace.clone(), service.clone(), own);
            if self.by_service.get(&key) != Some(&slice) {
                self.by_service.insert(key, slice);
                changed.push((namespace, service));
            }
        }
        changed
    }

    /// Whether a slice is known.
    pub fn has(&self, name: &ObjectName) -> bool {
        self.services.contains_key(name)
    }

    /// All slices, each with its namespace and service.
    pub fn all(&self) -> impl Iterator<Item = ((&Name, &Name), &S)> {
        let slices = self.by_service.iter();
        slices.map(|((namespace, service, _), slice)| ((namespace, service), slice))
    }

    /// The slices of a service.
    pub fn of(&self, namespace: &str, service: &str) -> impl Iterator<Item = &S> + Clone {
        let from = (namespace.into(), service.into(), Name::default());
        self.by_service
            .range(from..)
            .take_while(move |((ns, name, _), _)| ns == namespace && name == service)
            .map(|(_, slice)| slice)
    }
}
