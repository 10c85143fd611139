//! STATUS: whether an ADD would be served.

use super::{EVERY_KIND, MUST_SINCE_1_1, SHOULD_SINCE_1_1};
use crate::bench::Bench;
use crate::case::{Case, Held, Verdict, not_applicable};
use crate::host::shell;
use crate::spec::{Verb, code};

pub(super) const CASES: &[Case] = &[
    Case::new("status/ready", ready, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, STATUS")
        .says(
            "A plugin must exit with a zero (success) return code if the plugin is ready to \
             service ADD requests",
        ),
    Case::new("status/optional-path", optional_path, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, STATUS")
        .says("Optional environment parameters: `CNI_PATH`"),
    Case::new("status/not-ready", not_ready, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, STATUS")
        .says(
            "If the plugin knows that it is not able to service ADD requests, it must exit with \
             a non-zero return code and output an error on standard out",
        ),
    Case::new("status/codes", codes, SHOULD_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, STATUS")
        .says(
            "`50`: The plugin is not available; `51`: The plugin is not available, and existing \
             containers in the network may have limited connectivity",
        ),
    Case::new("status/others-go-on", others_go_on, SHOULD_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, STATUS")
        .says(
            "Plugins should always expect other CNI operations (like `ADD`, `DEL`, etc) even if \
             `STATUS` returns an error",
        ),
];

fn ready(bench: &Bench<'_>) -> Held {
    bench.call(Verb::Status).run()?.success()?;
    bench.attach().map(drop)
}

fn optional_path(bench: &Bench<'_>) -> Held {
    if bench.subject.conf.contains_key("ipam") {
        return not_applicable("it has to look its IPAM plugin up in CNI_PATH");
    }
    let status = bench.call(Verb::Status).unset("CNI_PATH");
    status.run()?.success()
}

fn not_ready(bench: &Bench<'_>) -> Held {
    during_outage(bench, |bench| {
        let refusal = bench.call(Verb::Status).run()?.refusal()?;
        refusal.error().map(drop)
    })
}

fn codes(bench: &Bench<'_>) -> Held {
    during_outage(bench, |bench| {
        let refusal = bench.call(Verb::Status).run()?.refusal()?;
        refusal.coded(&code::NOT_AVAILABLE)
    })
}

fn others_go_on(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    during_outage(bench, |bench| {
        bench.call(Verb::Status).run()?.refusal().map(drop)
    })?;
    bench.detach(&attached)?;
    bench.attach().map(drop)
}

/// Does something while the plugin can't serve an ADD, and waits until it can again.
fn during_outage(bench: &Bench<'_>, work: fn(&Bench<'_>) -> Held) -> Held {
    let Some(outage) = &bench.subject.outage else {
        return not_applicable("no way was given to make it unable to serve (--outage)");
    };
    bench.call(Verb::Status).run()?.success()?;
    shell(&outage.begin)?;
    let held = work(bench);
    let ended = shell(&outage.end).map(drop).map_err(Verdict::from);
    held.and(ended)
}
