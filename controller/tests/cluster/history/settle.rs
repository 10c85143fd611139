//! When everything that was told is done, and when nothing is left to do.

use podwire_controller::run::Progress;
use podwire_controller::want::policy::policy_group;
use podwire_tests::apiserver::{endpoints, node, pod, service};
use serde_json::{Value, json};

use super::{World, namespace, policy_of};
use crate::fixture::{await_network, await_row};
use crate::networks::definition;
use crate::tiered::{await_condition, tiered};
use crate::user_networks::{OF_CLUSTER, await_condition as await_condition_of, layer2, of_team};

impl World {
    /// Waits until everything that was told so far is done: each kind's last change is, and a pass
    /// after that.
    pub(super) async fn settle(&mut self) {
        self.lead();
        self.settled += 1;
        let (server, name) = (&self.server, format!("last-{}", self.settled));
        server.apply(node(&name, "192.0.2.99"));
        server.apply(pod(&name, "default", &name, &name, json!({})));
        await_network(server, "default", &name);
        let vip = format!("10.96.1.{}", self.settled);
        server.apply(service("default", &name, &vip, 80));
        let row = format!("Service_default/{name}_TCP_cluster");
        await_row(&self.central, "Load_Balancer", &row, true);
        server.apply(endpoints("default", &name, &["10.244.0.99"], 80));
        let vips = json!(["map", [[format!("{vip}:80"), "10.244.0.99:80"]]]);
        let northbound = self.central.northbound();
        let condition = json!([["name", "==", row], ["vips", "==", vips]]);
        northbound
            .wait("Load_Balancer", condition, "!=", &["name"], json!([]))
            .unwrap();
        server.delete_object("Service", "default", &name);
        await_row(&self.central, "Load_Balancer", &row, false);
        // Of the whole cluster. With the object's own watch, what was told before is known.
        let kind = "ClusterNetworkPolicy";
        server.apply(tiered(kind, &name, &json!({ "ingress": [] })));
        let reason = if self.has_tiers {
            "Applied"
        } else {
            "OVNTooOld"
        };
        await_condition(server, (kind, &name), reason);
        server.delete_object(kind, "", &name);
        // The second network's definition, and a pod that asks for its network.
        let network = json!({ "subnets": "10.3.0.0/24" });
        server.apply(definition(&name, &name, &network));
        let switch = format!("{}_ovn_layer2_switch", name.replace('-', "."));
        await_row(&self.central, "Logical_Switch", &switch, true);
        server.delete_object("NetworkAttachmentDefinition", "default", &name);
        await_row(&self.central, "Logical_Switch", &switch, false);
        // A user's network for no namespace.
        let nobodys = of_team(&name, "nobody", &layer2("10.5.0.0/24"));
        server.apply(nobodys);
        let (id, of) = ((OF_CLUSTER, "", &*name), "NetworkCreated");
        let reason = "NetworkAttachmentDefinitionCreated";
        await_condition_of(server, id, of, ("True", reason, "namespaces: []"));
        server.delete_object(OF_CLUSTER, "", &name);
        server.await_missing(id);
        // A policy and then the namespace, whose team the policy names.
        let before = server.object("Namespace", "", "default");
        let mut labels = before.map_or(json!({}), |it| it["metadata"]["labels"].clone());
        labels[&name] = "".into();
        let last = json!({ "matchLabels": { &name: "" } });
        let peer = json!({ "namespaceSelector": last });
        let nobody = json!({ "matchLabels": { "app": "nobody" } });
        let policy = policy_of(&name, nobody, peer);
        let uid = policy["metadata"]["uid"].as_str().unwrap_or_default();
        let group = policy_group("default", &name, uid);
        server.apply(policy);
        await_row(&self.central, "Port_Group", &group, true);
        server.apply(namespace(labels.clone()));
        let northbound = self.central.northbound();
        let has_members = || {
            let sets = northbound.rows("Address_Set").unwrap();
            let is_its = |ids: &Value| ids["k8s.ovn.org/name"].to_string().contains(&name);
            let mut own = sets.iter().filter(|row| is_its(&row["external_ids"]));
            own.any(|row| row["addresses"].to_string().contains('.'))
        };
        let controller = self.controller.as_mut().unwrap();
        let seen = controller
            .until(|progress| progress.is_idle && has_members())
            .await;
        server.delete_object("NetworkPolicy", "default", &name);
        await_row(&self.central, "Port_Group", &group, false);
        // What it says next may be of before that: a service comes and goes, which it counts.
        let vip = format!("10.96.2.{}", self.settled);
        server.apply(service("default", &name, &vip, 80));
        controller.until(|it| it.services > seen.services).await;
        server.delete_object("Service", "default", &name);
        let is_done = |it: &Progress| it.is_ready && it.is_idle && it.retries == 0;
        controller
            .until(|it| is_done(it) && it.services == seen.services)
            .await;
    }

    /// A fresh controller finds nothing to do, but says once more what it refuses.
    pub(super) async fn compare(&mut self, refused: usize) {
        if let Some(controller) = self.controller.take() {
            controller.stop().await.unwrap();
        }
        self.lead();
        let compared = self.controller.as_mut().unwrap().idle().await;
        assert_eq!((compared.operations, compared.writes), (0, refused as u64));
    }
}
