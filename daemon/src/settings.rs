//! The settings that several of podwire's programs have, with their checks.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use podwire_apiserver::{Access, Token};
use podwire_ovs::client::{Remote, TlsKeys};

/// A setting with an invalid value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{flag} {value}: {problem}")]
pub struct SettingsError {
    /// The flag.
    pub flag: &'static str,
    /// Its value.
    pub value: String,
    /// What is wrong with it, or what is valid.
    pub problem: String,
}

/// The value of this flag is invalid.
pub fn bad(flag: &'static str, value: &str, problem: impl Into<String>) -> SettingsError {
    SettingsError {
        flag,
        value: value.to_owned(),
        problem: problem.into(),
    }
}

/// The control plane of the pod network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// None: the bridge switches by itself, the agent gives addresses, each node sets its routes
    Plain,
    /// A controller by annotations and logical ports, ovn-controller by flows
    Ovn,
}

impl Mode {
    /// Its name in flags and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Ovn => "ovn",
        }
    }
}

/// The flags for the Kubernetes API server.
#[derive(Debug, Clone, Default, Args)]
pub struct ServerArgs {
    /// URL of the Kubernetes API server, http:// or https:// [default: the service account's, where
    /// that is used]
    #[arg(long, value_name = "URL", env = "PODWIRE_K8S_APISERVER")]
    pub k8s_apiserver: Option<String>,
    /// Kubeconfig for the Kubernetes API server, instead of --k8s-apiserver
    #[arg(
        long,
        value_name = "FILE",
        env = "PODWIRE_KUBECONFIG",
        conflicts_with = "k8s_apiserver"
    )]
    pub kubeconfig: Option<PathBuf>,
    /// With --k8s-apiserver: its CA certificates, PEM [default: the service account's, where that
    /// is used, else the system's]
    #[arg(long, value_name = "FILE", env = "PODWIRE_K8S_CACERT")]
    k8s_cacert: Option<PathBuf>,
    /// With --k8s-apiserver: the bearer token; prefer the environment or a file, because every user
    /// can read flags
    #[arg(
        long,
        value_name = "TOKEN",
        env = "PODWIRE_K8S_TOKEN",
        hide_env_values = true
    )]
    k8s_token: Option<String>,
    /// With --k8s-apiserver: file with the bearer token, read for each request [default: the
    /// service account's, where that is used]
    #[arg(long, value_name = "FILE", env = "PODWIRE_K8S_TOKEN_FILE")]
    k8s_token_file: Option<PathBuf>,
}

impl ServerArgs {
    /// How to reach it; None without a kubeconfig and a URL.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn access(&self) -> Result<Option<Access>, SettingsError> {
        if let Some(path) = &self.kubeconfig {
            return Ok(Some(Access::Kubeconfig(path.clone())));
        }
        let Some(url) = &self.k8s_apiserver else {
            return Ok(None);
        };
        check_url(url)?;
        let text = self.k8s_token.as_deref().map(str::trim);
        Ok(Some(Access::Server {
            url: url.clone(),
            ca: self.k8s_cacert.clone(),
            token: Token::of(text, self.k8s_token_file.as_deref()),
        }))
    }
}

fn check_url(url: &str) -> Result<(), SettingsError> {
    let bad = |value: &str, problem| bad("--k8s-apiserver", value, problem);
    let mut schemes = ["http://", "https://"].iter();
    match schemes.find_map(|scheme| url.strip_prefix(scheme)) {
        // The URL is shown and logged.
        Some(rest) if rest.split('/').next().is_some_and(|it| it.contains('@')) => {
            let shown = format!("{}…@…", &url[..url.len() - rest.len()]);
            let problem = "a user in the URL is not used; give --k8s-token-file";
            Err(bad(&shown, problem))
        }
        Some(rest) if !rest.is_empty() => Ok(()),
        _ => Err(bad(url, "expected http://… or https://…")),
    }
}

