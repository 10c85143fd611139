//! CHECK: prevResult compared with what exists.

use serde_json::{Value, json};

use super::{EVERY_KIND, MUST_SINCE_0_4, SHOULD_SINCE_0_4, members};
use crate::bench::{Attached, Bench, IFNAME};
use crate::case::{Case, Held, not_applicable, require};
use crate::spec::{Verb, Version};

// Sentences that several cases check.
const BY_PREV_RESULT: &str = "The plugin must consult the `prevResult` to determine the expected \
    interfaces and addresses";
const LATER_PLUGIN: &str = "The plugin must allow for a later chained plugin to have modified \
    networking resources, e.g. routes, on `ADD`";
const MISSING: &str = "should return an error if a resource included in the CNI Result type \
    (interface, address or route) was created by the plugin, and is listed in `prevResult`, \
    but is missing";

pub(super) const CASES: &[Case] = &[
    Case::new("check/after-add", after_add, MUST_SINCE_0_4)
        .of(EVERY_KIND)
        .section("2, CHECK")
        .says("The plugin must handle `CHECK` being called immediately after an `ADD`"),
    Case::new("check/nothing-or-error", nothing_or_error, MUST_SINCE_0_4)
        .until(Version::V0_4_0)
        .of(EVERY_KIND)
        .section("Parameters, CHECK (0.4)")
        .says("The plugin must return either nothing or an error"),
    Case::new("check/needs-prev-result", needs_prev_result, MUST_SINCE_0_4)
        .section("2, CHECK")
        .says(BY_PREV_RESULT),
    Case::new(
        "check/consults-prev-result",
        consults_prev_result,
        MUST_SINCE_0_4,
    )
    .section("2, CHECK")
    .says(BY_PREV_RESULT),
    Case::new("check/later-routes", later_routes, MUST_SINCE_0_4)
        .section("2, CHECK")
        .says(LATER_PLUGIN),
    Case::new("check/later-address", later_address, MUST_SINCE_0_4)
        .section("2, CHECK")
        .says(LATER_PLUGIN),
    Case::new(
        "check/interface-missing",
        interface_missing,
        SHOULD_SINCE_0_4,
    )
    .section("2, CHECK")
    .says(MISSING),
    Case::new("check/address-missing", address_missing, SHOULD_SINCE_0_4)
        .section("2, CHECK")
        .says(MISSING),
    Case::new("check/route-missing", route_missing, SHOULD_SINCE_0_4)
        .section("2, CHECK")
        .says(MISSING),
    Case::new(
        "check/host-interface-missing",
        host_interface_missing,
        SHOULD_SINCE_0_4,
    )
    .section("2, CHECK")
    .says(
        "should return an error if a resource included in the CNI Result type (interface, \
             address or route) was created by the plugin, and is listed in `prevResult`, but is \
             missing or in an invalid state",
    ),
];

/// What a later plugin of the chain has added.
const LATER_ROUTE: &str = "198.51.100.128/25";
const LATER_ADDRESS: &str = "203.0.113.9/32";

fn after_add(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    bench.call_for(Verb::Check, &attached).run()?.success()
}

fn nothing_or_error(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let ran = bench.call_for(Verb::Check, &attached).run()?;
    ran.success()?;
    require(ran.stdout().trim_ascii().is_empty(), || ran.story())
}

fn needs_prev_result(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let check = bench.call_for(Verb::Check, &attached);
    check
        .without_member("prevResult")
        .run()?
        .refusal()
        .map(drop)
}

fn consults_prev_result(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let mut expected = attached.result.clone();
    match expected["ips"].get_mut(0) {
        Some(ip) => {
            let is_v6 = ip["address"].as_str().is_some_and(|it| it.contains(':'));
            let never = if is_v6 {
                "2001:db8::77/64"
            } else {
                "203.0.113.77/24"
            };
            ip["address"] = never.into();
        }
        None => {
            let interfaces = expected["interfaces"].as_array_mut();
            let mut interfaces = interfaces.into_iter().flatten();
            match interfaces.find(|it| it["name"] == IFNAME) {
                Some(interface) => interface["mac"] = "02:00:00:00:77:77".into(),
                None => return not_applicable("its result has nothing to expect"),
            }
        }
    }
    let check = bench.call_for(Verb::Check, &attached);
    let ran = check.member("prevResult", expected).run()?;
    ran.refusal().map(drop)
}

