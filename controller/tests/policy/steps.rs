//! What changes while policies are in force: policies, namespaces, pods and their labels.

use serde_json::{Value, json};

use crate::by_hand;
use crate::cases::policy;
use crate::differences;
use crate::rows::Rows;
use crate::world::{World, WorldPod};

/// What happens, and a connection that is possible then, or is not.
type Step = (
    &'static str,
    fn(&mut World),
    (&'static str, &'static str, bool),
);

const STEPS: [Step; 15] = [
    ("at first", |_| {}, ("y/b", "x/a:80/TCP", false)),
    (
        "a namespace gets the label",
        |world| label(&mut world.namespaces[1].1, Some("yes")),
        ("y/b", "x/a:80/TCP", true),
    ),
    (
        "a namespace loses the label",
        |world| label(&mut world.namespaces[1].1, None),
        ("y/b", "x/a:80/TCP", false),
    ),
    (
        "a pod gets the label",
        |world| label(labels(world, "x", "b"), Some("yes")),
        ("x/b", "x/a:80/TCP", true),
    ),
    (
        "a pod loses the label",
        |world| label(labels(world, "x", "b"), None),
        ("x/b", "x/a:80/TCP", false),
    ),
    (
        "a namespace comes",
        |world| {
            world
                .namespaces
                .push(("w".to_owned(), json!({ "new": "yes" })))
        },
        ("z/a", "x/a:80/TCP", false),
    ),
    ("a pod comes", add, ("w/a", "x/a:80/TCP", true)),
    (
        "another policy comes, for the pod that came",
        |world| apply(world, policy("w", "closed", json!({ "podSelector": {} }))),
        ("x/a", "w/a:80/TCP", false),
    ),
    (
        "it is changed",
        |world| {
            let open =
                json!({ "podSelector": {}, "ingress": [{ "ports": [{ "port": "on-tcp" }] }] });
            apply(world, policy("w", "closed", open));
        },
        ("x/a", "w/a:80/TCP", true),
    ),
    (
        "the number of its port is another",
        |world| {
            let pod = world.pods.last_mut().unwrap();
            pod.object["spec"]["containers"][0]["ports"][0]["containerPort"] = 81.into();
        },
        ("x/a", "w/a:80/TCP", false),
    ),
    (
        "the pod is gone",
        |world| drop(world.pods.pop()),
        ("z/a", "x/a:80/TCP", false),
    ),
    (
        "the namespace is gone",
        |world| drop(world.namespaces.pop()),
        ("z/a", "x/a:80/TCP", false),
    ),
    (
        "what isolates is no longer for the pod",
        |world| label(labels(world, "x", "a"), Some("yes")),
        ("z/a", "x/a:80/TCP", true),
    ),
    (
        "and is again",
        |world| label(labels(world, "x", "a"), None),
        ("z/a", "x/a:80/TCP", false),
    ),
    (
        "no policy is left",
        |world| world.policies = json!([]),
        ("z/a", "x/a:80/TCP", true),
    ),
];

fn labels<'w>(world: &'w mut World, namespace: &str, name: &str) -> &'w mut Value {
    let mut pods = world.pods.iter_mut();
    let own = pods.find(|it| (&*it.namespace, &*it.name) == (namespace, name));
    &mut own.unwrap().object["metadata"]["labels"]
}

fn label(labels: &mut Value, value: Option<&str>) {
    match value {
        Some(value) => labels["new"] = value.into(),
        None => drop(labels.as_object_mut().unwrap().remove("new")),
    }
}

fn add(world: &mut World) {
    let mut pod = WorldPod {
        namespace: "w".to_owned(),
        name: "a".to_owned(),
        ..world.pods[0].again()
    };
    pod.object["metadata"]["namespace"] = "w".into();
    pod.object["metadata"]["name"] = "a".into();
    world.pods.push(pod);
}

/// As the API server does: in the place of one with its name.
fn apply(world: &mut World, policy: Value) {
    let all = world.policies.as_array_mut().unwrap();
    all.retain(|it| it["metadata"] != policy["metadata"]);
    all.push(policy);
}

/// The rows follow, and those that follow are those of a fresh start.
#[test]
fn what_changes_decides_at_once() {
    let labelled = json!({ "matchLabels": { "new": "yes" } });
    let mine = json!({ "matchLabels": { "pod": "a" }, "matchExpressions": [
        { "key": "new", "operator": "DoesNotExist" },
    ] });
    let from = json!([{ "namespaceSelector": labelled }, { "podSelector": labelled }]);
    let spec = json!({ "podSelector": mine, "ingress": [{ "from": from }] });
    for start in [World::new, World::tiered] {
        let mut world = start(json!([policy("x", "p", spec.clone())]));
        let mut rows = Rows::of(&world);
        for (name, change, expected) in STEPS {
            change(&mut world);
            rows.change(&world);
            by_hand(&world, name, expected);
            assert_eq!(rows, Rows::of(&world), "{name}");
            assert_eq!(differences(&world), [""; 0], "{name}");
        }
    }
}
