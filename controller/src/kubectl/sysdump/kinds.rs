//! The API server's objects in a sysdump.

use std::fmt::Write as _;

use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};
use podwire_daemon::bundle::{REMOVED, names_secret};
use serde_json::Value;

use super::{Collected, Source};
use crate::kubectl::exec::Cluster;

/// A kind of objects that is listed.
struct Kind {
    /// Its API, of several versions the newest that the API server knows: GROUP/VERSION.
    api: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
    of: Of,
}

/// Which of them are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    All,
    /// All, if the API server knows the kind: others define it.
    AllIfKnown,
    /// Those of podwire's namespace.
    Own,
}

const fn kind(
    of: Of,
    api: &'static [&'static str],
    kind: &'static str,
    plural: &'static str,
) -> Kind {
    Kind {
        api,
        kind,
        plural,
        of,
    }
}

/// Never Secrets. Kubernetes before 1.21 has the older versions alone.
const KINDS: [Kind; 19] = [
    kind(Of::All, &["v1"], "Node", "nodes"),
    kind(Of::All, &["v1"], "Namespace", "namespaces"),
    kind(Of::All, &["v1"], "Pod", "pods"),
    kind(Of::All, &["v1"], "Service", "services"),
    kind(Of::All, &SLICES, "EndpointSlice", "endpointslices"),
    kind(
        Of::All,
        &["networking.k8s.io/v1"],
        "NetworkPolicy",
        "networkpolicies",
    ),
    kind(
        Of::AllIfKnown,
        &["policy.networking.k8s.io/v1alpha2"],
        "ClusterNetworkPolicy",
        "clusternetworkpolicies",
    ),
    kind(
        Of::AllIfKnown,
        &["policy.networking.k8s.io/v1alpha1"],
        "AdminNetworkPolicy",
        "adminnetworkpolicies",
    ),
    kind(
        Of::AllIfKnown,
        &["policy.networking.k8s.io/v1alpha1"],
        "BaselineAdminNetworkPolicy",
        "baselineadminnetworkpolicies",
    ),
    kind(
        Of::AllIfKnown,
        &["k8s.cni.cncf.io/v1"],
        "NetworkAttachmentDefinition",
        "network-attachment-definitions",
    ),
    kind(
        Of::AllIfKnown,
        &["k8s.cni.cncf.io/v1beta1"],
        "MultiNetworkPolicy",
        "multi-networkpolicies",
    ),
    kind(
        Of::AllIfKnown,
        &["k8s.ovn.org/v1"],
        "UserDefinedNetwork",
        "userdefinednetworks",
    ),
    kind(
        Of::AllIfKnown,
        &["k8s.ovn.org/v1"],
        "ClusterUserDefinedNetwork",
        "clusteruserdefinednetworks",
    ),
    kind(Of::Own, &["v1"], "ConfigMap", "configmaps"),
    kind(Of::Own, &["apps/v1"], "DaemonSet", "daemonsets"),
    kind(Of::Own, &["apps/v1"], "Deployment", "deployments"),
    kind(Of::Own, &["apps/v1"], "StatefulSet", "statefulsets"),
    kind(
        Of::Own,
        &["policy/v1", "policy/v1beta1"],
        "PodDisruptionBudget",
        "poddisruptionbudgets",
    ),
    kind(Of::Own, &["coordination.k8s.io/v1"], "Lease", "leases"),
];

const SLICES: [&str; 2] = ["discovery.k8s.io/v1", "discovery.k8s.io/v1beta1"];

const EVENTS: Kind = kind(Of::All, &["v1"], "Event", "events");

/// The components that post Events.
const COMPONENTS: [&str; 3] = ["podwire", "podwire-controller", "podwire-node"];