fn later_routes(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let mut result = attached.result.clone();
    // What a later plugin did may be told in prevResult or not: it must do no harm.
    let container = &attached.container;
    container.ip(&["route", "add", "blackhole", "198.18.0.0/15"])?;
    check_with(bench, &attached, &result)?;
    container.ip(&["link", "set", IFNAME, "up"])?;
    container.ip(&["route", "add", LATER_ROUTE, "dev", IFNAME])?;
    push(&mut result, "routes", json!({"dst": LATER_ROUTE}));
    check_with(bench, &attached, &result)
}

fn later_address(bench: &Bench<'_>) -> Held {
    let attached = bench.attach()?;
    let mut result = attached.result.clone();
    let container = &attached.container;
    container.ip(&["address", "add", LATER_ADDRESS, "dev", IFNAME])?;
    check_with(bench, &attached, &result)?;
    let interface = members(&result["interfaces"])
        .iter()
        .position(|it| it["name"] == IFNAME);
    let mut ip = json!({"address": LATER_ADDRESS, "interface": interface});
    if bench.version < Version::V1_0_0 {
        ip["version"] = "4".into();
    }
    push(&mut result, "ips", ip);
    check_with(bench, &attached, &result)
}

fn interface_missing(bench: &Bench<'_>) -> Held {
    spoilt(bench, |attached| {
        attached.container.ip(&["link", "delete", IFNAME])?;
        Ok(())
    })
}

fn address_missing(bench: &Bench<'_>) -> Held {
    spoilt(bench, |attached| {
        let own = attached.container.link(IFNAME)?;
        let addresses = own.map(|link| link.addresses).unwrap_or_default();
        if addresses.is_empty() {
            return not_applicable("it gives no addresses");
        }
        for address in addresses {
            let address = address.to_string();
            // One that went with another (secondary addresses do) is gone as well.
            let _ = attached
                .container
                .ip(&["address", "delete", &address, "dev", IFNAME]);
        }
        Ok(())
    })
}

fn route_missing(bench: &Bench<'_>) -> Held {
    spoilt(bench, |attached| {
        let routes = members(&attached.result["routes"]);
        let Some(dst) = routes.first().and_then(|route| route["dst"].as_str()) else {
            return not_applicable("its result has no routes");
        };
        let family = if dst.contains(':') { "-6" } else { "-4" };
        attached.container.ip(&[family, "route", "delete", dst])?;
        Ok(())
    })
}

fn host_interface_missing(bench: &Bench<'_>) -> Held {
    let before = bench.footprint()?;
    let attached = bench.attach()?;
    let made = bench.footprint()?.links_beyond(&before);
    bench.call_for(Verb::Check, &attached).run()?.success()?;
    let listed = members(&attached.result["interfaces"]);
    let own = listed
        .iter()
        .filter_map(|interface| interface["name"].as_str())
        .filter(|name| made.iter().any(|made| made == name));
    let mut any = false;
    for name in own {
        any = true;
        crate::ip::ip(&["link", "delete", name])?;
    }
    if !any {
        return not_applicable("it makes no link on the host");
    }
    bench
        .call_for(Verb::Check, &attached)
        .run()?
        .refusal()
        .map(drop)
}

/// CHECK must succeed, and then, with something spoilt, fail.
fn spoilt(bench: &Bench<'_>, spoil: fn(&Attached) -> Held) -> Held {
    let attached = bench.attach()?;
    bench.call_for(Verb::Check, &attached).run()?.success()?;
    spoil(&attached)?;
    bench
        .call_for(Verb::Check, &attached)
        .run()?
        .refusal()
        .map(drop)
}

fn check_with(bench: &Bench<'_>, attached: &Attached, result: &Value) -> Held {
    let check = bench.call_for(Verb::Check, attached);
    check.member("prevResult", result.clone()).run()?.success()
}

fn push(result: &mut Value, member: &str, element: Value) {
    match result[member].as_array_mut() {
        Some(array) => array.push(element),
        None => result[member] = json!([element]),
    }
}
