//! What can be seen of the agent from outside.

use std::net::SocketAddr;

use clap::Args;

use super::{ConfigError, bad};

/// The flags about observability.
#[derive(Debug, Clone, Default, Args)]
pub struct ObserveArgs {
    /// Loopback address, IP:PORT, for GET /metrics, in addition to the socket
    #[arg(long, value_name = "IP:PORT")]
    pub metrics_address: Option<String>,
}

/// The observability settings, checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObserveConfig {
    /// The address for metrics over TCP; a loopback address.
    pub metrics_address: Option<SocketAddr>,
}

impl ObserveConfig {
    /// Checks the flags.
    pub(super) fn from_args(args: ObserveArgs) -> Result<Self, ConfigError> {
        let metrics_address = args.metrics_address.as_deref().map(loopback).transpose()?;
        Ok(Self { metrics_address })
    }
}

/// Whoever can connect can read: access from other machines needs a proxy that authenticates.
fn loopback(text: &str) -> Result<SocketAddr, ConfigError> {
    let refused = |problem: &str| bad("--metrics-address", text, problem);
    let address: SocketAddr = text
        .parse()
        .map_err(|_| refused("expected IP:PORT, as in 127.0.0.1:9476 or [::1]:9476"))?;
    if !address.ip().is_loopback() {
        return Err(refused(
            "it is not a loopback address; use 127.0.0.1 or ::1, and a proxy that authenticates \
             clients from other machines",
        ));
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Result<ObserveConfig, ConfigError> {
        ObserveConfig::from_args(ObserveArgs {
            metrics_address: Some(text.to_owned()),
        })
    }

    #[test]
    fn only_a_loopback_address_serves_metrics() {
        for good in ["127.0.0.1:9476", "127.1.2.3:0", "[::1]:9476"] {
            let address = of(good).unwrap().metrics_address;
            assert_eq!(address, Some(good.parse().unwrap()));
        }
        for (bad, words) in [
            ("0.0.0.0:9476", "not a loopback"),
            ("[::]:9476", "not a loopback"),
            ("192.0.2.1:9476", "not a loopback"),
            ("[::ffff:127.0.0.1]:9476", "not a loopback"),
            ("127.0.0.1", "expected IP:PORT"),
            ("localhost:9476", "expected IP:PORT"),
        ] {
            let error = of(bad).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--metrics-address {bad}")) && error.contains(words),
                "{error}"
            );
        }
    }
}
