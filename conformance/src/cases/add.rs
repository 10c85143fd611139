//! ADD: what it makes, and when it must not.

use super::{EVERY_KIND, MUST, MUST_SINCE_1_1, SHOULD, SHOULD_THEN_MUST, nothing_left};
use crate::bench::{Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::spec::Verb;

// Sentences that several cases check.
const EXISTS_ALREADY: &str = "If an interface of the requested name already exists in the \
    container, the CNI plugin MUST return with an error";

pub(super) const CASES: &[Case] = &[
    Case::new("add/outputs-result", outputs_result, MUST)
        .of(EVERY_KIND)
        .section("2, ADD")
        .says("If the CNI plugin is successful, it must output a result structure on standard out"),
    Case::new("add/creates-interface", creates_interface, SHOULD)
        .section("2, ADD")
        .says(
            "should […] create the interface defined by `CNI_IFNAME` inside the container at \
             `CNI_NETNS`",
        ),
    Case::new("add/honours-ifname", honours_ifname, MUST)
        .section("2, Parameters")
        .says("if the plugin is unable to use this interface name it must return an error"),
    Case::new("add/refuses-existing", refuses_existing, MUST)
        .section("2, ADD")
        .says(EXISTS_ALREADY),
    Case::new("add/refuses-twice", refuses_twice, MUST)
        .section("2, ADD")
        .says(EXISTS_ALREADY),
    Case::new("add/del-after-failure", del_after_failure, SHOULD_THEN_MUST)
        .section("3, Lifecycle & Ordering")
        .says("A _delete_ must still be executed even if the _add_ fails"),
    Case::new("add/without-status", without_status, MUST_SINCE_1_1)
        .of(EVERY_KIND)
        .section("2, STATUS")
        .says("A plugin MUST NOT rely on `STATUS` being called"),
];

fn outputs_result(bench: &Bench<'_>) -> Held {
    bench.attach().map(drop)
}

fn creates_interface(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    require(attached.container.link(IFNAME)?.is_some(), || {
        format!("after ADD there is no {IFNAME} in the container")
    })
}

fn honours_ifname(bench: &Bench<'_>) -> Held {
    let ifname = "fifteen-letters";
    let container = bench.container()?;
    let ran = bench.call(Verb::Add).of(&container).ifname(ifname).run()?;
    if !ran.is_success() {
        // A name that it can't use may be refused.
        return ran.refusal().map(drop);
    }
    let links = container.links()?;
    require(links.iter().any(|link| link.name == ifname), || {
        let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
        format!("asked for {ifname}, the container has {}", names.join(", "))
    })
}

fn refuses_existing(bench: &Bench<'_>) -> Held {
    let container = bench.container()?;
    foreign_interface(&container)?;
    let before = container.link(IFNAME)?;
    bench.call(Verb::Add).of(&container).run()?.refusal()?;
    require(container.link(IFNAME)? == before, || {
        format!("it refused, and still changed the {IFNAME} that was there")
    })
}

fn refuses_twice(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let again = bench.call(Verb::Add).of(&attached.container);
    again.run()?.refusal().map(drop)
}

fn del_after_failure(bench: &Bench<'_>) -> Held {
    let before = bench.warm_up(&bench.conf())?;
    let container = bench.container()?;
    foreign_interface(&container)?;
    bench.call(Verb::Add).of(&container).run()?.refusal()?;
    bench.call(Verb::Del).of(&container).run()?.success()?;
    let left = bench.footprint()?.beyond(&before);
    nothing_left(&left, "a failed ADD and its DEL")
}

fn without_status(bench: &Bench<'_>) -> Held {
    // Nothing has asked for STATUS on this host.
    bench.attach().map(drop)
}

/// Makes an interface of the requested name that is not the plugin's.
fn foreign_interface(container: &crate::container::Container) -> Result<(), crate::Trouble> {
    container.ip(&[
        "link", "add", IFNAME, "type", "veth", "peer", "name", "other0",
    ])
}
