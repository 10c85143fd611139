//! The result of an ADD, compared with what the kernel has.

mod addresses;
mod interfaces;

use serde_json::Value;

use super::{
    EVERY_KIND, MUST, MUST_SINCE_1_0, MUST_SINCE_1_1, SHOULD_SINCE_1_0, SHOULD_THEN_MUST, members,
};
use crate::bench::{Attached, IFNAME};
use crate::case::{Case, Verdict, broken};
use crate::ip::Link;
use crate::spec::Version;
use crate::subject::Kind;

pub(super) const CASES: &[Case] = &[
    Case::new("result/version", interfaces::version, MUST)
        .of(EVERY_KIND)
        .section("5, ADD Success")
        .says("`cniVersion`: The same version supplied on input"),
    Case::new(
        "result/container-interface",
        interfaces::container_interface,
        MUST,
    )
    .section("5, ADD Success")
    .says("`interfaces`: An array of all interfaces created by the attachment"),
    Case::new(
        "result/host-interfaces",
        interfaces::host_interfaces,
        MUST_SINCE_1_0,
    )
    .section("5, ADD Success")
    .says(
        "An array of all interfaces created by the attachment, including any host-level \
             interfaces",
    ),
    Case::new("result/sandbox", interfaces::sandbox, SHOULD_SINCE_1_0)
        .section("5, ADD Success")
        .says(
            "For interfaces created inside the container, this should be the value passed via \
             `CNI_NETNS`",
        ),
    Case::new(
        "result/no-sandbox-on-host",
        interfaces::no_sandbox_on_host,
        MUST,
    )
    .section("5, ADD Success")
    .says(
        "`sandbox`: The isolation domain reference for the interface, or empty if on the \
             host",
    ),
    Case::new("result/mac", interfaces::mac, MUST)
        .section("5, ADD Success")
        .says("`mac`: The hardware address of the interface (if applicable)"),
    Case::new("result/mtu", interfaces::mtu, MUST_SINCE_1_1)
        .section("5, ADD Success")
        .says("`mtu`: The MTU of the interface (if applicable)"),
    Case::new("result/ips-form", addresses::ips_form, MUST)
        .of(EVERY_KIND)
        .section("5, ADD Success")
        .says(
            "`address`: an IP address in CIDR notation; `gateway`: the default gateway for this \
             subnet",
        ),
    Case::new("result/ips-version", addresses::ips_version, MUST)
        .until(Version::V0_4_0)
        .of(EVERY_KIND)
        .section("Well-known Structures, IPs (0.4)")
        .says(
            "`version` (string): either \"4\" or \"6\" and corresponds to the IP version of the \
             addresses in the entry",
        ),
    Case::new("result/ips-interface", addresses::ips_interface, MUST)
        .section("5, ADD Success")
        .says(
            "`interface`: the index into the `interfaces` list indicating which interface this \
             IP configuration should be applied to",
        ),
    Case::new("result/ips-assigned", addresses::ips_assigned, MUST)
        .section("5, ADD Success")
        .says("`ips`: IPs assigned by this attachment"),
    Case::new("result/ips-complete", addresses::ips_complete, MUST)
        .section("5, ADD Success")
        .says("`ips`: IPs assigned by this attachment"),
    Case::new("result/routes-form", addresses::routes_form, MUST)
        .of(EVERY_KIND)
        .section("5, ADD Success")
        .says("`dst`: The destination of the route, in CIDR notation; `gw`: The next hop address"),
    Case::new("result/routes-made", addresses::routes_made, MUST)
        .section("5, ADD Success")
        .says("`routes`: Routes created by this attachment"),
    Case::new("result/dns-form", addresses::dns_form, MUST)
        .of(EVERY_KIND)
        .section("5, ADD Success")
        .says("`dns`: a dictionary consisting of DNS configuration information"),
    Case::new(
        "result/abbreviated",
        addresses::abbreviated,
        SHOULD_THEN_MUST,
    )
    .of(&[Kind::Ipam])
    .section("5, Delegated plugins (IPAM)")
    .says(
        "Delegated IPAM plugins must return an abbreviated _Success_ object. Specifically, \
             it is missing the `interfaces` array, as well as the `interface` entry in `ips`",
    ),
];

/// The attachment's own interface in the result, and its index.
fn own_interface(attached: &Attached) -> Result<(u64, &Value), Verdict> {
    let interfaces = members(&attached.result["interfaces"]);
    let own = interfaces
        .iter()
        .zip(0..)
        .find(|(interface, _)| interface["name"] == IFNAME && is_in_sandbox(interface));
    match own {
        Some((interface, index)) => Ok((index, interface)),
        None => {
            let listed = &attached.result["interfaces"];
            broken(format!(
                "interfaces lists no {IFNAME} with a sandbox: {listed}"
            ))
        }
    }
}

fn own_link(attached: &Attached) -> Result<Link, Verdict> {
    match attached.container.link(&attached.ifname)? {
        Some(link) => Ok(link),
        None => broken(format!("there is no {} in the container", attached.ifname)),
    }
}

fn is_in_sandbox(interface: &Value) -> bool {
    let sandbox = interface["sandbox"].as_str();
    sandbox.is_some_and(|sandbox| !sandbox.is_empty())
}
