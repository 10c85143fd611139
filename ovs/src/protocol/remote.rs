//! Addresses of OVSDB servers: the active connection methods of ovsdb(7).

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The default port (IANA: ovsdb).
const DEFAULT_PORT: u16 = 6640;

/// One address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remote {
    /// A Unix domain socket: `unix:/path`.
    Unix(PathBuf),
    /// TCP: `tcp:host:port`.
    Tcp(HostPort),
    /// TLS: `ssl:host:port`. The keys are in the client's configuration.
    Ssl(HostPort),
}

/// A host's name or address and a TCP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPort {
    /// A name, an IPv4 address, or an IPv6 address without its brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The text is no remote that this client supports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not an OVSDB remote that podwire connects to; it takes unix:/path, \
     tcp:host:port and ssl:host:port"
)]
pub struct RemoteError(String);

impl Remote {
    /// Parses a list as for a cluster's clients: remotes separated by commas.
    ///
    /// # Errors
    /// Names the invalid element.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, RemoteError> {
        text.split(',').map(|one| one.trim().parse()).collect()
    }
}

impl From<Remote> for Vec<Remote> {
    fn from(remote: Remote) -> Self {
        vec![remote]
    }
}

impl FromStr for Remote {
    type Err = RemoteError;

    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let refused = || RemoteError(text.to_owned());
        match text.split_once(':').ok_or_else(refused)? {
            ("unix", path) if !path.is_empty() => Ok(Self::Unix(path.into())),
            ("tcp", server) => host_port(server).map(Self::Tcp).ok_or_else(refused),
            ("ssl", server) => host_port(server).map(Self::Ssl).ok_or_else(refused),
            _ => Err(refused()),
        }
    }
}

fn host_port(text: &str) -> Option<HostPort> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            host.parse::<std::net::Ipv6Addr>().ok()?;
            match after {
                "" => (host, None),
                after => (host, Some(after.strip_prefix(':')?)),
            }
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None => DEFAULT_PORT,
    };
    let is_host = !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || c == '/');
    is_host.then(|| HostPort {
        host: host.to_owned(),
        port,
    })
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(server) => write!(f, "tcp:{server}"),
            Self::Ssl(server) => write!(f, "ssl:{server}"),
        }
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remotes_are_read_as_ovsdb_writes_them() {
        for (text, written) in [
            ("unix:/run/ovn/ovnsb_db.sock", "unix:/run/ovn/ovnsb_db.sock"),
            ("tcp:192.0.2.1:6642", "tcp:192.0.2.1:6642"),
            ("tcp:192.0.2.1", "tcp:192.0.2.1:6640"),
            ("tcp:[2001:db8::1]:6642", "tcp:[2001:db8::1]:6642"),
            ("ssl:[2001:db8::1]", "ssl:[2001:db8::1]:6640"),
            ("ssl:ovnsb.example:6642", "ssl:ovnsb.example:6642"),
        ] {
            assert_eq!(text.parse::<Remote>().unwrap().to_string(), written);
        }
    }

    #[test]
    fn what_is_no_remote_is_refused_by_name() {
        for text in [
            "",
            "unix:",
            "punix:/x",
            "tcp:",
            "tcp::6642",
            "tcp:a:0",
            "tcp:a:70000",
            "tcp:[::1",
            "tcp:[x]:1",
            "ssl:a b:1",
        ] {
            let error = text.parse::<Remote>().unwrap_err();
            assert!(error.to_string().contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn a_clusters_remotes_come_as_a_list() {
        let remotes = Remote::parse_list("tcp:192.0.2.1:6642, ssl:192.0.2.2:6642").unwrap();
        assert_eq!(remotes.len(), 2);
        assert!(Remote::parse_list("tcp:192.0.2.1:6642,,").is_err());
    }
}
