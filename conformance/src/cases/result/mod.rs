//! The result of an ADD, compared with what the kernel has.

mod addresses;
mod interfaces;

use serde_json::Value;

use super::{CASE, EVERY_KIND, MUST, MUST_SINCE_1_0, MUST_SINCE_1_1, SHOULD_SINCE_1_0, members};
use crate::bench::{Attached, IFNAME};
use crate::case::{Case, Verdict, broken};
use crate::ip::Link;
use crate::spec::Level::{Must, Should};
use crate::spec::Version::{self, V0_3_0, V1_0_0};
use crate::subject::Kind;

pub(super) const CASES: &[Case] = &[
    Case {
        id: "result/version",
        section: "5, ADD Success",
        says: "`cniVersion`: The same version supplied on input",
        levels: MUST,
        kinds: EVERY_KIND,
        test: interfaces::version,
        ..CASE
    },
    Case {
        id: "result/container-interface",
        section: "5, ADD Success",
        says: "`interfaces`: An array of all interfaces created by the attachment",
        levels: MUST,
        test: interfaces::container_interface,
        ..CASE
    },
    Case {
        id: "result/host-interfaces",
        section: "5, ADD Success",
        says: "An array of all interfaces created by the attachment, including any host-level \
               interfaces",
        levels: MUST_SINCE_1_0,
        test: interfaces::host_interfaces,
        ..CASE
    },
    Case {
        id: "result/sandbox",
        section: "5, ADD Success",
        says: "For interfaces created inside the container, this should be the value passed via \
               `CNI_NETNS`",
        levels: SHOULD_SINCE_1_0,
        test: interfaces::sandbox,
        ..CASE
    },
    Case {
        id: "result/no-sandbox-on-host",
        section: "5, ADD Success",
        says: "`sandbox`: The isolation domain reference for the interface, or empty if on the \
               host",
        levels: MUST,
        test: interfaces::no_sandbox_on_host,
        ..CASE
    },
    Case {
        id: "result/mac",
        section: "5, ADD Success",
        says: "`mac`: The hardware address of the interface (if applicable)",
        levels: MUST,
        test: interfaces::mac,
        ..CASE
    },
    Case {
        id: "result/mtu",
        section: "5, ADD Success",
        says: "`mtu`: The MTU of the interface (if applicable)",
        levels: MUST_SINCE_1_1,
        test: interfaces::mtu,
        ..CASE
    },
    Case {
        id: "result/ips-form",
        section: "5, ADD Success",
        says: "`address`: an IP address in CIDR notation; `gateway`: the default gateway for this \
               subnet",
        levels: MUST,
        kinds: EVERY_KIND,
        test: addresses::ips_form,
        ..CASE
    },
    Case {
        id: "result/ips-version",
        section: "Well-known Structures, IPs (0.4)",
        says: "`version` (string): either \"4\" or \"6\" and corresponds to the IP version of the \
               addresses in the entry",
        levels: MUST,
        until: Some(Version::V0_4_0),
        kinds: EVERY_KIND,
        test: addresses::ips_version,
        ..CASE
    },
    Case {
        id: "result/ips-interface",
        section: "5, ADD Success",
        says: "`interface`: the index into the `interfaces` list indicating which interface this \
               IP configuration should be applied to",
        levels: MUST,
        test: addresses::ips_interface,
        ..CASE
    },
    Case {
        id: "result/ips-assigned",
        section: "5, ADD Success",
        says: "`ips`: IPs assigned by this attachment",
        levels: MUST,
        test: addresses::ips_assigned,
        ..CASE
    },
    Case {
        id: "result/ips-complete",
        section: "5, ADD Success",
        says: "`ips`: IPs assigned by this attachment",
        levels: MUST,
        test: addresses::ips_complete,
        ..CASE
    },
    Case {
        id: "result/routes-form",
        section: "5, ADD Success",
        says: "`dst`: The destination of the route, in CIDR notation; `gw`: The next hop address",
        levels: MUST,
        kinds: EVERY_KIND,
        test: addresses::routes_form,
        ..CASE
    },
    Case {
        id: "result/routes-made",
        section: "5, ADD Success",
        says: "`routes`: Routes created by this attachment",
        levels: MUST,
        test: addresses::routes_made,
        ..CASE
    },
    Case {
        id: "result/dns-form",
        section: "5, ADD Success",
        says: "`dns`: a dictionary consisting of DNS configuration information",
        levels: MUST,
        kinds: EVERY_KIND,
        test: addresses::dns_form,
        ..CASE
    },
    Case {
        id: "result/abbreviated",
        section: "5, Delegated plugins (IPAM)",
        says: "Delegated IPAM plugins must return an abbreviated _Success_ object. Specifically, \
               it is missing the `interfaces` array, as well as the `interface` entry in `ips`",
        levels: &[(V0_3_0, Should), (V1_0_0, Must)],
        kinds: &[Kind::Ipam],
        test: addresses::abbreviated,
        ..CASE
    },
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
