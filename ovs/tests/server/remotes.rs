//! TCP and TLS, on the loopback interface, with keys as ovs-pki(8) makes them.

use std::path::Path;
use std::process::Command;

use podwire_ovs::client::{Client, ClientConfig, Remote, State, TlsKeys};
use podwire_ovs::vswitch;

use crate::fixture::{Server, free_port, init, soon};

pub(crate) fn config(remote: &str, tls: Option<TlsKeys>) -> ClientConfig {
    let remote: Remote = remote.parse().unwrap();
    let mut config = ClientConfig::new(remote, vswitch::DATABASE, vswitch::tables());
    config.tls = tls;
    config
}

/// Makes two CAs, and keys of the one for a server and a client.
fn make_keys(directory: &Path) {
    for arguments in [
        &["init"][..],
        &["-u", "req+sign", "server", "switch"],
        &["-u", "req+sign", "client", "switch"],
    ] {
        let status = Command::new("ovs-pki")
            .current_dir(directory)
            .arg(format!("--dir={}", directory.join("pki").display()))
            .arg(format!("--log={}", directory.join("pki.log").display()))
            .args(["-B", "2048"])
            .args(arguments)
            .output()
            .unwrap();
        assert!(status.status.success(), "{status:?}");
    }
}

fn keys(directory: &Path, name: &str, ca: &str) -> TlsKeys {
    TlsKeys {
        private_key: directory.join(format!("{name}-privkey.pem")),
        certificate: directory.join(format!("{name}-cert.pem")),
        ca_certificate: directory.join(format!("pki/{ca}/cacert.pem")),
    }
}

/// A server with keys of its own, and the remote that it listens on.
fn tls_server() -> (Server, String) {
    let port = free_port();
    let server = Server::start_with(|directory| {
        make_keys(directory);
        let own = keys(directory, "server", "switchca");
        vec![
            format!("--remote=pssl:{port}:127.0.0.1"),
            format!("--private-key={}", own.private_key.display()),
            format!("--certificate={}", own.certificate.display()),
            format!("--ca-cert={}", own.ca_certificate.display()),
        ]
    });
    (server, format!("ssl:127.0.0.1:{port}"))
}

/// What keeps a client from getting a connection.
pub(crate) async fn refusal(config: ClientConfig) -> String {
    let client = Client::start(config);
    let mut versions = client.subscribe();
    let refused = versions.wait_for(|version| {
        matches!(
            &version.state,
            State::Disconnected {
                last_error: Some(_),
                ..
            }
        )
    });
    let refused = tokio::time::timeout_at(soon(), refused).await;
    refused.unwrap().unwrap().state.to_string()
}

#[tokio::test]
async fn a_database_is_followed_over_tcp() {
    let port = free_port();
    let server = Server::start_with(|_| vec![format!("--remote=ptcp:{port}:127.0.0.1")]);
    let (_, root) = server.initialised().await;
    let client = Client::start(config(&format!("tcp:127.0.0.1:{port}"), None));
    let seen = client
        .wait("the root", soon(), |db| Some(db.open_vswitch()?.uuid()))
        .await;
    assert_eq!(seen, Ok(root));
}

#[tokio::test]
async fn a_database_is_followed_over_tls_whatever_name_its_certificate_bears() {
    let (server, remote) = tls_server();
    server.client().await;
    let own = keys(server.path(), "client", "switchca");
    let client = Client::start(config(&remote, Some(own)));
    client.synced(soon()).await.unwrap();
    init(&client).await;
    assert!(client.read(|db| db.open_vswitch().is_some()));
}

#[tokio::test]
async fn a_server_whose_certificate_another_ca_has_signed_is_refused() {
    let (server, remote) = tls_server();
    server.client().await;
    let strict = keys(server.path(), "client", "controllerca");
    let said = refusal(config(&remote, Some(strict))).await;
    assert!(said.contains("cacert.pem has signed it"), "{said}");
}

#[tokio::test]
async fn keys_that_can_not_be_used_are_named() {
    let (server, remote) = tls_server();
    server.client().await;
    let good = keys(server.path(), "client", "switchca");
    let said = refusal(config(&remote, None)).await;
    assert!(said.contains("needs a private key"), "{said}");
    let absent = TlsKeys {
        private_key: server.path().join("absent.pem"),
        ..good.clone()
    };
    let said = refusal(config(&remote, Some(absent))).await;
    assert!(said.contains("absent.pem"), "{said}");
    let swapped = TlsKeys {
        certificate: good.private_key.clone(),
        ..good
    };
    let said = refusal(config(&remote, Some(swapped))).await;
    assert!(said.contains("client-privkey.pem"), "{said}");
}
