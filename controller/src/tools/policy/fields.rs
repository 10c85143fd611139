//! The fields of policies' specs. What podwire reads leaves out a field that it does not know, as
//! the API server does with one that it does not check; a file with one is a mistake.

use serde_json::Value;

use crate::key::Of;

/// What is below a field.
enum Fields {
    /// A value without fields, or with those of its own.
    Any,
    Each(&'static Fields),
    Object(&'static [(&'static str, &'static Fields)]),
}

use Fields::{Any, Each, Object};

/// The first field of a spec that a policy of this kind does not have, with its place.
pub(super) fn unknown(of: Of, spec: &Value) -> Option<String> {
    let fields = match of {
        Of::Policy => &POLICY,
        Of::ClusterPolicy => &CLUSTER_POLICY,
        Of::AdminPolicy => &ADMIN_POLICY,
        _ => &BASELINE_POLICY,
    };
    below("spec", spec, fields)
}

fn below(at: &str, value: &Value, fields: &Fields) -> Option<String> {
    match fields {
        Any => None,
        Each(of) => {
            let mut all = value.as_array().into_iter().flatten().enumerate();
            all.find_map(|(number, it)| below(&format!("{at}[{number}]"), it, of))
        }
        Object(known) => {
            let mut all = value.as_object().into_iter().flatten();
            all.find_map(|(name, it)| {
                let at = format!("{at}.{name}");
                match known.iter().find(|(known, _)| known == name) {
                    Some((_, fields)) => below(&at, it, fields),
                    None => Some(at),
                }
            })
        }
    }
}

static SELECTOR: Fields = Object(&[
    ("matchLabels", &Any),
    (
        "matchExpressions",
        &Each(&Object(&[
            ("key", &Any),
            ("operator", &Any),
            ("values", &Any),
        ])),
    ),
]);

static PEERS: Fields = Each(&Object(&[
    ("podSelector", &SELECTOR),
    ("namespaceSelector", &SELECTOR),
    ("ipBlock", &Object(&[("cidr", &Any), ("except", &Any)])),
]));

static PORTS: Fields = Each(&Object(&[
    ("protocol", &Any),
    ("port", &Any),
    ("endPort", &Any),
]));

static POLICY: Fields = Object(&[
    ("podSelector", &SELECTOR),
    ("policyTypes", &Any),
    (
        "ingress",
        &Each(&Object(&[("from", &PEERS), ("ports", &PORTS)])),
    ),
    (
        "egress",
        &Each(&Object(&[("to", &PEERS), ("ports", &PORTS)])),
    ),
]);

static PODS: Fields = Object(&[("namespaceSelector", &SELECTOR), ("podSelector", &SELECTOR)]);

static SUBJECT: Fields = Object(&[("namespaces", &SELECTOR), ("pods", &PODS)]);

/// Peers of other kinds are refused by their rule, which says what follows.
static TIERED_PEERS: Fields = Each(&Object(&[
    ("namespaces", &SELECTOR),
    ("pods", &PODS),
    ("networks", &Any),
    ("nodes", &Any),
    ("domainNames", &Any),
]));

static RANGE: Fields = Object(&[("start", &Any), ("end", &Any), ("protocol", &Any)]);

static TRANSPORT: Fields = Object(&[(
    "destinationPort",
    &Object(&[
        ("number", &Any),
        ("range", &Object(&[("start", &Any), ("end", &Any)])),
    ]),
)]);

/// Of v1alpha2.
static PROTOCOLS: Fields = Each(&Object(&[
    ("tcp", &TRANSPORT),
    ("udp", &TRANSPORT),
    ("sctp", &TRANSPORT),
    ("destinationNamedPort", &Any),
]));

/// Of v1alpha1.
static TIERED_PORTS: Fields = Each(&Object(&[
    ("portNumber", &Object(&[("protocol", &Any), ("port", &Any)])),
    ("namedPort", &Any),
    ("portRange", &RANGE),
]));

static CLUSTER_POLICY: Fields = Object(&[
    ("tier", &Any),
    ("priority", &Any),
    ("subject", &SUBJECT),
    (
        "ingress",
        &Each(&Object(&[
            ("name", &Any),
            ("action", &Any),
            ("from", &TIERED_PEERS),
            ("protocols", &PROTOCOLS),
        ])),
    ),
    (
        "egress",
        &Each(&Object(&[
            ("name", &Any),
            ("action", &Any),
            ("to", &TIERED_PEERS),
            ("protocols", &PROTOCOLS),
        ])),
    ),
]);

static INGRESS: Fields = Each(&Object(&[
    ("name", &Any),
    ("action", &Any),
    ("from", &TIERED_PEERS),
    ("ports", &TIERED_PORTS),
]));

static EGRESS: Fields = Each(&Object(&[
    ("name", &Any),
    ("action", &Any),
    ("to", &TIERED_PEERS),
    ("ports", &TIERED_PORTS),
]));

static ADMIN_POLICY: Fields = Object(&[
    ("priority", &Any),
    ("subject", &SUBJECT),
    ("ingress", &INGRESS),
    ("egress", &EGRESS),
]);

static BASELINE_POLICY: Fields = Object(&[
    ("subject", &SUBJECT),
    ("ingress", &INGRESS),
    ("egress", &EGRESS),
]);
