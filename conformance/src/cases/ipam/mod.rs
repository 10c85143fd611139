//! Delegation: an IPAM plugin that the plugin under test runs, here one that writes it all down.

mod protocol;
mod verbs;

use super::{
    CASE, MUST, MUST_SINCE_0_4, MUST_SINCE_1_0, MUST_SINCE_1_1, SHOULD, SHOULD_SINCE_1_0,
    SHOULD_SINCE_1_1,
};
use crate::case::{Case, Verdict, broken};
use crate::ipam::{Recorded, Recorder};
use crate::spec::Level::{Must, Should};
use crate::spec::Version::{V0_3_0, V0_4_0, V1_0_0};

const DELEGATION: Case = Case {
    delegation: true,
    ..CASE
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "ipam/found-in-path",
        section: "4, Delegated plugin execution procedure",
        says: "Look up the plugin binary by searching the directories provided in `CNI_PATH` \
               environment variable",
        levels: &[(V0_3_0, Must), (V1_0_0, Should)],
        test: protocol::found_in_path,
        ..DELEGATION
    },
    Case {
        id: "ipam/type-is-a-name",
        section: "1, Plugin configuration objects",
        says: "`type`: Refers to the filename of the IPAM plugin executable. Must not contain \
               characters disallowed in file paths",
        levels: MUST_SINCE_1_0,
        test: protocol::type_is_a_name,
        ..DELEGATION
    },
    Case {
        id: "ipam/parameters",
        section: "4, Delegated Plugin protocol",
        says: "The delegated plugin must receive all the same environment variables that were \
               passed in to the CNI plugin",
        levels: MUST,
        test: protocol::parameters,
        ..DELEGATION
    },
    Case {
        id: "ipam/environment",
        section: "4, Delegated Plugin protocol",
        says: "The delegated plugin must receive all the same environment variables that were \
               passed in to the CNI plugin",
        levels: MUST,
        test: protocol::environment,
        ..DELEGATION
    },
    Case {
        id: "ipam/configuration",
        section: "4, Delegated Plugin protocol",
        says: "Delegated plugins are provided the *complete network configuration* passed to \
               the \"upper\" plugin",
        levels: MUST,
        test: protocol::configuration,
        ..DELEGATION
    },
    Case {
        id: "ipam/stderr",
        section: "4, Delegated plugin execution procedure",
        says: "Ensure that the delegated plugin's stderr is output to the calling plugin's stderr",
        levels: SHOULD_SINCE_1_0,
        test: protocol::stderr,
        ..DELEGATION
    },
    Case {
        id: "ipam/applied",
        section: "4, Plugin Delegation",
        says: "The IPAM plugin must determine the interface IP/subnet, Gateway and Routes and \
               return this information to the \"main\" plugin to apply",
        levels: MUST,
        test: protocol::applied,
        ..DELEGATION
    },
    Case {
        id: "ipam/passed-on",
        section: "Result (0.4)",
        says: "The `ips` and `dns` items should be the same output as was returned by the IPAM \
               plugin",
        levels: SHOULD,
        until: Some(V0_4_0),
        test: protocol::passed_on,
        ..DELEGATION
    },
    Case {
        id: "ipam/add-error",
        section: "2, Errors",
        says: "A plugin must exit with a return code of 0 on success, and non-zero on failure",
        levels: MUST,
        test: verbs::add_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/add-error-undone",
        section: "4, Delegated plugin execution procedure",
        says: "If, on `ADD`, a delegated plugin fails, the \"upper\" plugin should execute again \
               with `DEL` before returning failure",
        levels: SHOULD_SINCE_1_0,
        test: verbs::add_error_undone,
        ..DELEGATION
    },
    Case {
        id: "ipam/add-error-leaves-nothing",
        section: "3, Lifecycle & Ordering",
        says: "A _delete_ must still be executed even if the _add_ fails",
        levels: &[(V0_3_0, Should), (V1_0_0, Must)],
        test: verbs::add_error_leaves_nothing,
        ..DELEGATION
    },
    Case {
        id: "ipam/released-after-failure",
        section: "2, DEL",
        says: "the `bridge` plugin should delegate the DEL action to the IPAM plugin and clean up \
               its own resources",
        levels: SHOULD,
        test: verbs::released_after_failure,
        ..DELEGATION
    },
    Case {
        id: "ipam/del",
        section: "4, Delegated plugin execution procedure",
        says: "If a plugin is executed with `CNI_COMMAND=CHECK`, `DEL`, or `GC`, it must also \
               execute any delegated plugins",
        levels: MUST,
        test: verbs::del,
        ..DELEGATION
    },
    Case {
        id: "ipam/del-without-netns",
        section: "2, DEL",
        says: "should delegate the DEL action to the IPAM plugin […] even if the container network \
               namespace and/or container network interface no longer exist",
        levels: SHOULD,
        test: verbs::del_without_netns,
        ..DELEGATION
    },
    Case {
        id: "ipam/del-error",
        section: "4, Delegated plugin execution procedure",
        says: "If any of the delegated plugins return error, error should be returned by the upper \
               plugin",
        levels: SHOULD_SINCE_1_0,
        test: verbs::del_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/check",
        section: "4, Delegated plugin execution procedure",
        says: "If a plugin is executed with `CNI_COMMAND=CHECK`, `DEL`, or `GC`, it must also \
               execute any delegated plugins",
        levels: &[(V0_4_0, Should), (V1_0_0, Must)],
        test: verbs::check,
        ..DELEGATION
    },
    Case {
        id: "ipam/check-error",
        section: "2, CHECK",
        says: "The plugin should call `CHECK` on any delegated (e.g. IPAM) plugins and pass any \
               errors on to its caller",
        levels: &[(V0_4_0, Should)],
        test: verbs::check_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/status",
        section: "2, STATUS",
        says: "If a plugin relies on a delegated plugin (e.g. IPAM) to service `ADD` requests, it \
               must also execute a `STATUS` request to that plugin",
        levels: MUST_SINCE_1_1,
        test: verbs::status,
        ..DELEGATION
    },
    Case {
        id: "ipam/status-error",
        section: "2, STATUS",
        says: "If the delegated plugin return an error result, the executing plugin should return \
               an error result",
        levels: SHOULD_SINCE_1_1,
        test: verbs::status_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/gc",
        section: "2, GC",
        says: "Plugins MUST, additionally, forward any GC calls to delegated plugins they are \
               configured to use",
        levels: MUST_SINCE_1_1,
        test: verbs::gc,
        ..DELEGATION
    },
    Case {
        id: "ipam/gc-error",
        section: "2, GC",
        says: "If an error is encountered, a plugin should continue; removing as many resources as \
               possible, and report the errors back to the runtime",
        levels: SHOULD_SINCE_1_1,
        test: verbs::gc_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/at-once",
        section: "3, Lifecycle & Ordering",
        says: "Plugins must handle being executed concurrently across different containers",
        levels: MUST_SINCE_0_4,
        test: verbs::at_once,
        ..DELEGATION
    },
];

/// The last call of a verb, which must have come.
fn called(recorder: &Recorder, verb: &str) -> Result<Recorded, Verdict> {
    let calls = recorder.calls()?;
    let found = calls.iter().rev().find(|call| call.verb() == verb);
    match found {
        Some(call) => Ok(call.clone()),
        None => {
            let verbs: Vec<&str> = calls.iter().map(Recorded::verb).collect();
            broken(format!(
                "the IPAM plugin was not asked for {verb}, only {verbs:?}"
            ))
        }
    }
}
