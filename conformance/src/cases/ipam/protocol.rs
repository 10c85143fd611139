//! How the IPAM plugin is found and called, and what becomes of its answer.

use serde_json::Value;

use super::called;
use crate::bench::{Bench, IFNAME};
use crate::case::{Held, require};
use crate::cases::members;
use crate::ipam::{self, NAME_SERVER, ROUTE, SUBNET};
use crate::spec::Verb;

pub(super) fn found_in_path(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    bench.attach_with(conf)?;
    called(&recorder, "ADD").map(drop)
}

pub(super) fn type_is_a_name(bench: &Bench<'_>) -> Held {
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

pub(super) fn parameters(bench: &Bench<'_>) -> Held {
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

pub(super) fn environment(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let (variable, value) = ("CONFORMANCE_PROBE", "8143");
    let add = bench.call(Verb::Add).of(&bench.container()?).conf(conf);
    add.set(variable, value).run()?.success()?;
    let seen = called(&recorder, "ADD")?.variable(variable).to_owned();
    require(seen == value, || {
        format!("a variable {variable}={value} did not reach the IPAM plugin")
    })
}

pub(super) fn configuration(bench: &Bench<'_>) -> Held {
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

pub(super) fn stderr(bench: &Bench<'_>) -> Held {
    let (conf, recorder) = bench.delegation()?;
    let add = bench.call(Verb::Add).of(&bench.container()?).conf(conf);
    let ran = add.run()?;
    ran.success()?;
    called(&recorder, "ADD")?;
    require(ran.stderr().contains(&ipam::remark("ADD")), || {
        "what the IPAM plugin wrote to its stderr is not on the plugin's".into()
    })
}

pub(super) fn applied(bench: &Bench<'_>) -> Held {
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

pub(super) fn passed_on(bench: &Bench<'_>) -> Held {
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
