//! The kernel's addresses, routes, rules and neighbours, by rtnetlink(7), in about the words of
//! ip(8): the image of podwire has no such program.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};

use futures_util::TryStreamExt as _;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::LinkAttribute;
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteNextHop, RouteType, RouteVia,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use nix::errno::Errno;
use podwire_daemon::bundle::{Lack, Text};
use rtnetlink::{Error, Handle, IpVersion};
use tokio::time::{Instant, timeout_at};

/// Names of links by index.
type Names = BTreeMap<u32, String>;

/// What a listing is called in the bundle.
const FILES: [&str; 4] = [
    "machine/addresses.txt",
    "machine/routes.txt",
    "machine/rules.txt",
    "machine/neighbours.txt",
];

/// Collects them, of both families.
pub(super) async fn collect(deadline: Instant) -> Vec<Text> {
    let listed = match rtnetlink::new_connection() {
        Ok((connection, handle, _)) => tokio::select! {
            listed = timeout_at(deadline, list(&handle)) => {
                listed.map_err(|_| "the kernel did not answer in time".to_owned())
            }
            () = connection => Err("the connection to the kernel ended".to_owned()),
        },
        Err(error) => Err(format!("netlink socket: {error}")),
    };
    let texts = match listed {
        Ok(texts) => texts.map(|it| it.map_err(|error| Lack::Missing(error.to_string()))),
        Err(why) => FILES.map(|_| Err(Lack::Missing(why.clone()))),
    };
    let named = FILES.into_iter().zip(texts);
    named.map(|(file, text)| (file.to_owned(), text)).collect()
}

async fn list(handle: &Handle) -> [Result<String, Error>; 4] {
    let names = names(handle).await;
    [
        addresses(handle, &names).await,
        routes(handle, &names).await,
        rules(handle).await,
        neighbours(handle, &names).await,
    ]
}

/// As far as the kernel tells: a link without a name is shown by its index.
async fn names(handle: &Handle) -> Names {
    let mut links = handle.link().get().execute();
    let mut names = Names::new();
    while let Ok(Some(link)) = links.try_next().await {
        let name = link.attributes.into_iter().find_map(|it| match it {
            LinkAttribute::IfName(name) => Some(name),
            _ => None,
        });
        names.extend(name.map(|name| (link.header.index, name)));
    }
    names
}

async fn addresses(handle: &Handle, names: &Names) -> Result<String, Error> {
    let mut listed: Vec<_> = handle.address().get().execute().try_collect().await?;
    listed.sort_by_key(|it| (it.header.index, u8::from(it.header.family)));
    let lines = listed.iter().map(|it| address(it, names));
    Ok(lines.collect())
}

async fn routes(handle: &Handle, names: &Names) -> Result<String, Error> {
    let mut lines = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        let listed = handle.route().get(request).execute().try_collect().await;
        let listed: Vec<_> = known(listed)?;
        // A kernel without IPv6 lists those of IPv4 again.
        let of_family = |it: &RouteMessage| it.header.address_family == family;
        lines.extend(listed.into_iter().filter(of_family));
    }
    lines.sort_by_key(table);
    Ok(lines.iter().map(|it| route(it, names)).collect())
}

async fn rules(handle: &Handle) -> Result<String, Error> {
    let mut text = String::new();
    for version in [IpVersion::V4, IpVersion::V6] {
        let listed = handle.rule().get(version).execute().try_collect().await;
        let listed: Vec<RuleMessage> = known(listed)?;
        text.extend(listed.iter().map(rule));
    }
    Ok(text)
}

async fn neighbours(handle: &Handle, names: &Names) -> Result<String, Error> {
    let mut listed: Vec<_> = handle.neighbours().get().execute().try_collect().await?;
    listed.retain(|it: &NeighbourMessage| family(it.header.family).is_some());
    listed.sort_by_key(|it| it.header.ifindex);
    let lines = listed.iter().map(|it| neighbour(it, names));
    Ok(lines.collect())
}

/// A kernel without IPv6 has none of its objects.
fn known<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    const UNKNOWN: [Errno; 2] = [Errno::EAFNOSUPPORT, Errno::EOPNOTSUPP];
    match listed {
        Err(Error::NetlinkError(refusal))
            if UNKNOWN.contains(&Errno::from_raw(-refusal.raw_code())) =>
        {
            Ok(Vec::new())
        }
        listed => listed,
    }
}

fn family(family: AddressFamily) -> Option<&'static str> {
    match family {
        AddressFamily::Inet => Some("inet"),
        AddressFamily::Inet6 => Some("inet6"),
        _ => None,
    }
}

fn link(index: u32, names: &Names) -> String {
    names.get(&index).cloned().unwrap_or(format!("if{index}"))
}

