//! A CA of the test's own, and the server's certificate that it signed.

use std::io;
use std::net::{IpAddr, TcpStream};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::failure::{Failure, Step};

/// Who the server is.
pub(crate) struct Identity {
    /// The CA's certificate, PEM.
    pub(crate) ca: String,
    /// Its own certificate and key, PEM.
    pub(crate) certificate: String,
    pub(crate) key: String,
    pub(super) config: Arc<ServerConfig>,
}

impl Identity {
    /// A server at this address.
    pub(crate) fn new(address: IpAddr) -> Result<Identity, Failure> {
        let made = || -> Result<Identity, Box<dyn std::error::Error + Send + Sync>> {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params
                .distinguished_name
                .push(DnType::CommonName, "the test's CA");
            let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;

            let mut params = CertificateParams::default();
            params.subject_alt_names = vec![SanType::IpAddress(address)];
            let key = KeyPair::generate()?;
            let certificate = params.signed_by(&key, &issuer)?;

            let pem = key.serialize_pem();
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ServerConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_single_cert(vec![certificate.der().clone()], key)?;
            Ok(Identity {
                ca: issuer.pem(),
                certificate: certificate.pem(),
                key: pem,
                config: Arc::new(config),
            })
        };
        made()
            .map_err(io::Error::other)
            .step(|| "make the API server's certificate")
    }
}

/// The server's side of TLS on a connection; the handshake happens with the first read.
pub(super) fn accept(
    stream: TcpStream,
    config: Arc<ServerConfig>,
) -> io::Result<StreamOwned<ServerConnection, TcpStream>> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    Ok(StreamOwned::new(connection, stream))
}
