//! The parameters that come by environment variables.

use super::{EVERY_KIND, MUST, MUST_SINCE_0_4, MUST_SINCE_1_0, SHOULD_SINCE_1_0};
use crate::bench::{Bench, IFNAME};
use crate::case::{Case, Held, Verdict, broken, not_applicable, require};
use crate::spec::{Verb, code};

// Sentences that several cases check.
const REQUIRED: &str = "Required environment parameters: `CNI_CONTAINERID`, `CNI_NETNS`, \
    `CNI_IFNAME`";

pub(super) const CASES: &[Case] = &[
    Case::new("environment/unknown-command", unknown_command, MUST)
        .of(EVERY_KIND)
        .section("2, Parameters")
        .says("`CNI_COMMAND`: indicates the desired operation"),
    Case::new("environment/add-requires", add_requires, MUST_SINCE_0_4)
        .of(EVERY_KIND)
        .section("2, ADD")
        .says(REQUIRED),
    Case::new("environment/del-requires", del_requires, MUST_SINCE_0_4)
        .of(EVERY_KIND)
        .section("2, DEL")
        .says("Required environment parameters: `CNI_CONTAINERID`, `CNI_IFNAME`"),
    Case::new("environment/check-requires", check_requires, MUST_SINCE_0_4)
        .of(EVERY_KIND)
        .section("2, CHECK")
        .says(REQUIRED),
    Case::new("environment/optional-args", optional_args, MUST_SINCE_1_0)
        .of(EVERY_KIND)
        .section("2, ADD")
        .says("Optional environment parameters: `CNI_ARGS`"),
    Case::new("environment/container-id", container_id, MUST_SINCE_0_4)
        .of(EVERY_KIND)
        .section("2, Parameters")
        .says(
            "Must not be empty. Must start with an alphanumeric character, optionally followed \
             by any combination of one or more alphanumeric characters, underscore, dot or \
             hyphen",
        ),
    Case::new("environment/unusable-ifname", unusable_ifname, MUST)
        .section("2, Parameters")
        .says("if the plugin is unable to use this interface name it must return an error"),
    Case::new("environment/no-netns", no_netns, MUST)
        .section("2, Parameters")
        .says("`CNI_NETNS`: A reference to the container's \"isolation domain\""),
    Case::new("environment/code-4", code_4, SHOULD_SINCE_1_0)
        .of(EVERY_KIND)
        .section("5, Error")
        .says(
            "`4`: Invalid necessary environment variables, like CNI_COMMAND, CNI_CONTAINERID, \
             etc.",
        ),
    Case::new(
        "environment/names-variables",
        names_variables,
        MUST_SINCE_1_0,
    )
    .of(EVERY_KIND)
    .section("5, Error")
    .says("The error message must contain the names of invalid variables"),
];

const OF_ADD: [&str; 3] = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
const OF_DEL: [&str; 2] = ["CNI_CONTAINERID", "CNI_IFNAME"];

fn unknown_command(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    let call = bench.call(Verb::Add).verb("REPLACE").of(&container);
    call.run()?.refusal().map(drop)
}

fn add_requires(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    for variable in OF_ADD {
        let ran = bench.call(Verb::Add).of(&container).unset(variable).run()?;
        ran.refusal()
            .map_err(|verdict| without(variable, verdict))?;
    }
    Ok(())
}

fn del_requires(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    for variable in OF_DEL {
        let ran = bench.call_for(Verb::Del, &attached).unset(variable).run()?;
        ran.refusal()
            .map_err(|verdict| without(variable, verdict))?;
    }
    Ok(())
}

fn check_requires(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    bench.call_for(Verb::Check, &attached).run()?.success()?;
    for variable in OF_ADD {
        let ran = bench
            .call_for(Verb::Check, &attached)
            .unset(variable)
            .run()?;
        ran.refusal()
            .map_err(|verdict| without(variable, verdict))?;
    }
    Ok(())
}

