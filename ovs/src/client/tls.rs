//! TLS as Open vSwitch and OVN use it: both ends have a certificate of one private CA (ovs-pki(8)),
//! whose signature is the proof.
//!
//! Names are not compared. OVS's own programs don't (`do_ssl_init` in lib/stream-ssl.c sets
//! SSL_VERIFY_PEER and no host name), and ovs-pki's certificates name a component or a chassis, not
//! the address of a remote.

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::verify_server_cert_signed_by_trust_anchor;
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};

use crate::protocol::TlsKeys;

/// Starts TLS on a connection. The files are read for each one: keys are rotated while daemons run.
pub(super) async fn handshake(
    keys: &TlsKeys,
    host: &str,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    // A host that can't be a name in a certificate is left out.
    let name = ServerName::try_from(host.to_owned())
        .unwrap_or_else(|_| ServerName::from(std::net::Ipv4Addr::UNSPECIFIED));
    TlsConnector::from(Arc::new(config(keys)?))
        .connect(name, stream)
        .await
}

fn config(keys: &TlsKeys) -> io::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(&keys.ca_certificate)? {
        roots
            .add(certificate)
            .map_err(|error| unusable(&keys.ca_certificate, &error))?;
    }
    let verifier = SignedByOurCa {
        roots,
        provider: Arc::clone(&provider),
    };
    let key = PrivateKeyDer::from_pem_file(&keys.private_key)
        .map_err(|error| unreadable(&keys.private_key, error))?;
    let own = certificates(&keys.certificate)?;
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(own, key)
        .map_err(|error| unusable(&keys.certificate, &error))
}

/// Accepts every currently valid certificate that the CA has signed.
#[derive(Debug)]
struct SignedByOurCa {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for SignedByOurCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(path, error))?;
    if read.is_empty() {
        return Err(unusable(path, &"it holds no certificate"));
    }
    Ok(read)
}

fn unreadable(path: &Path, error: pem::Error) -> io::Error {
    match error {
        pem::Error::Io(error) => {
            io::Error::new(error.kind(), format!("reading {}: {error}", path.display()))
        }
        error => unusable(path, &error),
    }
}

fn unusable(path: &Path, problem: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{} can't be used: {problem}", path.display()))
}
