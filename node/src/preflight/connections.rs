//! The connections that a change of the gateway's mode ends: those between pods and the outside
//! that get another source address.

use std::cmp::Reverse;
use std::net::IpAddr;

use podwire_daemon::output::some;
use podwire_netns::Translated;
use tokio::task::spawn_blocking;

use crate::GATEWAY;
use crate::items::Actual;
use crate::settings::Settings;
use crate::snapshot::Snapshot;

/// How many of them are named.
const NAMED: usize = 20;

/// What happens to them, if any are open and the mode changes.
pub(super) async fn ended(settings: &Settings, snapshot: &Snapshot) -> Option<String> {
    let is_shared = snapshot.actual.flows.is_some_and(|seen| seen.all > 0);
    let gateway = snapshot.plan.gateway.as_ref();
    if settings.shares == is_shared || settings.shares != gateway.is_some() {
        return None;
    }
    let pods = settings.node_subnets.clone();
    let open = spawn_blocking(move || podwire_netns::translated(&pods)).await;
    let mut open = open.ok()?.ok()?;
    open.sort_unstable();
    let now = |it: &Translated| match gateway {
        Some(gateway) => gateway.way(it.server.is_ipv4()).map(|(source, _)| source),
        None => source_by_host(&snapshot.actual, it),
    };
    let ended = open.iter().filter_map(|it| Some((it, now(it)?)));
    text(
        &ended
            .filter(|(it, now)| it.source != *now)
            .collect::<Vec<_>>(),
    )
}

/// The source that the host gives to a connection that has one of br-ex, as far as table main says.
fn source_by_host(actual: &Actual, connection: &Translated) -> Option<IpAddr> {
    let server = connection.server.ip();
    let routes = actual.routes.iter();
    let routes = routes.filter(|it| it.destination.contains(&server));
    let best = routes.max_by_key(|it| (it.destination.prefix_len(), Reverse(it.metric)));
    let link = best?.link.as_deref()?;
    if link == GATEWAY {
        return Some(connection.source);
    }
    let of_link = actual
        .addresses
        .iter()
        .filter(|it| it.link == link && it.global);
    let mut addresses = of_link.map(|it| it.address.addr());
    addresses.find(|it| it.is_ipv4() == server.is_ipv4())
}

/// Names them.
fn text(ended: &[(&Translated, IpAddr)]) -> Option<String> {
    let count = ended.len();
    let heading = match count {
        0 => return None,
        1 => "a connection of a pod gets another source address, and ends:".to_owned(),
        _ => format!("{count} connections of pods get another source address, and end:"),
    };
    let lines = ended.iter().map(|(it, now)| {
        let protocol = match it.protocol {
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            other => format!("protocol {other}"),
        };
        let Translated {
            client,
            server,
            source,
            ..
        } = it;
        format!("{protocol} {client} to {server}: {source}, then {now}")
    });
    let lines: Vec<String> = lines.collect();
    let lines = some(&lines, NAMED, "\n  ", "\n  and ");
    Some(format!("{heading}\n  {lines}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ones_are_named_and_the_rest_counted() {
        let one = |port: u16| Translated {
            protocol: 6,
            client: ([10, 244, 1, 5], port).into(),
            server: ([198, 51, 100, 7], 443).into(),
            source: [203, 0, 113, 7].into(),
        };
        let now: IpAddr = [192, 0, 2, 11].into();
        let all: Vec<Translated> = (1..=22).map(one).collect();
        let of = |count: usize| text(&all[..count].iter().map(|it| (it, now)).collect::<Vec<_>>());
        assert_eq!(of(0), None);
        assert_eq!(
            of(1).unwrap(),
            "a connection of a pod gets another source address, and ends:\n  tcp 10.244.1.5:1 to \
             198.51.100.7:443: 203.0.113.7, then 192.0.2.11"
        );
        let many = of(22).unwrap();
        assert!(many.starts_with("22 connections"), "{many}");
        assert!(
            many.ends_with(
                "10.244.1.5:20 to 198.51.100.7:443: 203.0.113.7, then 192.0.2.11\n  and 2 more"
            ),
            "{many}"
        );
    }
}
