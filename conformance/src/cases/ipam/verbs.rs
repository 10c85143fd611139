//! The operations passed on, and what becomes of their errors.

use serde_json::Value;

use super::called;
use crate::bench::{Bench, IFNAME};
use crate::case::{Held, require};
use crate::cases::{gc as collection, nothing_left};
use crate::ipam::Recorded;
use crate::spec::Verb;

pub(super) fn add_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    recorder.refuse("ADD", 11, "no address today")?;
    let add = bench.call(Verb::Add).of(&bench.container()?);
    add.conf(conf).run()?.refusal().map(drop)
}

pub(super) fn add_error_undone(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    recorder.refuse("ADD", 11, "no address today")?;
    let add = bench.call(Verb::Add).of(&bench.container()?);
    add.conf(conf).run()?.refusal()?;
    let calls = recorder.calls()?;
    let verbs: Vec<&str> = calls.iter().map(Recorded::verb).collect();
    require(verbs == ["ADD", "DEL"], || {
        format!(
            "after its refusal of ADD the IPAM plugin was asked for {:?}",
            &verbs[1..]
        )
    })
}

pub(super) fn add_error_leaves_nothing(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let before = bench.warm_up(&conf)?;
    recorder.refuse("ADD", 11, "no address today")?;
    let container = bench.container()?;
    let add = bench.call(Verb::Add).of(&container).conf(conf.clone());
    add.run()?.refusal()?;
    let del = bench.call(Verb::Del).of(&container).conf(conf);
    del.run()?.success()?;
    require(container.link(IFNAME)?.is_none(), || {
        format!("after a failed ADD and its DEL {IFNAME} is in the container")
    })?;
    let left = bench.footprint()?.beyond(&before);
    nothing_left(&left, "a failed ADD and its DEL")
}

pub(super) fn released_after_failure(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let container = bench.container()?;
    container.ip(&[
        "link", "add", IFNAME, "type", "veth", "peer", "name", "other0",
    ])?;
    let add = bench.call(Verb::Add).of(&container).conf(conf.clone());
    add.run()?.refusal()?;
    let del = bench.call(Verb::Del).of(&container).conf(conf);
    del.run()?.success()?;
    let calls = recorder.calls()?;
    let last = calls.last().map(Recorded::verb);
    require(last == Some("DEL"), || {
        let verbs: Vec<&str> = calls.iter().map(Recorded::verb).collect();
        format!("after a failed ADD and its DEL the IPAM plugin had been asked for {verbs:?}")
    })
}

pub(super) fn del(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    bench.detach(&attached)?;
    let call = called(&recorder, "DEL")?;
    let id = call.variable("CNI_CONTAINERID");
    require(id == attached.container.id, || {
        format!("the IPAM plugin was asked for DEL of “{id}”")
    })
}

pub(super) fn del_without_netns(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    attached.container.remove_netns()?;
    bench.detach(&attached)?;
    called(&recorder, "DEL")?;
    let before = recorder.calls_of("DEL")?.len();
    let del = bench.call_for(Verb::Del, &attached);
    del.set("CNI_NETNS", "").run()?.success()?;
    require(recorder.calls_of("DEL")?.len() > before, || {
        "a DEL with an empty CNI_NETNS was not delegated".into()
    })
}

pub(super) fn del_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    recorder.refuse("DEL", 11, "not now")?;
    bench.call_for(Verb::Del, &attached).run()?.refusal()?;
    recorder.serve("DEL")?;
    bench.detach(&attached)
}

pub(super) fn check(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    bench.call_for(Verb::Check, &attached).run()?.success()?;
    called(&recorder, "CHECK").map(drop)
}

pub(super) fn check_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    bench.call_for(Verb::Check, &attached).run()?.success()?;
    recorder.refuse("CHECK", 103, "the reservation is gone")?;
    bench
        .call_for(Verb::Check, &attached)
        .run()?
        .refusal()
        .map(drop)
}

pub(super) fn status(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    bench.call(Verb::Status).conf(conf).run()?.success()?;
    called(&recorder, "STATUS").map(drop)
}

pub(super) fn status_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    bench
        .call(Verb::Status)
        .conf(conf.clone())
        .run()?
        .success()?;
    recorder.refuse("STATUS", 50, "no addresses left")?;
    bench
        .call(Verb::Status)
        .conf(conf)
        .run()?
        .refusal()
        .map(drop)
}

pub(super) fn gc(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf.clone())?;
    let valid = collection::valid(&[&attached]);
    let gc = bench
        .call(Verb::Gc)
        .conf(conf)
        .member(collection::VALID, valid.clone());
    gc.run()?.success()?;
    let call = called(&recorder, "GC")?;
    let seen: Value = serde_json::from_str(&call.stdin).unwrap_or_default();
    require(seen[collection::VALID] == valid, || {
        format!(
            "the valid attachments did not reach the IPAM plugin: {}",
            call.stdin
        )
    })
}

pub(super) fn gc_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let before = bench.warm_up(&conf)?;
    let attached = bench.attach_with(conf.clone())?;
    attached.container.remove_netns()?;
    recorder.refuse("GC", 5, "the disk is read-only")?;
    let gc = bench.call(Verb::Gc).conf(conf);
    let ran = gc
        .member(collection::VALID, Value::Array(Vec::new()))
        .run()?;
    ran.refusal()?;
    let left = bench.host.settled(&before, &bench.container_ids())?;
    nothing_left(&left, "a GC whose delegated part failed")
}

pub(super) fn at_once(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let containers = [(); 4].map(|()| bench.container());
    std::thread::scope(|scope| {
        let adds: Vec<_> = containers
            .into_iter()
            .map(|container| {
                let conf = conf.clone();
                scope.spawn(move || bench.attach_to(&container?, IFNAME, conf).map(drop))
            })
            .collect();
        adds.into_iter().try_for_each(|add| {
            add.join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })?;
    let asked = recorder.calls_of("ADD")?.len();
    require(asked == 4, || {
        format!("4 ADDs at once were delegated as {asked}")
    })
}
