//! The address of the metrics.

use std::net::SocketAddr;

use super::{ConfigError, bad};

/// Whoever can connect can read: access from other machines needs a proxy that authenticates.
pub(super) fn loopback(text: &str) -> Result<SocketAddr, ConfigError> {
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
