//! What was written to Kubernetes, and what the watches report of it.

use podwire_cluster::networks;

use super::State;
use crate::cluster::Name;
use crate::ipam;
use crate::key::{Key, Of};
use crate::write::Write;

impl State {
    /// Whether to send a write: it is not in flight already.
    pub(crate) fn begins(&mut self, key: &Key, write: &Write) -> bool {
        self.under_way.insert((key.clone(), write.clone()))
    }

    /// A warning that was not written is written when its key is processed again.
    pub(crate) fn warning_failed(&mut self, key: &Key, write: &Write) {
        if let Write::Warning { .. } = write {
            self.warned.remove(key);
            self.refusal_untold(key);
        }
    }

    /// The object contains what was written, though the watch may report it only later, and may
    /// first report an older state. If it has reported a newer one, that is compared once more.
    pub(crate) fn was_written(&mut self, key: &Key, write: &Write, version: u64) {
        let is_newer = match (key.of, write) {
            (
                Of::Node,
                Write::Annotation { .. } | Write::NetworkAvailable | Write::Answers { .. },
            ) => {
                let Some(node) = self.cluster.nodes.get_mut(&key.name) else {
                    return;
                };
                let is_newer = node.version > version;
                match write {
                    Write::Annotation { uid, value, .. } if !is_newer && *uid == node.uid => {
                        node.subnets = Some(value.to_string());
                        // Its condition is written next.
                        self.dirty.insert(key.clone());
                    }
                    Write::NetworkAvailable if !is_newer => node.network_available = true,
                    Write::Answers { uid, to_host } if !is_newer && *uid == node.uid => {
                        node.answers_host = *to_host;
                        node.router_leads = false;
                    }
                    _ => {}
                }
                is_newer
            }
            (Of::Pod, Write::Annotation { uid, value, .. }) => {
                let pod = self.cluster.pods.get_mut(&key.id());
                let Some(pod) = pod.filter(|pod| pod.uid == *uid) else {
                    return;
                };
                let is_newer = pod.version > version;
                if !is_newer {
                    let (entry, others) = networks::read(value);
                    pod.networks = Some(ipam::read_pod_network(&entry));
                    pod.other_networks = others;
                }
                is_newer
            }
            _ => return,
        };
        match is_newer {
            true => drop(self.dirty.insert(key.clone())),
            false => {
                let last = self.written.entry(key.clone()).or_default();
                *last = version.max(*last);
            }
        }
    }

    /// Whether an object's state, by its uid and version, is older than what is known of it.
    pub(super) fn is_old(
        &mut self,
        key: &Key,
        known: Option<(Name, u64)>,
        state: Option<(&Name, u64)>,
    ) -> bool {
        let written = self.written.get(key).copied().unwrap_or_default();
        let is_old = known
            .zip(state)
            .is_some_and(|((known, reported), (uid, version))| {
                known == *uid && version < reported.max(written)
            });
        if !is_old {
            self.written.remove(key);
        }
        is_old
    }

    /// A write has completed, successfully or not.
    pub(crate) fn is_over(&mut self, key: &Key, write: &Write) {
        self.under_way.remove(&(key.clone(), write.clone()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::{Node, Pod};
    use crate::config::Rules;
    use crate::ipam::RecordedAddresses;
    use crate::run::watch::ListState;

    fn recorded(annotation: &str) -> RecordedAddresses {
        ipam::read_pod_network(&networks::read(annotation).0)
    }

    fn state() -> State {
        let mut state = State::new(Rules {
            networks: Vec::new(),
            use_pod_cidrs: false,
            adopt: false,
            rest: Duration::ZERO,
            pod_connections: 0,
            dns_service: Default::default(),
            has_gateways: false,
        });
        state.kinds.fill(ListState::Listed);
        state
    }

    #[test]
    fn what_another_writes_after_us_is_compared_though_the_answer_to_ours_comes_later() {
        let mut state = state();
        let id = ("ns".into(), "p".into());
        let key = Key::pod(id.clone());
        let pod = |version, networks: Option<&str>| Pod {
            version,
            networks: networks.map(recorded),
            ..Pod::default()
        };
        let own = r#"{"default":{"ip_addresses":["10.0.0.3/24"]}}"#;
        let (uid, value) = (Name::default(), own.into());
        let write = Write::Annotation {
            uid,
            version: 1,
            value,
        };
        let tell = |state: &mut State, pod| state.learn_pod(id.clone(), Some(pod));
        let known = |state: &State| state.cluster.pods[&id].networks.clone();

        tell(&mut state, pod(1, None));
        assert!(state.begins(&key, &write));
        tell(&mut state, pod(3, Some("{}")));
        // Whoever compares now finds the same write in flight, and leaves it at that.
        state.take_dirty();
        assert!(!state.begins(&key, &write));
        state.is_over(&key, &write);
        state.was_written(&key, &write, 2);
        assert_eq!(known(&state), Some(recorded("{}")));
        assert!(state.take_dirty().contains(&key));

        // What the watch reports late is older than our own.
        state.was_written(&key, &write, 5);
        tell(&mut state, pod(4, Some("{}")));
        assert_eq!(known(&state), Some(recorded(own)));
        tell(&mut state, pod(6, Some("{}")));
        assert_eq!(known(&state), Some(recorded("{}")));
    }

    #[test]
    fn two_writes_for_one_node_may_be_answered_in_any_order() {
        let mut state = state();
        let key = Key::node("n".into());
        let node = Node {
            version: 1,
            ..Node::default()
        };
        state.learn_node("n".into(), Some(node));
        state.take_dirty();
        let (uid, value) = (Name::default(), "{}".into());
        let annotation = Write::Annotation {
            uid,
            version: 1,
            value,
        };
        state.was_written(&key, &Write::NetworkAvailable, 3);
        state.was_written(&key, &annotation, 2);
        let known = &state.cluster.nodes["n"];
        assert!(known.network_available && known.subnets.as_deref() == Some("{}"));
        // Compared once more: the condition follows the annotation.
        assert!(state.take_dirty().contains(&key));
    }

    #[test]
    fn new_pods_are_compared_before_those_that_were_and_after_what_pods_depend_on() {
        let mut state = state();
        let tell = |state: &mut State, name: &str, uid: &str| {
            let pod = Pod {
                uid: uid.into(),
                ..Pod::default()
            };
            state.learn_pod(("ns".into(), name.into()), Some(pod));
        };
        for name in ["a", "b"] {
            tell(&mut state, name, "1");
        }
        let mut keys = state.take_dirty();
        while state.next_key(&mut keys).is_some() {}
        // A change of labels, a pod that is replaced, a new one, and a node.
        tell(&mut state, "a", "1");
        tell(&mut state, "b", "2");
        tell(&mut state, "c", "1");
        state.learn_node("n".into(), Some(Node::default()));
        let mut keys = state.take_dirty();
        let order: Vec<Key> = std::iter::from_fn(|| state.next_key(&mut keys)).collect();
        let pods = ["b", "c", "a"].map(|name| Key::pod(("ns".into(), name.into())));
        let pods_in: Vec<&Key> = order.iter().filter(|key| key.of == Of::Pod).collect();
        assert_eq!(pods_in, pods.iter().collect::<Vec<_>>());
        assert_eq!(order[0], Key::node("n".into()));
    }
}
