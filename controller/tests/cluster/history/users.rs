//! What holds for a user's network.

use serde_json::{Value, json};

use super::{PODS, World};
use crate::networks::ASKED;
use crate::user_networks::{DEFINITION, FINALIZER, OF_CLUSTER, condition};

impl World {
    /// Its definition is there as long as the network selects the namespace, or a pod uses it, and
    /// is as it should be. Returns whether something is refused.
    pub(super) fn check_users(&self) -> usize {
        let network = self.server.object(OF_CLUSTER, "", "green");
        let definition = self.server.object(DEFINITION, "default", "green");
        let pods = (0..PODS).filter_map(|number| self.pod(number));
        let uses = |pod: &Value| {
            pod["metadata"]["annotations"][ASKED] == "green" && pod["status"]["phase"] != "Failed"
        };
        let is_used = pods.into_iter().any(|pod| uses(&pod));
        let Some(network) = network else {
            // Without a finalizer the network goes before its definition.
            let is_going = |it: &Value| is_used && it["metadata"]["deletionTimestamp"].is_string();
            assert!(definition.as_ref().is_none_or(is_going), "{definition:?}");
            return 0;
        };
        let metadata = &network["metadata"];
        let owner = definition
            .as_ref()
            .map(|it| &it["metadata"]["ownerReferences"][0]["uid"]);
        let is_own = owner == Some(&metadata["uid"]);
        if definition.is_some() && !is_own {
            // That of a network that is gone.
            assert!(is_used, "{definition:?}");
            let of = self.server.object("Namespace", "", "default");
            return usize::from(of.is_some_and(|of| selects(&network, &of)));
        }
        if metadata["deletionTimestamp"].is_string() {
            assert!(is_used && is_own, "{network} {definition:?}");
            return 1;
        }
        assert_eq!(metadata["finalizers"], json!([FINALIZER]));
        let of = self.server.object("Namespace", "", "default");
        let is_selected = of.is_some_and(|of| selects(&network, &of));
        let [created, ..] = condition(&network, "NetworkCreated").unwrap();
        if !is_selected {
            assert_eq!(
                definition.is_some(),
                created == "False",
                "{network} {definition:?}"
            );
            assert!(definition.is_none() || is_used, "{network} {definition:?}");
            return usize::from(definition.is_some());
        }
        let definition = definition.unwrap();
        assert_eq!(created, "True", "{network}");
        assert_eq!(definition["metadata"]["finalizers"], json!([FINALIZER]));
        assert_eq!(definition["metadata"]["deletionTimestamp"], json!(null));
        let config = definition["spec"]["config"].as_str().unwrap();
        assert!(config.contains("cluster_udn_green") && config.contains("10.4.0.0/24"));
        let [allocated, ..] = condition(&network, "NetworkAllocationSucceeded").unwrap();
        assert_eq!(allocated, "True", "{network}");
        0
    }
}

fn selects(network: &Value, namespace: &Value) -> bool {
    let wanted = &network["spec"]["namespaceSelector"]["matchLabels"]["team"];
    namespace["metadata"]["labels"]["team"] == *wanted
}
