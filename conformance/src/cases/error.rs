//! The form of errors.

use super::{EVERY_KIND, MUST, SHOULD, SHOULD_SINCE_1_0};
use crate::answer::{CniError, Refusal};
use crate::bench::Bench;
use crate::case::{Case, Held, Verdict, require};
use crate::exec::Input;
use crate::spec::Level::{Must, Should};
use crate::spec::Version::{V0_3_0, V0_4_0, V1_0_0};
use crate::spec::{Verb, code};
use crate::subject::Kind;

pub(super) const CASES: &[Case] = &[
    Case::new("error/exit-status", exit_status, MUST)
        .of(EVERY_KIND)
        .section("2, Errors")
        .says("A plugin must exit with a return code of 0 on success, and non-zero on failure"),
    Case::new(
        "error/structure",
        structure,
        &[(V0_3_0, Should), (V0_4_0, Must), (V1_0_0, Should)],
    )
    .of(EVERY_KIND)
    .section("5, Error")
    .says(
        "Plugins should output a JSON object with the following keys if they encounter an \
             error: `cniVersion`, `code`, `msg`, `details`",
    ),
    Case::new("error/version", version, SHOULD)
        .of(EVERY_KIND)
        .section("5, Error")
        .says("`cniVersion`: The protocol version in use"),
    Case::new("error/reserved-codes", reserved_codes, SHOULD)
        .of(EVERY_KIND)
        .section("5, Error")
        .says("Error codes 0-99 are reserved for well-known errors"),
    Case::new("error/code-5", code_5, SHOULD_SINCE_1_0)
        .of(EVERY_KIND)
        .section("5, Error")
        .says("`5`: I/O failure. For example, failed to read network config bytes from stdin"),
    Case::new("error/code-6", code_6, SHOULD_SINCE_1_0)
        .of(EVERY_KIND)
        .section("5, Error")
        .says(
            "`6`: Failed to decode content. For example, failed to unmarshal network config from \
             bytes",
        ),
    Case::new("error/code-7", code_7, SHOULD_SINCE_1_0)
        .of(EVERY_KIND)
        .section("5, Error")
        .says(
            "`7`: Invalid network config. If some validations on network configs do not pass, \
             this error will be raised",
        ),
];

fn exit_status(bench: &Bench<'_>) -> Held {
    failures(bench).map(drop)
}

fn structure(bench: &Bench<'_>) -> Held {
    for (when, refusal) in failures(bench)? {
        let error = told(when, &refusal)?;
        require(!error.msg.trim().is_empty(), || {
            format!("{when}: msg is empty (code {})", error.code)
        })?;
    }
    Ok(())
}

fn version(bench: &Bench<'_>) -> Held {
    let (when, refusal) = well_formed(bench)?;
    let error = told(when, &refusal)?;
    require(
        error.version.as_deref() == Some(bench.version.as_str()),
        || {
            let seen = error.version.as_deref().unwrap_or("missing");
            format!("{when}: cniVersion is {seen}")
        },
    )
}

fn reserved_codes(bench: &Bench<'_>) -> Held {
    for (when, refusal) in failures(bench)? {
        let code = told(when, &refusal)?.code;
        let allowed = code::WELL_KNOWN.contains(&code) || code >= code::FIRST_OWN;
        require(allowed, || {
            format!("{when}: code {code} is reserved and has no meaning")
        })?;
    }
    Ok(())
}

fn code_5(bench: &Bench<'_>) -> Held {
    let add = bench.call(Verb::Add).of(&bench.container()?);
    let ran = add.input(Input::Unreadable).run()?;
    ran.refusal()?.coded(&[code::IO])
}

fn code_6(bench: &Bench<'_>) -> Held {
    undecodable(bench)?.1.coded(&[code::DECODE])
}

fn code_7(bench: &Bench<'_>) -> Held {
    nameless(bench)?.1.coded(&[code::INVALID_CONFIG])
}

type Failed = (&'static str, Refusal);

/// Failures of several kinds, each of which must end with a status other than 0.
fn failures(bench: &Bench<'_>) -> Result<Vec<Failed>, Verdict> {
    let add = bench.call(Verb::Add).of(&bench.container()?);
    let no_ifname = add.unset("CNI_IFNAME").run()?.refusal()?;
    Ok(vec![
        undecodable(bench)?,
        nameless(bench)?,
        well_formed(bench)?,
        ("ADD without CNI_IFNAME", no_ifname),
    ])
}

fn undecodable(bench: &Bench<'_>) -> Result<Failed, Verdict> {
    let add = bench.call(Verb::Add).of(&bench.container()?);
    let ran = add.input(Input::Bytes(b"{\"name\": ".into())).run()?;
    Ok(("ADD with half a configuration", ran.refusal()?))
}

fn nameless(bench: &Bench<'_>) -> Result<Failed, Verdict> {
    let add = bench.call(Verb::Add).of(&bench.container()?);
    let ran = add.without_member("name").run()?;
    Ok(("ADD without a network name", ran.refusal()?))
}

/// A failure of what is right in form, as far as there is one for the plugin's kind: not each needs
/// the namespace.
fn well_formed(bench: &Bench<'_>) -> Result<Failed, Verdict> {
    match bench.subject.kind {
        Kind::Interface => without_namespace(bench),
        Kind::Chained | Kind::Ipam => nameless(bench),
    }
}

fn without_namespace(bench: &Bench<'_>) -> Result<Failed, Verdict> {
    let container = bench.container()?;
    container.remove_netns()?;
    let ran = bench.call(Verb::Add).of(&container).run()?;
    Ok(("ADD with a CNI_NETNS that is not there", ran.refusal()?))
}

fn told<'r>(when: &str, refusal: &'r Refusal) -> Result<&'r CniError, Verdict> {
    refusal.error().map_err(|verdict| match verdict {
        Verdict::Broken(how) => Verdict::Broken(format!("{when}: {how}")),
        other => other,
    })
}
