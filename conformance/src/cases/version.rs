//! VERSION, and what the versions mean for the other operations.

use serde_json::json;

use super::{EVERY_KIND, MUST, MUST_SINCE_1_0, SHOULD};
use crate::bench::Bench;
use crate::case::{Case, Held, require};
use crate::exec::Input;
use crate::spec::{Verb, Version, code};

pub(super) const CASES: &[Case] = &[
    Case::new("version/lists-versions", lists_versions, MUST)
        .of(EVERY_KIND)
        .section("5, VERSION Success")
        .says(
            "Plugins must output a JSON object with the following keys upon a `VERSION` \
             operation: `cniVersion`, `supportedVersions`",
        ),
    Case::new("version/echoes-version", echoes_version, MUST_SINCE_1_0)
        .of(EVERY_KIND)
        .section("5, VERSION Success")
        .says("`cniVersion`: The value of `cniVersion` specified on input"),
    Case::new("version/needs-command-only", needs_command_only, MUST)
        .of(EVERY_KIND)
        .section("2, VERSION")
        .says("Required environment parameters: `CNI_COMMAND`"),
    Case::new("version/refuses-unknown", refuses_unknown, SHOULD)
        .of(EVERY_KIND)
        .section("5, Error")
        .says("`1`: Incompatible CNI version"),
    Case::new(
        "version/no-check-before-0.4.0",
        no_check_before_0_4_0,
        SHOULD,
    )
    .until(Version::V0_3_1)
    .of(EVERY_KIND)
    .section("2, CNI operations (0.3)")
    .says("`CNI_COMMAND`: indicates the desired operation; `ADD`, `DEL` or `VERSION`"),
    Case::new("version/no-gc-before-1.1.0", no_gc_before_1_1_0, SHOULD)
        .until(Version::V1_0_0)
        .of(EVERY_KIND)
        .section("2, CNI operations (1.0)")
        .says("CNI defines 4 operations: `ADD`, `DEL`, `CHECK`, and `VERSION`"),
];

fn lists_versions(bench: &Bench<'_>) -> Held {
    let answer = ask(bench)?;
    require(answer["cniVersion"].is_string(), || {
        format!("cniVersion is {}, not a string", answer["cniVersion"])
    })?;
    let listed = answer["supportedVersions"].as_array();
    let are_strings = listed.is_some_and(|all| all.iter().all(serde_json::Value::is_string));
    require(are_strings, || {
        let seen = &answer["supportedVersions"];
        format!("supportedVersions is {seen}, not a list of strings")
    })
}

fn echoes_version(bench: &Bench<'_>) -> Held {
    let answer = ask(bench)?;
    require(answer["cniVersion"] == bench.version.as_str(), || {
        let seen = &answer["cniVersion"];
        format!("asked in {}, it answered in {seen}", bench.version)
    })
}

fn needs_command_only(bench: &Bench<'_>) -> Held {
    let call = bench.call(Verb::Version);
    // Before 1.0.0 it has no parameters at all, and so nothing on standard input.
    let input = if bench.version < Version::V1_0_0 {
        Vec::new()
    } else {
        json!({"cniVersion": bench.version.as_str()})
            .to_string()
            .into()
    };
    let call = call.input(Input::Bytes(input));
    call.unset("CNI_PATH").unset("CNI_ARGS").run()?.object()?;
    Ok(())
}

fn refuses_unknown(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    let add = bench.call(Verb::Add).of(&container);
    let ran = add.member("cniVersion", "77.0.0").run()?;
    ran.refusal()?.coded(&[code::INCOMPATIBLE_VERSION])
}

fn no_check_before_0_4_0(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let check = bench.call_for(Verb::Check, &attached);
    let ran = check.member("prevResult", attached.result.clone()).run()?;
    ran.refusal().map(drop)
}

fn no_gc_before_1_1_0(bench: &Bench<'_>) -> Held {
    let gc = bench.call(Verb::Gc);
    let ran = gc.member("cni.dev/valid-attachments", json!([])).run()?;
    ran.refusal()?;
    bench.call(Verb::Status).run()?.refusal().map(drop)
}

fn ask(bench: &Bench<'_>) -> Result<serde_json::Value, crate::case::Verdict> {
    let input = json!({"cniVersion": bench.version.as_str()}).to_string();
    let call = bench.call(Verb::Version).input(Input::Bytes(input.into()));
    call.run()?.object()
}
