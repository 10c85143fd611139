//! Certificates that one end refuses, what the errors say of them, and keys that are renewed while
//! a client runs.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use podwire_ovs::client::{Client, State, TlsKeys};
use podwire_ovs::transact::Transaction;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose as Usage,
    IsCa, KeyPair, SanType,
};
use time::{Duration, OffsetDateTime};

use crate::fixture::{Server, dscps, free_port, init, insert_queue, soon, transact_all};
use crate::remotes::{config, refusal};

/// A CA in the directory of a server.
struct Ca {
    issuer: CertifiedIssuer<'static, KeyPair>,
    directory: PathBuf,
}

/// A certificate's content, as far as a test changes it.
struct Leaf {
    address: &'static str,
    usage: Usage,
    /// In days from now.
    days: (i64, i64),
}

const SERVER: Leaf = Leaf {
    address: "127.0.0.1",
    usage: Usage::ServerAuth,
    days: (-1, 1),
};
const CLIENT: Leaf = Leaf {
    usage: Usage::ClientAuth,
    ..SERVER
};

impl Ca {
    fn new(directory: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        fs::write(directory.join(format!("{name}.crt")), issuer.pem()).unwrap();
        let directory = directory.to_owned();
        Self { issuer, directory }
    }

    /// The files of a key and its certificate.
    fn sign(&self, name: &str, leaf: &Leaf) -> TlsKeys {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        let address: IpAddr = leaf.address.parse().unwrap();
        params.subject_alt_names = vec![SanType::IpAddress(address)];
        params.extended_key_usages = vec![leaf.usage.clone()];
        let now = OffsetDateTime::now_utc();
        params.not_before = now + Duration::days(leaf.days.0);
        params.not_after = now + Duration::days(leaf.days.1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |end: &str| self.directory.join(format!("{name}.{end}"));
        fs::write(file("crt"), certificate.pem()).unwrap();
        fs::write(file("key"), key.serialize_pem()).unwrap();
        TlsKeys {
            private_key: file("key"),
            certificate: file("crt"),
            ca_certificate: self.directory.join("ca.crt"),
        }
    }
}

/// A server with that certificate, its CA, and the remote that it listens on.
async fn server_with(leaf: &Leaf) -> (Server, Ca, String) {
    let port = free_port();
    let mut ca = None;
    let server = Server::start_with(|directory| {
        let made = ca.insert(Ca::new(directory, "ca"));
        let own = made.sign("server", leaf);
        vec![
            format!("--remote=pssl:{port}:127.0.0.1"),
            format!("--private-key={}", own.private_key.display()),
            format!("--certificate={}", own.certificate.display()),
            format!("--ca-cert={}", own.ca_certificate.display()),
        ]
    });
    server.client().await;
    (server, ca.unwrap(), format!("ssl:127.0.0.1:{port}"))
}

#[tokio::test]
async fn a_certificate_for_the_remotes_address_is_believed() {
    let (_server, ca, remote) = server_with(&SERVER).await;
    let client = Client::start(config(&remote, Some(ca.sign("client", &CLIENT))));
    client.synced(soon()).await.unwrap();
}

#[tokio::test]
async fn a_servers_certificate_that_is_refused_is_described_with_what_to_do() {
    for (leaf, expected) in [
        (
            Leaf {
                address: "192.0.2.7",
                ..SERVER
            },
            "it is for 192.0.2.7, not for 127.0.0.1",
        ),
        (
            Leaf {
                days: (-30, -1),
                ..SERVER
            },
            "it has ended: renew the database's keys (podwire-controller keys)",
        ),
        (
            Leaf {
                days: (1, 30),
                ..SERVER
            },
            "it is not valid yet: is this machine's clock right?",
        ),
        // Otherwise each chassis could pretend to be the database.
        (CLIENT, "it is a client's, so this is not the database"),
    ] {
        let (_server, ca, remote) = server_with(&leaf).await;
        let said = refusal(config(&remote, Some(ca.sign("client", &CLIENT)))).await;
        assert!(said.contains(expected), "{said}");
        assert!(
            said.contains("CN=server, signed by CN=ca, valid from 2"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_server_of_another_ca_is_refused_by_the_file_that_does_not_have_it() {
    let (server, _, remote) = server_with(&SERVER).await;
    let other = Ca::new(server.path(), "other");
    let mut keys = other.sign("client", &CLIENT);
    keys.ca_certificate = server.path().join("other.crt");
    let said = refusal(config(&remote, Some(keys))).await;
    assert!(said.contains("/other.crt has signed it"), "{said}");
}

#[tokio::test]
async fn a_certificate_of_this_end_that_is_not_valid_is_named_with_its_dates() {
    let (_server, ca, remote) = server_with(&SERVER).await;
    for (days, expected) in [
        ((-30, -1), "it has ended: renew it"),
        ((1, 30), "not valid yet"),
    ] {
        let keys = ca.sign("client", &Leaf { days, ..CLIENT });
        let said = refusal(config(&remote, Some(keys))).await;
        assert!(said.contains(expected), "{said}");
        assert!(
            said.contains("/client.crt, CN=client, signed by CN=ca, valid from"),
            "{said}"
        );
    }
}

/// With TLS 1.3 the client's handshake has succeeded by then.
#[tokio::test]
async fn a_certificate_that_the_server_refuses_is_named() {
    let (server, _, remote) = server_with(&SERVER).await;
    for number in 0..20 {
        let other = Ca::new(server.path(), "other");
        let said = refusal(config(&remote, Some(other.sign("client", &CLIENT)))).await;
        assert!(said.contains("the server refuses"), "{number}: {said}");
        assert!(
            said.contains("/client.crt, CN=client, signed by CN=other"),
            "{said}"
        );
    }
}

#[tokio::test]
async fn a_running_client_takes_renewed_keys_without_losing_a_transaction() {
    let (server, ca, remote) = server_with(&SERVER).await;
    let keys = ca.sign("client", &CLIENT);
    let client = Client::start(config(&remote, Some(keys.clone())));
    client.synced(soon()).await.unwrap();
    init(&client).await;
    // Of another CA: the old certificate would be refused.
    let other = Ca::new(server.path(), "ca");
    other.sign("server", &SERVER);
    other.sign("client", &CLIENT);
    let changes: Vec<_> = (0..50)
        .map(|number| {
            let mut change = Transaction::new();
            insert_queue(&mut change, number);
            change
        })
        .collect();
    let (outcomes, ()) = tokio::join!(transact_all(&client, &changes), async {
        client.reconnect();
    });
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let mut versions = client.subscribe();
    let again = versions.wait_for(|it| it.resyncs == 2 && it.state == State::Synced);
    tokio::time::timeout_at(soon(), again)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(dscps(&client).len(), 50);
}
