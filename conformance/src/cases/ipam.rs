//! Delegation: an IPAM plugin that the plugin under test runs, here one that writes it all down.

use serde_json::Value;

use super::{
    CASE, MUST, MUST_SINCE_0_4, MUST_SINCE_1_0, MUST_SINCE_1_1, SHOULD, SHOULD_SINCE_1_0,
    SHOULD_SINCE_1_1, members, nothing_left,
};
use crate::bench::{Bench, IFNAME};
use crate::case::{Case, Held, require};
use crate::ipam::{self, NAME_SERVER, ROUTE, Recorded, Recorder, SUBNET};
use crate::spec::Level::{Must, Should};
use crate::spec::Verb;
use crate::spec::Version::{V0_3_0, V0_4_0, V1_0_0};

const DELEGATION: Case = Case {
    delegation: true,
    ..CASE
};

pub(super) const CASES: &[Case] = &[
    Case {
        id: "ipam/found-in-path",
        section: "4, Delegated plugin execution procedure",
        says: "Look up the plugin binary by searching the directories provided in `CNI_PATH` environment variable",
        levels: &[(V0_3_0, Must), (V1_0_0, Should)],
        test: found_in_path,
        ..DELEGATION
    },
    Case {
        id: "ipam/type-is-a-name",
        section: "1, Plugin configuration objects",
        says: "`type`: Refers to the filename of the IPAM plugin executable. Must not contain characters disallowed in file paths",
        levels: MUST_SINCE_1_0,
        test: type_is_a_name,
        ..DELEGATION
    },
    Case {
        id: "ipam/parameters",
        section: "4, Delegated Plugin protocol",
        says: "The delegated plugin must receive all the same environment variables that were passed in to the CNI plugin",
        levels: MUST,
        test: parameters,
        ..DELEGATION
    },
    Case {
        id: "ipam/environment",
        section: "4, Delegated Plugin protocol",
        says: "The delegated plugin must receive all the same environment variables that were passed in to the CNI plugin",
        levels: MUST,
        test: environment,
        ..DELEGATION
    },
    Case {
        id: "ipam/configuration",
        section: "4, Delegated Plugin protocol",
        says: "Delegated plugins are provided the *complete network configuration* passed to the \"upper\" plugin",
        levels: MUST,
        test: configuration,
        ..DELEGATION
    },
    Case {
        id: "ipam/stderr",
        section: "4, Delegated plugin execution procedure",
        says: "Ensure that the delegated plugin's stderr is output to the calling plugin's stderr",
        levels: SHOULD_SINCE_1_0,
        test: stderr,
        ..DELEGATION
    },
    Case {
        id: "ipam/applied",
        section: "4, Plugin Delegation",
        says: "The IPAM plugin must determine the interface IP/subnet, Gateway and Routes and return this information to the \"main\" plugin to apply",
        levels: MUST,
        test: applied,
        ..DELEGATION
    },
    Case {
        id: "ipam/passed-on",
        section: "Result (0.4)",
        says: "The `ips` and `dns` items should be the same output as was returned by the IPAM plugin",
        levels: SHOULD,
        until: Some(V0_4_0),
        test: passed_on,
        ..DELEGATION
    },
    Case {
        id: "ipam/add-error",
        section: "2, Errors",
        says: "A plugin must exit with a return code of 0 on success, and non-zero on failure",
        levels: MUST,
        test: add_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/add-error-undone",
        section: "4, Delegated plugin execution procedure",
        says: "If, on `ADD`, a delegated plugin fails, the \"upper\" plugin should execute again with `DEL` before returning failure",
        levels: SHOULD_SINCE_1_0,
        test: add_error_undone,
        ..DELEGATION
    },
    Case {
        id: "ipam/add-error-leaves-nothing",
        section: "3, Lifecycle & Ordering",
        says: "A _delete_ must still be executed even if the _add_ fails",
        levels: &[(V0_3_0, Should), (V1_0_0, Must)],
        test: add_error_leaves_nothing,
        ..DELEGATION
    },
    Case {
        id: "ipam/released-after-failure",
        section: "2, DEL",
        says: "the `bridge` plugin should delegate the DEL action to the IPAM plugin and clean up its own resources",
        levels: SHOULD,
        test: released_after_failure,
        ..DELEGATION
    },
    Case {
        id: "ipam/del",
        section: "4, Delegated plugin execution procedure",
        says: "If a plugin is executed with `CNI_COMMAND=CHECK`, `DEL`, or `GC`, it must also execute any delegated plugins",
        levels: MUST,
        test: del,
        ..DELEGATION
    },
    Case {
        id: "ipam/del-without-netns",
        section: "2, DEL",
        says: "should delegate the DEL action to the IPAM plugin […] even if the container network namespace and/or container network interface no longer exist",
        levels: SHOULD,
        test: del_without_netns,
        ..DELEGATION
    },
    Case {
        id: "ipam/del-error",
        section: "4, Delegated plugin execution procedure",
        says: "If any of the delegated plugins return error, error should be returned by the upper plugin",
        levels: SHOULD_SINCE_1_0,
        test: del_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/check",
        section: "4, Delegated plugin execution procedure",
        says: "If a plugin is executed with `CNI_COMMAND=CHECK`, `DEL`, or `GC`, it must also execute any delegated plugins",
        levels: &[(V0_4_0, Should), (V1_0_0, Must)],
        test: check,
        ..DELEGATION
    },
    Case {
        id: "ipam/check-error",
        section: "2, CHECK",
        says: "The plugin should call `CHECK` on any delegated (e.g. IPAM) plugins and pass any errors on to its caller",
        levels: &[(V0_4_0, Should)],
        test: check_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/status",
        section: "2, STATUS",
        says: "If a plugin relies on a delegated plugin (e.g. IPAM) to service `ADD` requests, it must also execute a `STATUS` request to that plugin",
        levels: MUST_SINCE_1_1,
        test: status,
        ..DELEGATION
    },
    Case {
        id: "ipam/status-error",
        section: "2, STATUS",
        says: "If the delegated plugin return an error result, the executing plugin should return an error result",
        levels: SHOULD_SINCE_1_1,
        test: status_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/gc",
        section: "2, GC",
        says: "Plugins MUST, additionally, forward any GC calls to delegated plugins they are configured to use",
        levels: MUST_SINCE_1_1,
        test: gc,
        ..DELEGATION
    },
    Case {
        id: "ipam/gc-error",
        section: "2, GC",
        says: "If an error is encountered, a plugin should continue; removing as many resources as possible, and report the errors back to the runtime",
        levels: SHOULD_SINCE_1_1,
        test: gc_error,
        ..DELEGATION
    },
    Case {
        id: "ipam/at-once",
        section: "3, Lifecycle & Ordering",
        says: "Plugins must handle being executed concurrently across different containers",
        levels: MUST_SINCE_0_4,
        test: at_once,
        ..DELEGATION
    },
];

