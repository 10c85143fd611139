//! The connections that a change of the gateway's mode ends, and those that it may end.
//!
//! Those of pods with the outside that get another source address end. The others that the host
//! translates may: the gateway router translates in the host's own zone, and ovn-controller empties
//! a zone when a router gets it, and when that router goes.

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
pub(super) async fn ended(settings: &Settings, snapshot: &Snapshot) -> Vec<String> {
    let is_shared = snapshot.actual.flows.is_some_and(|seen| seen.all > 0);
    let gateway = snapshot.plan.gateway.as_ref();
    if settings.shares == is_shared || settings.shares != gateway.is_some() {
        return Vec::new();
    }
    let Ok(Ok(mut open)) = spawn_blocking(podwire_netns::translated).await else {
        return Vec::new();
    };
    open.sort_unstable();
    let now = |it: &Translated| match gateway {
        Some(gateway) => gateway.way(it.server.is_ipv4()).map(|(source, _)| source),
        None => source_by_host(&snapshot.actual, it),
    };
    let is_pods = |ip: IpAddr| settings.node_subnets.iter().any(|net| net.contains(&ip));
    let (mut ended, mut forgotten) = (Vec::new(), Vec::new());
    for it in &open {
        let leaves = is_pods(it.client.ip()) && !is_pods(it.server.ip());
        match now(it).filter(|now| leaves && it.source != it.client.ip() && it.source != *now) {
            Some(now) => ended.push((it, now)),
            None => forgotten.push(it),
        }
    }
    text(&ended).into_iter().chain(may(&forgotten)).collect()
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

/// Names those that end.
fn text(ended: &[(&Translated, IpAddr)]) -> Option<String> {
    let heading = match ended.len() {
        0 => return None,
        1 => "a connection of a pod gets another source address, and ends:".to_owned(),
        count => format!("{count} connections of pods get another source address, and end:"),
    };
    let lines = ended
        .iter()
        .map(|(it, now)| format!("{}: {}, then {now}", named(it), it.source));
    Some(listed(&heading, lines))
}

/// Names those that may.
fn may(forgotten: &[&Translated]) -> Option<String> {
    let count = forgotten.len();
    let heading = match count {
        0 => return None,
        1 => "the translation of a connection is forgotten, and it may end:".to_owned(),
        count => {
            format!("the translations of {count} connections are forgotten, and they may end:")
        }
    };
    let lines = forgotten.iter().map(|it| match it.endpoint == it.server {
        true => named(it),
        false => format!("{}, led to {}", named(it), it.endpoint),
    });
    Some(listed(&heading, lines))
}

fn named(it: &Translated) -> String {
    let protocol = match it.protocol {
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        other => format!("protocol {other}"),
    };
    format!("{protocol} {} to {}", it.client, it.server)
}

fn listed(heading: &str, lines: impl Iterator<Item = String>) -> String {
    let lines: Vec<String> = lines.collect();
    let lines = some(&lines, NAMED, "\n  ", "\n  and ");
    format!("{heading}\n  {lines}")
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
            endpoint: ([198, 51, 100, 7], 443).into(),
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

    #[test]
    fn whom_a_node_port_leads_to_is_named() {
        let led = Translated {
            protocol: 6,
            client: ([198, 51, 100, 7], 40000).into(),
            server: ([192, 0, 2, 11], 30080).into(),
            source: [198, 51, 100, 7].into(),
            endpoint: ([10, 244, 1, 5], 8080).into(),
        };
        assert_eq!(may(&[]), None);
        assert_eq!(
            may(&[&led]).unwrap(),
            "the translation of a connection is forgotten, and it may end:\n  tcp \
             198.51.100.7:40000 to 192.0.2.11:30080, led to 10.244.1.5:8080"
        );
        assert!(
            may(&[&led, &led])
                .unwrap()
                .starts_with("the translations of 2 connections are forgotten, and they may end:")
        );
    }
}