/// A word in lower case, such as `BlackHole`.
fn word(value: impl Debug) -> String {
    format!("{value:?}").to_lowercase()
}

/// `eth0 inet 192.0.2.1/24 scope universe permanent`
fn address(message: &AddressMessage, names: &Names) -> String {
    let header = &message.header;
    let name = link(header.index, names);
    let mut line = format!("{name} {}", family(header.family).unwrap_or("?"));
    let mut flags = String::new();
    let has_local = |it: &AddressAttribute| matches!(it, AddressAttribute::Local(_));
    let has_local = message.attributes.iter().any(has_local);
    for attribute in &message.attributes {
        let _ = match attribute {
            AddressAttribute::Local(ip) => write!(line, " {ip}/{}", header.prefix_len),
            AddressAttribute::Address(ip) if has_local => write!(flags, " peer {ip}"),
            AddressAttribute::Address(ip) => write!(line, " {ip}/{}", header.prefix_len),
            AddressAttribute::Broadcast(ip) => write!(flags, " brd {ip}"),
            AddressAttribute::Label(_) => Ok(()),
            AddressAttribute::Flags(set) => {
                let names = set.iter_names().map(|(name, _)| name.to_lowercase());
                names.into_iter().try_for_each(|it| write!(flags, " {it}"))
            }
            AddressAttribute::CacheInfo(times) => {
                let lives = (times.ifa_valid, times.ifa_preferred);
                lifetimes(&mut flags, lives)
            }
            AddressAttribute::RoutePriority(metric) => write!(flags, " metric {metric}"),
            other => write!(flags, " {other:?}"),
        };
    }
    format!("{line} scope {}{flags}\n", header.scope)
}

/// In seconds; without an end they are not told.
fn lifetimes(text: &mut String, (valid, preferred): (u32, u32)) -> std::fmt::Result {
    match valid {
        u32::MAX => Ok(()),
        valid => write!(text, " valid {valid} s preferred {preferred} s"),
    }
}

fn table(message: &RouteMessage) -> u32 {
    let mut attributes = message.attributes.iter();
    let table = attributes.find_map(|it| match it {
        RouteAttribute::Table(table) => Some(*table),
        _ => None,
    });
    table.unwrap_or(message.header.table.into())
}

/// The names of linux/rtnetlink.h's tables.
fn table_name(table: u32) -> String {
    match table {
        255 => "local".to_owned(),
        254 => "main".to_owned(),
        253 => "default".to_owned(),
        other => other.to_string(),
    }
}

/// `table main inet 10.0.0.0/8 via 192.0.2.1 dev eth0 proto static scope universe metric 20`
fn route(message: &RouteMessage, names: &Names) -> String {
    let header = &message.header;
    let mut line = format!("table {}", table_name(table(message)));
    let _ = write!(line, " {}", family(header.address_family).unwrap_or("?"));
    if header.kind != RouteType::Unicast {
        let _ = write!(line, " {}", word(header.kind));
    }
    let mut attributes = message.attributes.iter();
    let to = attributes.find_map(|it| match it {
        RouteAttribute::Destination(ip) => Some(ip_text(ip)),
        _ => None,
    });
    let _ = match to {
        None => write!(line, " default"),
        Some(ip) => write!(line, " {ip}/{}", header.destination_prefix_length),
    };
    hop(&mut line, &message.attributes, names);
    let _ = write!(line, " proto {} scope {}", header.protocol, header.scope);
    for attribute in &message.attributes {
        let _ = match attribute {
            RouteAttribute::Source(ip) => {
                write!(
                    line,
                    " from {}/{}",
                    ip_text(ip),
                    header.source_prefix_length
                )
            }
            RouteAttribute::PrefSource(ip) => write!(line, " src {}", ip_text(ip)),
            RouteAttribute::Priority(metric) => write!(line, " metric {metric}"),
            RouteAttribute::Metrics(metrics) => metrics
                .iter()
                .try_for_each(|it| write!(line, " {}", word(it))),
            RouteAttribute::MultiPath(hops) => {
                hops.iter().try_for_each(|it| next(&mut line, it, names))
            }
            RouteAttribute::NhId(id) => write!(line, " nhid {id}"),
            RouteAttribute::Expires(seconds) => write!(line, " expires {seconds}"),
            RouteAttribute::Table(_)
            | RouteAttribute::Destination(_)
            | RouteAttribute::Gateway(_)
            | RouteAttribute::Via(_)
            | RouteAttribute::Oif(_)
            | RouteAttribute::CacheInfo(_)
            | RouteAttribute::Preference(_) => Ok(()),
            other => write!(line, " {other:?}"),
        };
    }
    for (flag, _) in header.flags.iter_names() {
        let _ = write!(line, " {}", flag.to_lowercase());
    }
    line + "\n"
}