fn found_in_path(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    bench.attach_with(conf)?;
    called(&recorder, "ADD").map(drop)
}

fn type_is_a_name(bench: &Bench<'_>) -> Held {
    let (mut conf, recorder) = bench.delegation()?;
    // From any directory of CNI_PATH this leads to the recorder.
    let up = "../".repeat(16);
    let path = recorder.path().join(ipam::TYPE);
    conf["ipam"]["type"] = format!("{up}{}", path.display()).into();
    let container = bench.container()?;
    let ran = bench.call(Verb::Add).of(&container).conf(conf).run()?;
    let was_run = !recorder.calls()?.is_empty();
    require(!was_run, || "it ran a plugin from outside CNI_PATH".into())?;
    ran.refusal().map(drop)
}

fn parameters(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let container = bench.container()?;
    let args = bench.subject.cni_args.clone();
    let args = args.unwrap_or("IgnoreUnknown=1;CONFORMANCE=8143".into());
    let add = bench.call(Verb::Add).of(&container).conf(conf);
    let add = add.set("CNI_ARGS", &args);
    let path = add.cni_path();
    add.run()?.success()?;
    let call = called(&recorder, "ADD")?;
    let netns = container.netns.to_string_lossy();
    for (variable, value) in [
        ("CNI_CONTAINERID", container.id.as_str()),
        ("CNI_NETNS", &netns),
        ("CNI_IFNAME", IFNAME),
        ("CNI_ARGS", &args),
        ("CNI_PATH", &path),
    ] {
        let seen = call.variable(variable);
        require(seen == value, || {
            format!("{variable} was {value}, and the IPAM plugin got “{seen}”")
        })?;
    }
    Ok(())
}

fn environment(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let (variable, value) = ("CONFORMANCE_PROBE", "8143");
    let add = bench.call(Verb::Add).of(&bench.container()?).conf(conf);
    add.set(variable, value).run()?.success()?;
    let seen = called(&recorder, "ADD")?.variable(variable).to_owned();
    require(seen == value, || {
        format!("a variable {variable}={value} did not reach the IPAM plugin")
    })
}

fn configuration(bench: &Bench<'_>) -> Held {
    let (mut conf, recorder) = bench.delegation()?;
    conf.insert(
        "conformanceProbe".into(),
        serde_json::json!([1, {"a": null}]),
    );
    let container = bench.container()?;
    let add = bench.call(Verb::Add).of(&container).conf(conf.clone());
    if !add.run()?.is_success() {
        // It may refuse what it does not know; then without.
        conf.remove("conformanceProbe");
        let add = bench.call(Verb::Add).of(&bench.container()?);
        add.conf(conf.clone()).run()?.success()?;
    }
    let call = called(&recorder, "ADD")?;
    let seen: Option<Value> = serde_json::from_str(&call.stdin).ok();
    require(seen == Some(Value::Object(conf)), || {
        format!(
            "the IPAM plugin got {}",
            crate::answer::excerpt(&call.stdin)
        )
    })
}

fn stderr(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let add = bench.call(Verb::Add).of(&bench.container()?).conf(conf);
    let ran = add.run()?;
    ran.success()?;
    called(&recorder, "ADD")?;
    require(ran.stderr().contains(&ipam::remark("ADD")), || {
        "what the IPAM plugin wrote to its stderr is not on the plugin's".into()
    })
}