/// A file for each kind, and one for the Events.
pub(super) fn sources<'a>(cluster: &'a Cluster, files: &'a Collected) -> Vec<Source<'a>> {
    let kinds = KINDS.iter().map(|kind| {
        let file = format!("objects/{}.json", kind.plural);
        let name = file.clone();
        Source::new(file, async move {
            let unknown = || "the API server does not know the kind".to_owned();
            let text = match kind.listed(cluster).await {
                Ok(None) if kind.of == Of::AllIfKnown => return,
                Ok(listed) => listed.ok_or_else(unknown),
                Err(why) => Err(why),
            };
            files.borrow_mut().put(&name, text);
        })
    });
    let events = "objects/events.json".to_owned();
    let events = Source::of_file(files, events, events_of(cluster));
    kinds.chain([events]).collect()
}

impl Kind {
    /// The objects; None if the API server does not know the kind.
    async fn listed(&self, cluster: &Cluster) -> Result<Option<String>, String> {
        let of_own = self.of == Of::Own;
        for version in self.api {
            let objects = self.objects(cluster, version, of_own, ListParams::default());
            if let Some(objects) = objects.await? {
                return Ok(Some(lines(objects, &cluster.namespace, self.kind)));
            }
        }
        Ok(None)
    }

    async fn objects(
        &self,
        cluster: &Cluster,
        api: &str,
        of_own: bool,
        wanted: ListParams,
    ) -> Result<Option<Vec<DynamicObject>>, String> {
        let (group, version) = api.split_once('/').unwrap_or(("", api));
        let kind = GroupVersionKind::gvk(group, version, self.kind);
        let resource = ApiResource::from_gvk_with_plural(&kind, self.plural);
        let client = cluster.client.clone();
        let api: Api<DynamicObject> = match of_own {
            true => Api::namespaced_with(client, &cluster.namespace, &resource),
            false => Api::all_with(client, &resource),
        };
        let listed = cluster.list_if_known(&api, wanted).await;
        listed.map_err(|failure| failure.to_string())
    }
}

/// The Events of podwire's namespace, and those that podwire posted elsewhere.
async fn events_of(cluster: &Cluster) -> Result<String, String> {
    let unknown = || "the API server does not know the kind".to_owned();
    let own = EVENTS.objects(cluster, "v1", true, ListParams::default());
    let mut events = own.await?.ok_or_else(unknown)?;
    for component in COMPONENTS {
        let wanted = ListParams::default().fields(&format!("source={component}"));
        let posted = EVENTS.objects(cluster, "v1", false, wanted).await?;
        let posted = posted.ok_or_else(unknown)?.into_iter();
        let own = Some(&cluster.namespace);
        events.extend(posted.filter(|it| it.metadata.namespace.as_ref() != own));
    }
    Ok(lines(events, &cluster.namespace, EVENTS.kind))
}

/// What may hold secrets in the specification of a pod that is not podwire's, and says nothing of
/// its network.
const PRIVATE: [&str; 5] = ["env", "envFrom", "command", "args", "httpHeaders"];

/// Objects, one per line, without what says who wrote which field, and without secrets that only
/// their place shows.
fn lines(objects: Vec<DynamicObject>, own: &str, kind: &str) -> String {
    let mut text = String::new();
    for mut object in objects {
        let is_foreign = kind == "Pod" && object.metadata.namespace.as_deref() != Some(own);
        remove_secrets(&mut object.data, is_foreign);
        object.metadata.managed_fields = None;
        if let Some(annotations) = &mut object.metadata.annotations {
            annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
        }
        let line = serde_json::to_string(&object).unwrap_or_default();
        let _ = writeln!(text, "{line}");
    }
    text
}

fn remove_secrets(value: &mut Value, is_foreign: bool) {
    match value {
        Value::Object(fields) => {
            if is_foreign {
                fields.retain(|name, _| !PRIVATE.contains(&&**name));
            }
            // A variable of a container.
            let name = fields.get("name").and_then(Value::as_str);
            let is_secret = name.is_some_and(names_secret);
            if let Some(value) = fields.get_mut("value").filter(|_| is_secret) {
                *value = REMOVED.into();
            }
            let fields = fields.values_mut();
            fields.for_each(|it| remove_secrets(it, is_foreign));
        }
        Value::Array(values) => values
            .iter_mut()
            .for_each(|it| remove_secrets(it, is_foreign)),
        _ => {}
    }
}