/// The flags for OVN's southbound database.
#[derive(Debug, Clone, Default, Args)]
pub struct SouthboundArgs {
    /// The southbound database, such as ssl:192.0.2.1:6642; separate several by commas [default:
    /// ovn-remote of Open vSwitch's external_ids, which ovn-controller uses]
    #[arg(long, value_name = "REMOTE", env = "PODWIRE_OVN_REMOTE")]
    pub ovn_remote: Option<String>,
    /// This node's private key for ssl: remotes; needs the two certificates too [default: Open
    /// vSwitch's, from ovs-vsctl set-ssl]
    #[arg(long, value_name = "FILE", env = "PODWIRE_OVN_PRIVATE_KEY")]
    ovn_private_key: Option<PathBuf>,
    /// Certificate for that private key
    #[arg(long, value_name = "FILE", env = "PODWIRE_OVN_CERTIFICATE")]
    ovn_certificate: Option<PathBuf>,
    /// Certificate of the CA that signed the southbound database's certificate
    #[arg(long, value_name = "FILE", env = "PODWIRE_OVN_CA_CERT")]
    ovn_ca_cert: Option<PathBuf>,
}

impl SouthboundArgs {
    /// Checks the addresses; returns the three files, or None if there is none.
    ///
    /// # Errors
    /// An address is invalid, or a file is missing beside the others.
    pub fn check(&self) -> Result<Option<TlsKeys>, SettingsError> {
        if let Some(remote) = &self.ovn_remote {
            Remote::parse_list(remote)
                .map_err(|error| bad("--ovn-remote", remote, error.to_string()))?;
        }
        let files = [
            ("--ovn-private-key", &self.ovn_private_key),
            ("--ovn-certificate", &self.ovn_certificate),
            ("--ovn-ca-cert", &self.ovn_ca_cert),
        ];
        if let [Some(key), Some(certificate), Some(ca)] = files.map(|(_, file)| file.clone()) {
            return Ok(Some(TlsKeys {
                private_key: key,
                certificate,
                ca_certificate: ca,
            }));
        }
        let mut given = files
            .iter()
            .filter_map(|(flag, file)| Some((*flag, file.as_ref()?)));
        let Some((flag, file)) = given.next() else {
            return Ok(None);
        };
        let missing = files.iter().filter(|(_, file)| file.is_none());
        let missing: Vec<&str> = missing.map(|(flag, _)| *flag).collect();
        let problem = format!("{} must be given with it", missing.join(" and "));
        Err(bad(flag, &file.display().to_string(), problem))
    }
}

/// The address for metrics. Whoever can connect can read: access from other machines needs a proxy
/// that authenticates.
///
/// # Errors
/// It is no loopback address with a port.
pub fn loopback(text: &str) -> Result<SocketAddr, SettingsError> {
    let refused = |problem| bad("--metrics-address", text, problem);
    let expected = "expected IP:PORT, as in 127.0.0.1:9476 or [::1]:9476";
    let address: SocketAddr = text.parse().map_err(|_| refused(expected))?;
    if !address.ip().is_loopback() {
        return Err(refused(
            "it is not a loopback address; use 127.0.0.1 or ::1, and a proxy that authenticates \
             clients from other machines",
        ));
    }
    Ok(address)
}

/// This node's name in Kubernetes; without one, kubelet's own default: the host name in lower case.
/// It goes into a field selector, where ',' and '=' are syntax.
///
/// # Errors
/// It is no name of a Node.
pub fn node_name(given: Option<String>) -> Result<String, SettingsError> {
    let name = given.unwrap_or_else(|| {
        let host = nix::unistd::gethostname().ok();
        let host = host.and_then(|name| name.into_string().ok());
        host.unwrap_or_default().trim().to_lowercase()
    });
    let is_name =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if name.is_empty() || name.len() > 253 || !name.bytes().all(is_name) {
        let problem = "expected a Kubernetes name: a-z, 0-9, '-' and '.'";
        return Err(bad("--node-name", &name, problem));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_loopback_address_serves_metrics() {
        for good in ["127.0.0.1:9476", "127.1.2.3:0", "[::1]:9476"] {
            assert_eq!(loopback(good), Ok(good.parse().unwrap()));
        }
        for (bad, words) in [
            ("0.0.0.0:9476", "not a loopback"),
            ("[::]:9476", "not a loopback"),
            ("192.0.2.1:9476", "not a loopback"),
            ("[::ffff:127.0.0.1]:9476", "not a loopback"),
            ("127.0.0.1", "expected IP:PORT"),
            ("localhost:9476", "expected IP:PORT"),
        ] {
            let error = loopback(bad).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--metrics-address {bad}")) && error.contains(words),
                "{error}"
            );
        }
    }
}
