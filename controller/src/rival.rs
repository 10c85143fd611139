//! Detects ovn-kubernetes' own control plane: two that write the same rows and annotations must not
//! run at the same time. Its leader holds a lock `ovn-kubernetes-master`: a Lease or, before 2023,
//! an annotation of a ConfigMap.

use k8s_openapi::jiff::Timestamp;
use podwire_apiserver::Access;
use podwire_apiserver::object::{MetadataOf, Object};
use podwire_apiserver::watch::{Event, Selection, Watch};
use podwire_cluster::api::{ConfigMap, Lease};
use serde::Deserialize;
use tokio::sync::oneshot;
use tracing::warn;

const NAME: &str = "ovn-kubernetes-master";
/// Where client-go's election stores its record in an object without a field for it.
const RECORD: &str = "control-plane.alpha.kubernetes.io/leader";

/// The holder of a lock, its last renewal, and its duration.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    holder_identity: String,
    lease_duration_seconds: i64,
    renew_time: Option<Timestamp>,
}

impl Record {
    /// Whether it is held, by this machine's clock.
    fn is_held(&self, now: Timestamp) -> bool {
        let renewed = self.renew_time.map_or(0, Timestamp::as_second);
        let seconds = self.lease_duration_seconds;
        !self.holder_identity.is_empty() && now.as_second() - renewed <= seconds
    }

    fn of_lease(lease: &Lease) -> Option<Self> {
        let spec = &lease.spec;
        Some(Self {
            holder_identity: spec.holder_identity.clone(),
            lease_duration_seconds: spec.lease_duration_seconds,
            renew_time: spec.renew_time.parse().ok(),
        })
    }

    fn of_map(map: &MetadataOf<ConfigMap>) -> Option<Self> {
        let text = map.metadata.annotations.get(RECORD)?;
        serde_json::from_str(text).ok()
    }
}

/// Completes with its identity when there is one; notifies `absent` if there was none at first.
pub(crate) async fn appears(server: Access, absent: oneshot::Sender<()>) -> String {
    let (lease_listed, no_lease) = oneshot::channel();
    let (map_listed, no_map) = oneshot::channel();
    let listed = async {
        if no_lease.await.is_ok() && no_map.await.is_ok() {
            let _ = absent.send(());
        }
        std::future::pending::<String>().await
    };
    tokio::select! {
        holder = held(server.clone(), Record::of_lease, lease_listed) => holder,
        holder = held(server.clone(), Record::of_map, map_listed) => holder,
        holder = listed => holder,
    }
}

async fn held<K: Object>(
    server: Access,
    read: fn(&K) -> Option<Record>,
    listed: oneshot::Sender<()>,
) -> String {
    let kind = K::KIND;
    let mut events = Watch::new(server, Selection::named(NAME));
    let mut listed = Some(listed);
    loop {
        match events.next().await {
            Event::AllListed(_) => {
                let _ = listed.take().map(|listed| listed.send(()));
            }
            Event::Listed(object) | Event::Applied(object) => {
                if let Some(record) = read(&object)
                    && record.is_held(Timestamp::now())
                {
                    let namespace = &object.metadata().namespace;
                    return format!("{} holds {kind} {namespace}/{NAME}", record.holder_identity);
                }
            }
            // It may be held.
            Event::Unreadable(what) => return what.to_string(),
            Event::Failed(failure) => {
                warn!(kind, error = %failure, "the lock of ovn-kubernetes can't be read; tried \
                                                again");
            }
            Event::Listing | Event::Watching | Event::Bookmark(_) | Event::Deleted(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_held_until_it_runs_out_or_is_let_go() {
        let record = |holder: &str, ago: i64| Record {
            holder_identity: holder.to_owned(),
            lease_duration_seconds: 60,
            renew_time: Timestamp::from_second(1_000_000 - ago).ok(),
        };
        let now = Timestamp::from_second(1_000_000).unwrap();
        assert!(record("ovnkube", 59).is_held(now));
        assert!(!record("ovnkube", 61).is_held(now));
        assert!(!record("", 1).is_held(now));
    }
}
