//! The network configuration on standard input.

use serde_json::json;

use super::{EVERY_KIND, MUST, MUST_SINCE_1_0, SHOULD};
use crate::bench::Bench;
use crate::case::{Case, Held, Verdict, not_applicable, require};
use crate::exec::Input;
use crate::spec::{Verb, code};

pub(super) const CASES: &[Case] = &[
    Case::new("configuration/undecodable", undecodable, MUST)
        .of(EVERY_KIND)
        .section("2, Errors")
        .says("A plugin must exit with a return code of 0 on success, and non-zero on failure"),
    Case::new("configuration/name-required", name_required, MUST)
        .of(EVERY_KIND)
        .section("3, Deriving request configuration")
        .says("`name`: taken from the `name` field of the network configuration"),
    Case::new("configuration/name", name, MUST_SINCE_1_0)
        .of(EVERY_KIND)
        .section("1, Configuration format")
        .says(
            "Must start with an alphanumeric character, optionally followed by any combination \
             of one or more alphanumeric characters, underscore, dot or hyphen",
        ),
    Case::new("configuration/unsupported-field", unsupported_field, MUST)
        .of(EVERY_KIND)
        .section("5, Error")
        .says("The error message must contain the key and value of the unsupported field"),
    Case::new("configuration/del-with-less", del_with_less, SHOULD)
        .of(EVERY_KIND)
        .section("2, DEL")
        .says(
            "plugins should always complete a `DEL` action without error to the fullest extent \
             possible, even if some resources or state are missing",
        ),
];

fn undecodable(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    for text in ["", "{", "[]", "\"text\"", "\u{0}"] {
        let add = bench.call(Verb::Add).of(&container);
        let ran = add.input(Input::Bytes(text.into())).run()?;
        ran.refusal().map_err(|verdict| on(text, verdict))?;
    }
    Ok(())
}

fn name_required(bench: &Bench<'_>) -> Held {
    let add = bench.call(Verb::Add).of(&bench.container()?);
    add.without_member("name").run()?.refusal().map(drop)
}

fn name(bench: &Bench<'_>) -> Held {
    for name in ["", "-net", "../net", "a/b", "a b"] {
        let add = bench.call(Verb::Add).of(&bench.container()?);
        let ran = add.member("name", name).run()?;
        ran.refusal().map_err(|verdict| on(name, verdict))?;
    }
    Ok(())
}

fn unsupported_field(bench: &Bench<'_>) -> Held {
    let (key, value) = ("conformanceProbe", "value-8143");
    let add = bench.call(Verb::Add).of(&bench.container()?);
    let ran = add.member(key, json!(value)).run()?;
    if ran.is_success() {
        return not_applicable("it passes over members that it does not know");
    }
    let refusal = ran.refusal()?;
    let error = refusal.error()?;
    if error.code != code::UNSUPPORTED_FIELD {
        return Err(Verdict::Broken(format!(
            "an unknown member: {}",
            ran.story()
        )));
    }
    let told = format!("{} {}", error.msg, error.details);
    require(told.contains(key) && told.contains(value), || {
        format!(
            "it says neither key nor value, or only one of them: “{}”",
            told.trim()
        )
    })
}

fn del_with_less(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let before = bench.call_for(Verb::Del, &attached);
    // A runtime whose cache is lost has the network's file, and nothing that it had put in.
    let ran = before
        .without_member("prevResult")
        .without_member("runtimeConfig")
        .without_member("args")
        .unset("CNI_ARGS")
        .run()?;
    ran.success()
}

fn on(text: &str, verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Broken(how) => Verdict::Broken(format!("given {text:?}: {how}")),
        other => other,
    }
}