/// Where a route, or one of its next hops, leads to.
fn hop(line: &mut String, attributes: &[RouteAttribute], names: &Names) {
    for attribute in attributes {
        let _ = match attribute {
            RouteAttribute::Gateway(ip) => write!(line, " via {}", ip_text(ip)),
            RouteAttribute::Via(RouteVia::Inet(ip)) => write!(line, " via {ip}"),
            RouteAttribute::Via(RouteVia::Inet6(ip)) => write!(line, " via {ip}"),
            RouteAttribute::Via(other) => write!(line, " via {other:?}"),
            RouteAttribute::Oif(index) => write!(line, " dev {}", link(*index, names)),
            _ => Ok(()),
        };
    }
}

fn next(line: &mut String, next: &RouteNextHop, names: &Names) -> std::fmt::Result {
    line.push_str(" nexthop");
    hop(line, &next.attributes, names);
    let dev = link(next.interface_index, names);
    // The kernel has one less than ip(8) says.
    write!(line, " dev {dev} weight {}", u16::from(next.hops) + 1)?;
    match next.flags.is_empty() {
        true => Ok(()),
        false => write!(line, " {}", next.flags),
    }
}

fn ip_text(address: &RouteAddress) -> String {
    match address {
        RouteAddress::Inet(ip) => ip.to_string(),
        RouteAddress::Inet6(ip) => ip.to_string(),
        other => format!("{other:?}"),
    }
}

/// `inet 100: from 10.0.0.0/8 fwmark 0x1/0xff lookup 7 proto static`
fn rule(message: &RuleMessage) -> String {
    let header = &message.header;
    let mut attributes = message.attributes.iter();
    let priority = attributes.find_map(|it| match it {
        RuleAttribute::Priority(priority) => Some(*priority),
        _ => None,
    });
    let mut line = format!(
        "{} {}:",
        family(header.family).unwrap_or("?"),
        priority.unwrap_or_default()
    );
    if header.flags.contains(RuleFlags::Invert) {
        line.push_str(" not");
    }
    let mut table = u32::from(header.table);
    let (mut has_source, mut mark, mut mask) = (false, None, None);
    let mut end = String::new();
    let mut rest = String::new();
    for attribute in &message.attributes {
        let _ = match attribute {
            RuleAttribute::Source(ip) => {
                has_source = true;
                write!(line, " from {ip}/{}", header.src_len)
            }
            RuleAttribute::Destination(ip) => write!(rest, " to {ip}/{}", header.dst_len),
            RuleAttribute::Table(other) => {
                table = *other;
                Ok(())
            }
            RuleAttribute::FwMark(value) => {
                mark = Some(*value);
                Ok(())
            }
            RuleAttribute::FwMask(value) => {
                mask = Some(*value);
                Ok(())
            }
            RuleAttribute::Iifname(name) => write!(rest, " iif {name}"),
            RuleAttribute::Oifname(name) => write!(rest, " oif {name}"),
            RuleAttribute::Protocol(protocol) => write!(end, " proto {protocol}"),
            RuleAttribute::Priority(_) | RuleAttribute::SuppressPrefixLen(u32::MAX) => Ok(()),
            RuleAttribute::L3MDev(false) => Ok(()),
            other => write!(rest, " {}", word(other)),
        };
    }
    if !has_source {
        line.push_str(" from all");
    }
    // The kernel leaves out a mark of 0.
    let _ = match (mark, mask) {
        (None, None) => Ok(()),
        (mark, None | Some(u32::MAX)) => write!(rest, " fwmark {:#x}", mark.unwrap_or(0)),
        (mark, Some(mask)) => write!(rest, " fwmark {:#x}/{mask:#x}", mark.unwrap_or(0)),
    };
    let action = match header.action {
        RuleAction::ToTable => format!(" lookup {}", table_name(table)),
        other => format!(" {}", word(other)),
    };
    format!("{line}{rest}{action}{end}\n")
}

/// `192.0.2.7 dev eth0 lladdr 02:00:00:00:00:07 reachable`
fn neighbour(message: &NeighbourMessage, names: &Names) -> String {
    let header = &message.header;
    let mut line = String::new();
    for attribute in &message.attributes {
        let _ = match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => write!(line, "{ip} "),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => write!(line, "{ip} "),
            _ => Ok(()),
        };
    }
    let _ = write!(line, "dev {}", link(header.ifindex, names));
    for attribute in &message.attributes {
        if let NeighbourAttribute::LinkLayerAddress(bytes) = attribute {
            let bytes: Vec<_> = bytes.iter().map(|it| format!("{it:02x}")).collect();
            let _ = write!(line, " lladdr {}", bytes.join(":"));
        }
    }
    for (flag, _) in header.flags.iter_names() {
        let _ = write!(line, " {}", flag.to_lowercase());
    }
    format!("{line} {}\n", header.state)
}