fn applied(bench: &Bench<'_>) -> Held {
    let (conf, _recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    let link = attached.container.link(IFNAME)?;
    let addresses = link.map(|link| link.addresses).unwrap_or_default();
    let given = |address: &ipnet::IpNet| address.to_string().starts_with(SUBNET);
    require(addresses.iter().any(given), || {
        format!("{IFNAME} has {addresses:?}, and the IPAM plugin gave one of {SUBNET}.0/24")
    })?;
    let routes = attached.container.routes()?;
    for wanted in ["0.0.0.0/0", ROUTE] {
        let is_there = routes.iter().any(|route| {
            route.dst.to_string() == wanted
                && route
                    .gw
                    .is_some_and(|gw| gw.to_string() == format!("{SUBNET}.1"))
        });
        require(is_there, || {
            let made: Vec<_> = routes.iter().map(|it| it.dst.to_string()).collect();
            format!(
                "no route to {wanted} by {SUBNET}.1; there are {}",
                made.join(", ")
            )
        })?;
    }
    Ok(())
}

fn passed_on(bench: &Bench<'_>) -> Held {
    let (conf, _recorder) = bench.delegation()?;
    let result = bench.attach_with(conf)?.result;
    let mut ips = members(&result["ips"]).iter();
    let given = ips.find(|ip| {
        ip["address"]
            .as_str()
            .is_some_and(|it| it.starts_with(SUBNET))
    });
    let has_gateway = given.is_some_and(|ip| ip["gateway"] == format!("{SUBNET}.1"));
    require(has_gateway, || {
        format!("ips is not as the IPAM plugin gave it: {}", result["ips"])
    })?;
    require(result["dns"]["nameservers"][0] == NAME_SERVER, || {
        format!("dns is not as the IPAM plugin gave it: {}", result["dns"])
    })
}

fn add_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    recorder.refuse("ADD", 11, "no address today")?;
    let add = bench.call(Verb::Add).of(&bench.container()?);
    add.conf(conf).run()?.refusal().map(drop)
}

fn add_error_undone(bench: &Bench<'_>) -> Held {
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

fn add_error_leaves_nothing(bench: &Bench<'_>) -> Held {
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

fn released_after_failure(bench: &Bench<'_>) -> Held {
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

fn del(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    bench.detach(&attached)?;
    let call = called(&recorder, "DEL")?;
    let id = call.variable("CNI_CONTAINERID");
    require(id == attached.container.id, || {
        format!("the IPAM plugin was asked for DEL of “{id}”")
    })
}

fn del_without_netns(bench: &Bench<'_>) -> Held {
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

fn del_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    recorder.refuse("DEL", 11, "not now")?;
    bench.call_for(Verb::Del, &attached).run()?.refusal()?;
    recorder.serve("DEL")?;
    bench.detach(&attached)
}

fn check(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf)?;
    bench.call_for(Verb::Check, &attached).run()?.success()?;
    called(&recorder, "CHECK").map(drop)
}

fn check_error(bench: &Bench<'_>) -> Held {
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

fn status(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    bench.call(Verb::Status).conf(conf).run()?.success()?;
    called(&recorder, "STATUS").map(drop)
}

fn status_error(bench: &Bench<'_>) -> Held {
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

fn gc(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let attached = bench.attach_with(conf.clone())?;
    let valid = super::gc::valid(&[&attached]);
    let gc = bench
        .call(Verb::Gc)
        .conf(conf)
        .member(super::gc::VALID, valid.clone());
    gc.run()?.success()?;
    let call = called(&recorder, "GC")?;
    let seen: Value = serde_json::from_str(&call.stdin).unwrap_or_default();
    require(seen[super::gc::VALID] == valid, || {
        format!(
            "the valid attachments did not reach the IPAM plugin: {}",
            call.stdin
        )
    })
}

fn gc_error(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let before = bench.warm_up(&conf)?;
    let attached = bench.attach_with(conf.clone())?;
    attached.container.remove_netns()?;
    recorder.refuse("GC", 5, "the disk is read-only")?;
    let gc = bench.call(Verb::Gc).conf(conf);
    let ran = gc
        .member(super::gc::VALID, Value::Array(Vec::new()))
        .run()?;
    ran.refusal()?;
    let left = bench.host.settled(&before, &bench.container_ids())?;
    nothing_left(&left, "a GC whose delegated part failed")
}

fn at_once(bench: &Bench<'_>) -> Held {
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

/// The last call of a verb, which must have come.
fn called(recorder: &Recorder, verb: &str) -> Result<Recorded, crate::case::Verdict> {
    let calls = recorder.calls()?;
    let found = calls.iter().rev().find(|call| call.verb() == verb);
    match found {
        Some(call) => Ok(call.clone()),
        None => {
            let verbs: Vec<&str> = calls.iter().map(Recorded::verb).collect();
            crate::case::broken(format!(
                "the IPAM plugin was not asked for {verb}, only {verbs:?}"
            ))
        }
    }
}
