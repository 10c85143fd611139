//! ADD: what it makes, and when it must not.

use super::{CASE, EVERY_KIND, MUST, MUST_SINCE_1_1, SHOULD, nothing_left};
use crate::bench::{Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::spec::Level::{Must, Should};
use crate::spec::Verb;
use crate::spec::Version::{V0_3_0, V1_0_0};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "add/outputs-result",
        section: "2, ADD",
        says: "If the CNI plugin is successful, it must output a result structure on standard out",
        levels: MUST,
        kinds: EVERY_KIND,
        test: outputs_result,
        ..CASE
    },
    Case {
        id: "add/creates-interface",
        section: "2, ADD",
        says: "should […] create the interface defined by `CNI_IFNAME` inside the container at \
               `CNI_NETNS`",
        levels: SHOULD,
        test: creates_interface,
        ..CASE
    },
    Case {
        id: "add/honours-ifname",
        section: "2, Parameters",
        says: "if the plugin is unable to use this interface name it must return an error",
        levels: MUST,
        test: honours_ifname,
        ..CASE
    },
    Case {
        id: "add/refuses-existing",
        section: "2, ADD",
        says: "If an interface of the requested name already exists in the container, the CNI \
               plugin MUST return with an error",
        levels: MUST,
        test: refuses_existing,
        ..CASE
    },
    Case {
        id: "add/refuses-twice",
        section: "2, ADD",
        says: "If an interface of the requested name already exists in the container, the CNI \
               plugin MUST return with an error",
        levels: MUST,
        test: refuses_twice,
        ..CASE
    },
    Case {
        id: "add/del-after-failure",
        section: "3, Lifecycle & Ordering",
        says: "A _delete_ must still be executed even if the _add_ fails",
        levels: &[(V0_3_0, Should), (V1_0_0, Must)],
        test: del_after_failure,
        ..CASE
    },
    Case {
        id: "add/without-status",
        section: "2, STATUS",
        says: "A plugin MUST NOT rely on `STATUS` being called",
        levels: MUST_SINCE_1_1,
        kinds: EVERY_KIND,
        test: without_status,
        ..CASE
    },
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
