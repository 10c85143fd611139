//! EndpointSlices as the API server has them: discovery.k8s.io/v1, which Kubernetes 1.21 brought, or
//! v1beta1, which 1.25 removed.

use std::borrow::Cow;

use futures_util::stream::{self, BoxStream};
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde_json::Value;
use tracing::info;

/// Follows all EndpointSlices of a cluster. Where the server has no v1, they come from v1beta1 in
/// the form of v1. The stream is to be polled with a backoff, as [`watcher`]'s: a server that has
/// neither is asked for both in turn.
pub fn endpoint_slices(
    client: &Client,
) -> impl Stream<Item = watcher::Result<Event<EndpointSlice>>> + Send + 'static {
    let first = Watched {
        client: client.clone(),
        is_beta: false,
        events: v1(client),
    };
    stream::unfold(first, |mut watched| async move {
        let mut event = watched.events.next().await?;
        while event.as_ref().is_err_and(is_missing) {
            watched.turn();
            if !watched.is_beta {
                break;
            }
            info!("the API server has no discovery.k8s.io/v1; EndpointSlices come from v1beta1");
            event = watched.events.next().await?;
        }
        Some((event, watched))
    })
}

struct Watched {
    client: Client,
    is_beta: bool,
    events: BoxStream<'static, watcher::Result<Event<EndpointSlice>>>,
}

impl Watched {
    /// Watches the other version.
    fn turn(&mut self) {
        self.is_beta = !self.is_beta;
        self.events = match self.is_beta {
            true => v1beta1(&self.client),
            false => v1(&self.client),
        };
    }
}

fn v1(client: &Client) -> BoxStream<'static, watcher::Result<Event<EndpointSlice>>> {
    watcher(Api::all(client.clone()), watcher::Config::default()).boxed()
}

fn v1beta1(client: &Client) -> BoxStream<'static, watcher::Result<Event<EndpointSlice>>> {
    let events = watcher(
        Api::<BetaSlice>::all(client.clone()),
        watcher::Config::default(),
    );
    let events = events.map_ok(|event| match event {
        Event::Init => Event::Init,
        Event::InitApply(slice) => Event::InitApply(slice.0),
        Event::InitDone => Event::InitDone,
        Event::Apply(slice) => Event::Apply(slice.0),
        Event::Delete(slice) => Event::Delete(slice.0),
    });
    events.boxed()
}

/// Whether the server does not have what was asked for.
fn is_missing(error: &watcher::Error) -> bool {
    let (watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) =
        error
    else {
        return false;
    };
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// An EndpointSlice of v1beta1, as v1 has it.
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
            // v1 has it in a field, which v1beta1 got in 1.20, behind a gate.
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
