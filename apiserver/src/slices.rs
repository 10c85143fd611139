//! The API server's EndpointSlices: discovery.k8s.io/v1, since Kubernetes 1.21, or v1beta1, until
//! 1.24.

use std::borrow::Cow;

use futures_util::stream::{Stream, unfold};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;
use tracing::info;

use crate::watch::{Connect, Event, Selection, Watch};

/// Follows all EndpointSlices of a cluster. If the server has no v1, they come from v1beta1,
/// converted to v1. A server with neither is asked for both in turn.
pub fn endpoint_slices<C>(connect: C) -> impl Stream<Item = Event<EndpointSlice>> + Send
where
    C: Connect + Clone + Send + 'static,
{
    let both = Slices {
        v1: Watch::new(connect.clone(), Selection::default()),
        v1beta1: Watch::new(connect, Selection::default()),
        is_beta: false,
    };
    unfold(both, |mut both| async move {
        let event = both.next().await;
        Some((event, both))
    })
}

struct Slices<C> {
    v1: Watch<EndpointSlice, C>,
    v1beta1: Watch<BetaSlice, C>,
    is_beta: bool,
}

impl<C: Connect + Send> Slices<C> {
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
        event.map(|slice| slice.0)
    }
}

/// An EndpointSlice of v1beta1, converted to v1.
#[derive(Debug, Clone)]
struct BetaSlice(EndpointSlice);

impl<'de> Deserialize<'de> for BetaSlice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut slice = Value::deserialize(deserializer)?;
        if let Some(members) = slice.as_object_mut() {
            members.remove("apiVersion");
        }
        let endpoints = slice["endpoints"].as_array_mut();
        for endpoint in endpoints.into_iter().flatten() {
            // v1 has a field for it, which v1beta1 got in 1.20, behind a feature gate.
            if endpoint["nodeName"].is_null() {
                endpoint["nodeName"] = endpoint["topology"]["kubernetes.io/hostname"].take();
            }
        }
        let slice = serde_json::from_value(slice).map_err(D::Error::custom)?;
        Ok(Self(slice))
    }
}

impl Resource for BetaSlice {
    type DynamicType = ();
    type Scope = <EndpointSlice as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        EndpointSlice::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        EndpointSlice::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1beta1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        EndpointSlice::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.meta()
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
    }
}
