//! Who is isolated and who is named by policies, computed from the objects alone.

use std::collections::{BTreeMap, BTreeSet};

use podwire_controller::cluster::policy::Direction;
use podwire_controller::key::{Key, Of};
use podwire_controller::want::policy::{isolated_group, tiered_group};
use serde_json::Value;

use super::{POLICIES, World};
use crate::fixture::names;
use crate::members::{atoms, ports_in};

impl World {
    /// The policies of the whole cluster.
    pub(super) fn tiered(&self) -> impl Iterator<Item = (String, Value)> {
        let names = (0..POLICIES).map(|number| format!("cp{number}"));
        names.filter_map(|name| {
            let policy = self.server.object("ClusterNetworkPolicy", "", &name)?;
            Some((name, policy))
        })
    }

    /// The pods that a policy selects are isolated, those that have a port; its peers are those
    /// that it names. Nobody else is.
    pub(super) fn check_policies(&self) {
        let northbound = self.central.northbound();
        let ports = northbound.rows("Logical_Switch_Port").unwrap();
        let ports: BTreeMap<String, String> = ports
            .iter()
            .filter_map(|row| {
                let name = row["name"].as_str()?.to_owned();
                let address = row["addresses"].as_str()?.split(' ').nth(1)?.to_owned();
                name.starts_with("default_").then_some((name, address))
            })
            .collect();
        let app = |port: &str| {
            let name = port.strip_prefix("default_").unwrap();
            let pod = self.server.object("Pod", "default", name);
            pod.and_then(|pod| Some(pod["metadata"]["labels"]["app"].as_str()?.to_owned()))
        };
        let of_namespace = self.server.object("Namespace", "", "default");
        let team = of_namespace.map(|it| it["metadata"]["labels"]["team"].clone());
        let (mut isolated, mut peers) = (BTreeSet::new(), BTreeSet::new());
        for number in 0..POLICIES {
            let name = format!("np{number}");
            let Some(policy) = self.server.object("NetworkPolicy", "default", &name) else {
                continue;
            };
            let spec = &policy["spec"];
            let is = |selector: &Value, port: &str| {
                let wanted = selector["matchLabels"]["app"].as_str();
                wanted.is_none_or(|wanted| app(port).as_deref() == Some(wanted))
            };
            let selected = ports.keys().filter(|port| is(&spec["podSelector"], port));
            isolated.extend(selected.cloned());
            let from = &spec["ingress"][0]["from"][0];
            let of_team = from["namespaceSelector"]["matchLabels"]["team"].as_str();
            let is_within = of_team.is_none_or(|it| team.as_ref().is_some_and(|team| team == it));
            let own = ports
                .iter()
                .filter(|(port, _)| is(&from["podSelector"], port));
            let own = own
                .filter(|_| is_within)
                .map(|(_, address)| address.clone());
            let own: BTreeSet<String> = own.collect();
            peers.extend((!own.is_empty()).then_some(own));
        }
        for (name, policy) in self.tiered() {
            let key = Key::named(Of::ClusterPolicy, name.as_str().into());
            let own = tiered_group(&key, policy["metadata"]["uid"].as_str().unwrap_or_default());
            if !self.has_tiers {
                assert!(!names(&self.central, "Port_Group").contains(&own.to_string()));
                continue;
            }
            let spec = &policy["spec"];
            let is = |pods: &Value, port: &str| {
                let wanted = pods["podSelector"]["matchLabels"]["app"].as_str();
                wanted.is_none_or(|wanted| app(port).as_deref() == Some(wanted))
            };
            let subject = &spec["subject"]["pods"];
            let selected = ports.keys().filter(|port| is(subject, port));
            let selected: BTreeSet<String> = selected.cloned().collect();
            assert_eq!(ports_in(&self.central, &own), selected, "{policy}");
            let from = &spec["ingress"][0]["from"][0];
            let of_team = from["namespaces"]["matchLabels"]["team"].as_str();
            let is_within = of_team.is_none_or(|it| team.as_ref().is_some_and(|team| team == it));
            let own = ports.iter().filter(|(port, _)| is(&from["pods"], port));
            let own = own
                .filter(|_| is_within)
                .map(|(_, address)| address.clone());
            let own: BTreeSet<String> = own.collect();
            peers.extend((!own.is_empty()).then_some(own));
        }
        let group = isolated_group("default", Direction::Ingress);
        assert_eq!(ports_in(&self.central, &group), isolated);
        let sets = northbound.rows("Address_Set").unwrap();
        let of_pods = sets
            .iter()
            .filter(|row| row["external_ids"]["k8s.ovn.org/owner-type"] == "PodSelector");
        let found = of_pods.map(|row| atoms(&row["addresses"]));
        let found: BTreeSet<_> = found.filter(|own| !own.is_empty()).collect();
        assert_eq!(found, peers);
    }
}
