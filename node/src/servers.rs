//! The addresses of the servers that this machine needs: the API server, OVN's databases, name
//! servers.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use ipnet::IpNet;
use podwire_apiserver::read_text;
use podwire_ovs::client::Remote;
use tokio::time::timeout;

use crate::overlap::{By, InUse, not_for_pods};

/// Time limit of each name's resolution. What can't be resolved can't be reached either.
const LIMIT: Duration = Duration::from_secs(1);
/// The largest file of name servers, in bytes.
const LARGEST: usize = 1 << 16;

/// A server by its name or address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    pub(crate) what: &'static str,
    pub(crate) host: String,
}

/// The members of a database in a list of remotes, as in ovn-remote.
pub(crate) fn database(what: &'static str, remotes: &str) -> Vec<Server> {
    let remotes = Remote::parse_list(remotes).unwrap_or_default();
    let hosts = remotes.into_iter().filter_map(|remote| match remote {
        Remote::Tcp(server) | Remote::Ssl(server) => Some(server.host),
        Remote::Unix(_) => None,
    });
    hosts.map(|host| Server { what, host }).collect()
}

/// Their addresses.
pub(crate) async fn addresses(servers: &[Server]) -> Vec<InUse> {
    let of_each = servers.iter().map(|server| async move {
        let Server { what, host } = server;
        if let Ok(ip) = host.parse::<IpAddr>() {
            return vec![in_use(ip, (*what).to_owned())];
        }
        let found = timeout(LIMIT, tokio::net::lookup_host((host.as_str(), 0))).await;
        let found = found.ok().and_then(Result::ok).into_iter().flatten();
        found
            .map(|address| in_use(address.ip(), format!("{what} {host},")))
            .collect()
    });
    join_all(of_each).await.concat()
}

/// The machine's name servers; in place of a stub on this machine, those that it asks.
pub(crate) fn name_servers() -> Vec<InUse> {
    let mut ips = listed(Path::new("/etc/resolv.conf"));
    if ips.iter().any(IpAddr::is_loopback) {
        // systemd-resolved(8), NetworkManager.conf(5) (rc-manager), resolvconf with dnsmasq.
        let upstream = [
            "/run/systemd/resolve/resolv.conf",
            "/run/NetworkManager/no-stub-resolv.conf",
            "/run/dnsmasq/resolv.conf",
        ];
        ips.extend(upstream.iter().flat_map(|path| listed(Path::new(path))));
    }
    let ips = ips.into_iter();
    ips.filter(|ip| not_for_pods(&IpNet::from(*ip)).is_none())
        .map(|ip| in_use(ip, "name server".to_owned()))
        .collect()
}

fn in_use(ip: IpAddr, server: String) -> InUse {
    InUse {
        net: ip.into(),
        by: By::Server(server),
    }
}

/// The name servers of a file like resolv.conf(5); none if there is no such file.
fn listed(path: &Path) -> Vec<IpAddr> {
    let text = read_text(path, LARGEST).unwrap_or_default();
    let lines = text.lines().filter_map(|line| {
        let ip = line.trim().strip_prefix("nameserver")?.trim();
        // A link-local one is followed by its link.
        ip.split('%').next()?.parse().ok()
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_read_as_the_resolver_reads_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("resolv.conf");
        let text = "# nameserver 192.0.2.1\nsearch example\nnameserver 192.0.2.53\n\
                    \tnameserver\t2001:db8::53\nnameserver fe80::1%eth0\nnameserver x\n";
        std::fs::write(&path, text).unwrap();
        let expected = ["192.0.2.53", "2001:db8::53", "fe80::1"];
        assert_eq!(
            listed(&path),
            expected.map(|ip| ip.parse::<IpAddr>().unwrap())
        );
        assert!(listed(&directory.path().join("none")).is_empty());
    }

    #[tokio::test]
    async fn a_database_s_members_are_servers_and_a_socket_is_none() {
        let servers = database(
            "database",
            "ssl:192.0.2.1:6642,unix:/db,tcp:[2001:db8::1]:6642",
        );
        let found = addresses(&servers).await;
        let nets: Vec<String> = found.iter().map(|it| it.net.to_string()).collect();
        assert_eq!(nets, ["192.0.2.1/32", "2001:db8::1/128"]);
        let named = addresses(&database("database", "tcp:localhost:6642")).await;
        assert!(
            named.iter().all(|it| it.net.addr().is_loopback()),
            "{named:?}"
        );
        assert!(!named.is_empty());
    }
}