fn optional_args(bench: &Bench<'_>) -> Held {
    if bench.subject.cni_args.is_some() {
        return not_applicable("it was said to need arguments");
    }
    let container = bench.container()?;
    let ran = bench
        .call(Verb::Add)
        .of(&container)
        .unset("CNI_ARGS")
        .run()?;
    ran.success()
}

fn container_id(bench: &Bench<'_>) -> Held {
    for id in ["", "-a", ".a", "_a", "a/b", "a b", "a:b", "ä"] {
        let container = bench.container()?;
        let add = bench.call(Verb::Add).of(&container);
        let ran = add.set("CNI_CONTAINERID", id).run()?;
        ran.refusal().map_err(|verdict| with(id, verdict))?;
    }
    let container = bench.container()?;
    let id = format!("A.{}_{}-z", &container.id[..6], &container.id[6..20]);
    let ran = bench
        .call(Verb::Add)
        .of(&container)
        .set("CNI_CONTAINERID", &id)
        .run()?;
    ran.success().map_err(|verdict| with(&id, verdict))?;
    let del = bench.call(Verb::Del).of(&container);
    del.set("CNI_CONTAINERID", &id).run()?.success()
}

fn unusable_ifname(bench: &Bench<'_>) -> Held {
    for ifname in ["sixteen-letters.", "a/b", "a b", "..", "a:b"] {
        let container = bench.container()?;
        let ran = bench.call(Verb::Add).of(&container).ifname(ifname).run()?;
        ran.refusal().map_err(|verdict| with(ifname, verdict))?;
    }
    Ok(())
}

fn no_netns(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    container.remove_netns()?;
    let ran = bench.call(Verb::Add).of(&container).run()?;
    ran.refusal()?;
    let plain = bench.host.directory().join("plain-file");
    std::fs::write(&plain, "").map_err(|source| crate::Trouble::System {
        step: "write a plain file".into(),
        source,
    })?;
    let call = bench.call(Verb::Add).of(&bench.container()?);
    call.set("CNI_NETNS", &plain.to_string_lossy())
        .run()?
        .refusal()
        .map(drop)
}

fn code_4(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    for variable in OF_ADD {
        let add = bench.call(Verb::Add).of(&container).unset(variable);
        let refusal = add.run()?.refusal()?;
        refusal
            .coded(&[code::INVALID_ENVIRONMENT])
            .map_err(|verdict| without(variable, verdict))?;
    }
    Ok(())
}

fn names_variables(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    for variable in OF_ADD {
        let add = bench.call(Verb::Add).of(&container).unset(variable);
        let refusal = add.run()?.refusal()?;
        let Some(error) = &refusal.error else {
            return broken(format!("without {variable} it prints no error structure"));
        };
        let told = format!("{} {}", error.msg, error.details);
        require(told.contains(variable), || {
            format!("without {variable} it says only “{}”", told.trim())
        })?;
    }
    let add = bench.call(Verb::Add).of(&container).ifname(IFNAME);
    let refusal = add
        .unset("CNI_NETNS")
        .unset("CNI_IFNAME")
        .run()?
        .refusal()?;
    let error = refusal.error()?;
    let told = format!("{} {}", error.msg, error.details);
    require(
        told.contains("CNI_NETNS") && told.contains("CNI_IFNAME"),
        || {
            format!(
                "without CNI_NETNS and CNI_IFNAME it says only “{}”",
                told.trim()
            )
        },
    )
}

fn without(variable: &str, verdict: Verdict) -> Verdict {
    prefixed(&format!("without {variable}"), verdict)
}

fn with(value: &str, verdict: Verdict) -> Verdict {
    prefixed(&format!("with “{value}”"), verdict)
}

fn prefixed(prefix: &str, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Broken(how) => Verdict::Broken(format!("{prefix}: {how}")),
        other => other,
    }
}
