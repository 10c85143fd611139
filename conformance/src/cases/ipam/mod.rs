//! Delegation: an IPAM plugin that the plugin under test runs, here one that writes it all down.

mod protocol;
mod verbs;

use super::{
    MUST, MUST_SINCE_0_4, MUST_SINCE_1_0, MUST_SINCE_1_1, SHOULD, SHOULD_SINCE_0_4_THEN_MUST,
    SHOULD_SINCE_1_0, SHOULD_SINCE_1_1, SHOULD_THEN_MUST,
};
use crate::case::{Case, Levels, Test, Verdict, broken};
use crate::ipam::{Recorded, Recorder};
use crate::spec::Level::{Must, Should};
use crate::spec::Version::{V0_3_0, V0_4_0, V1_0_0};

const fn delegated(id: &'static str, test: Test, levels: Levels) -> Case {
    Case::new(id, test, levels).delegating()
}

// Sentences that several cases check.
const SAME_ENVIRONMENT: &str = "The delegated plugin must receive all the same environment \
    variables that were passed in to the CNI plugin";
const ALSO_DELEGATED: &str = "If a plugin is executed with `CNI_COMMAND=CHECK`, `DEL`, or `GC`, \
    it must also execute any delegated plugins";

pub(super) const CASES: &[Case] = &[
    delegated(
        "ipam/found-in-path",
        protocol::found_in_path,
        &[(V0_3_0, Must), (V1_0_0, Should)],
    )
    .section("4, Delegated plugin execution procedure")
    .says(
        "Look up the plugin binary by searching the directories provided in `CNI_PATH` \
             environment variable",
    ),
    delegated(
        "ipam/type-is-a-name",
        protocol::type_is_a_name,
        MUST_SINCE_1_0,
    )
    .section("1, Plugin configuration objects")
    .says(
        "`type`: Refers to the filename of the IPAM plugin executable. Must not contain \
             characters disallowed in file paths",
    ),
    delegated("ipam/parameters", protocol::parameters, MUST)
        .section("4, Delegated Plugin protocol")
        .says(SAME_ENVIRONMENT),
    delegated("ipam/environment", protocol::environment, MUST)
        .section("4, Delegated Plugin protocol")
        .says(SAME_ENVIRONMENT),
    delegated("ipam/configuration", protocol::configuration, MUST)
        .section("4, Delegated Plugin protocol")
        .says(
            "Delegated plugins are provided the *complete network configuration* passed to \
             the \"upper\" plugin",
        ),
    delegated("ipam/stderr", protocol::stderr, SHOULD_SINCE_1_0)
        .section("4, Delegated plugin execution procedure")
        .says("Ensure that the delegated plugin's stderr is output to the calling plugin's stderr"),
    delegated("ipam/applied", protocol::applied, MUST)
        .section("4, Plugin Delegation")
        .says(
            "The IPAM plugin must determine the interface IP/subnet, Gateway and Routes and \
             return this information to the \"main\" plugin to apply",
        ),
    delegated("ipam/passed-on", protocol::passed_on, SHOULD)
        .until(V0_4_0)
        .section("Result (0.4)")
        .says(
            "The `ips` and `dns` items should be the same output as was returned by the IPAM \
             plugin",
        ),
    delegated("ipam/add-error", verbs::add_error, MUST)
        .section("2, Errors")
        .says("A plugin must exit with a return code of 0 on success, and non-zero on failure"),
    delegated(
        "ipam/add-error-undone",
        verbs::add_error_undone,
        SHOULD_SINCE_1_0,
    )
    .section("4, Delegated plugin execution procedure")
    .says(
        "If, on `ADD`, a delegated plugin fails, the \"upper\" plugin should execute again \
             with `DEL` before returning failure",
    ),
    delegated(
        "ipam/add-error-leaves-nothing",
        verbs::add_error_leaves_nothing,
        SHOULD_THEN_MUST,
    )
    .section("3, Lifecycle & Ordering")
    .says("A _delete_ must still be executed even if the _add_ fails"),
    delegated(
        "ipam/released-after-failure",
        verbs::released_after_failure,
        SHOULD,
    )
    .section("2, DEL")
    .says(
        "the `bridge` plugin should delegate the DEL action to the IPAM plugin and clean up \
             its own resources",
    ),
    delegated("ipam/del", verbs::del, MUST)
        .section("4, Delegated plugin execution procedure")
        .says(ALSO_DELEGATED),
    delegated("ipam/del-without-netns", verbs::del_without_netns, SHOULD)
        .section("2, DEL")
        .says(
            "should delegate the DEL action to the IPAM plugin […] even if the container network \
             namespace and/or container network interface no longer exist",
        ),
    delegated("ipam/del-error", verbs::del_error, SHOULD_SINCE_1_0)
        .section("4, Delegated plugin execution procedure")
        .says(
            "If any of the delegated plugins return error, error should be returned by the upper \
             plugin",
        ),
    delegated("ipam/check", verbs::check, SHOULD_SINCE_0_4_THEN_MUST)
        .section("4, Delegated plugin execution procedure")
        .says(ALSO_DELEGATED),
    delegated("ipam/check-error", verbs::check_error, &[(V0_4_0, Should)])
        .section("2, CHECK")
        .says(
            "The plugin should call `CHECK` on any delegated (e.g. IPAM) plugins and pass any \
             errors on to its caller",
        ),
    delegated("ipam/status", verbs::status, MUST_SINCE_1_1)
        .section("2, STATUS")
        .says(
            "If a plugin relies on a delegated plugin (e.g. IPAM) to service `ADD` requests, it \
             must also execute a `STATUS` request to that plugin",
        ),
    delegated("ipam/status-error", verbs::status_error, SHOULD_SINCE_1_1)
        .section("2, STATUS")
        .says(
            "If the delegated plugin return an error result, the executing plugin should return \
             an error result",
        ),
    delegated("ipam/gc", verbs::gc, MUST_SINCE_1_1)
        .section("2, GC")
        .says(
            "Plugins MUST, additionally, forward any GC calls to delegated plugins they are \
             configured to use",
        ),
    delegated("ipam/gc-error", verbs::gc_error, SHOULD_SINCE_1_1)
        .section("2, GC")
        .says(
            "If an error is encountered, a plugin should continue; removing as many resources as \
             possible, and report the errors back to the runtime",
        ),
    delegated("ipam/at-once", verbs::at_once, MUST_SINCE_0_4)
        .section("3, Lifecycle & Ordering")
        .says("Plugins must handle being executed concurrently across different containers"),
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
