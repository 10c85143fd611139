//! TLS as Open vSwitch and OVN use it: both ends have a certificate of one private CA, whose
//! signature is the proof.
//!
//! Names are compared only if the server's certificate is made for that: its extended key usage
//! says that it is a server's, and it lists names of the remote's kind, addresses or DNS names.
//! OVS's own programs compare none (`do_ssl_init` in lib/stream-ssl.c sets SSL_VERIFY_PEER and no
//! host name), and the certificates of ovs-pki(8) name a component or a chassis, not the address of
//! a remote.

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use itertools::Itertools as _;
use jiff::Timestamp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::crypto::{
    CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature,
};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError as Invalid, ClientConfig, DigitallySignedStruct, Error,
    RootCertStore, SignatureScheme,
};

use crate::certificate::{self, Certificate, CertificateError};
use crate::protocol::TlsKeys;

/// Why TLS has not come about.
#[derive(Debug, thiserror::Error)]
enum TlsError {
    /// This end's files can't be used.
    #[error(transparent)]
    Own(#[from] CertificateError),
    /// The server's certificate is refused.
    #[error("the server's certificate, {certificate}: {problem}")]
    Server {
        certificate: Box<Certificate>,
        problem: String,
    },
    /// The server refuses this end's certificate.
    #[error(
        "the server refuses {}, {certificate} ({alert:?}): is it of the CA that the server trusts?",
        .file.display()
    )]
    Refused {
        file: PathBuf,
        certificate: Box<Certificate>,
        alert: AlertDescription,
    },
}

/// Starts TLS on a connection. The files are read for each one: keys are renewed while daemons run.
pub(super) async fn handshake(
    keys: &TlsKeys,
    host: &str,
    stream: TcpStream,
) -> io::Result<Secured> {
    // A host that can't be a name in a certificate is left out.
    let name = ServerName::try_from(host.to_owned())
        .unwrap_or_else(|_| ServerName::from(std::net::Ipv4Addr::UNSPECIFIED));
    let (config, verifier, own) = prepare(keys).map_err(io::Error::other)?;
    match TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
    {
        Ok(stream) => {
            if let Some(ending) = certificate::ending(&keys.certificate, &own, Timestamp::now()) {
                tracing::warn!("{ending}");
            }
            Ok(Secured {
                stream,
                own,
                file: keys.certificate.clone(),
                has_read: false,
            })
        }
        Err(error) => match verifier.refusal() {
            Some(refusal) => Err(io::Error::other(refusal)),
            None => Err(refused(error, &keys.certificate, &own)),
        },
    }
}

impl TlsKeys {
    /// This end's certificate, if a connection could use these files now: they can be read, key and
    /// certificate belong together, and the certificate is valid at this time.
    ///
    /// # Errors
    /// The first problem, with its file.
    pub fn check(&self) -> Result<Certificate, CertificateError> {
        prepare(self).map(|(_, _, own)| own)
    }
}

/// Reads the files for one connection. The server's refusal of a certificate that is not valid at
/// this time would not say more than this.
fn prepare(
    keys: &TlsKeys,
) -> Result<(ClientConfig, Arc<SignedByOurCa>, Certificate), CertificateError> {
    let verifier = Arc::new(SignedByOurCa::new(keys)?);
    let key = certificate::read_key(&keys.private_key)?;
    let chain = certificate::read(&keys.certificate)?;
    let own = keys.own()?;
    let unusable = |problem: &dyn std::fmt::Display| CertificateError::Unusable {
        file: keys.certificate.clone(),
        problem: format!("with the key {}: {problem}", keys.private_key.display()),
    };
    let config = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| unusable(&error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::<SignedByOurCa>::clone(&verifier))
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(&error))?;
    match own.is_valid_at(Timestamp::now()) {
        true => Ok((config, verifier, own)),
        false => Err(CertificateError::Untimely {
            file: keys.certificate.clone(),
            certificate: Box::new(own),
        }),
    }
}

/// An alert about this end's certificate, as an error that names it; other errors as they are.
fn refused(error: io::Error, file: &std::path::Path, own: &Certificate) -> io::Error {
    use AlertDescription as Alert;
    let inner = error.get_ref().and_then(|it| it.downcast_ref::<Error>());
    let Some(Error::AlertReceived(alert)) = inner else {
        return error;
    };
    match alert {
        Alert::NoCertificate
        | Alert::BadCertificate
        | Alert::UnsupportedCertificate
        | Alert::CertificateRevoked
        | Alert::CertificateExpired
        | Alert::CertificateUnknown
        | Alert::UnknownCA
        | Alert::AccessDenied
        | Alert::CertificateRequired => io::Error::other(TlsError::Refused {
            file: file.to_owned(),
            certificate: Box::new(own.clone()),
            alert: *alert,
        }),
        _ => error,
    }
}

/// A connection with TLS.
///
/// With TLS 1.3 the handshake has ended here when the server judges this end's certificate: its
/// refusal is the first thing to read.
#[derive(Debug)]
pub(super) struct Secured {
    stream: TlsStream<TcpStream>,
    own: Certificate,
    file: PathBuf,
    has_read: bool,
}

impl Secured {
    /// The reason why a write failed, if the server has sent it.
    fn reason(&mut self, context: &mut Context<'_>, error: io::Error) -> io::Error {
        let mut bytes = [0];
        let read = Pin::new(&mut self.stream).poll_read(context, &mut ReadBuf::new(&mut bytes));
        match read {
            Poll::Ready(Err(alert)) if !self.has_read => refused(alert, &self.file, &self.own),
            _ => error,
        }
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let read = read.map_err(|error| refused(error, &self.file, &self.own));
        self.has_read |= read.is_ok();
        Poll::Ready(read)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        Poll::Ready(written.map_err(|error| self.reason(context, error)))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.stream).poll_flush(context));
        Poll::Ready(flushed.map_err(|error| self.reason(context, error)))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Accepts every currently valid certificate that the CA has signed.
#[derive(Debug)]
struct SignedByOurCa {
    file: PathBuf,
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
    /// Why the last one was refused, in more words than rustls' error has.
    refusal: Mutex<Option<TlsError>>,
}

impl SignedByOurCa {
    fn new(keys: &TlsKeys) -> Result<Self, CertificateError> {
        let file = &keys.ca_certificate;
        let mut roots = RootCertStore::empty();
        for certificate in certificate::read(file)? {
            let added = roots.add(certificate);
            added.map_err(|error| CertificateError::Unusable {
                file: file.clone(),
                problem: error.to_string(),
            })?;
        }
        Ok(Self {
            file: file.clone(),
            roots,
            provider: Arc::new(ring::default_provider()),
            refusal: Mutex::default(),
        })
    }

    fn refusal(&self) -> Option<TlsError> {
        let mut refusal = self.refusal.lock().unwrap_or_else(PoisonError::into_inner);
        refusal.take()
    }

    /// What is wrong with a server's certificate.
    fn problem(&self, certificate: &Certificate, name: &ServerName<'_>, error: &Error) -> String {
        let Error::InvalidCertificate(invalid) = error else {
            return error.to_string();
        };
        match invalid {
            Invalid::ExpiredContext { .. } | Invalid::Expired => "it has ended: renew the \
                database's keys (podwire-controller keys)"
                .to_owned(),
            Invalid::NotValidYetContext { .. } | Invalid::NotValidYet => {
                "it is not valid yet: is this machine's clock right?".to_owned()
            }
            Invalid::UnknownIssuer | Invalid::BadSignature => format!(
                "no CA of {} has signed it: are both ends' keys of the same CA?",
                self.file.display()
            ),
            Invalid::InvalidPurposeContext { .. } | Invalid::InvalidPurpose => {
                "it is a client's, so this is not the database".to_owned()
            }
            Invalid::NotValidForNameContext { .. } | Invalid::NotValidForName => {
                let addresses = certificate.addresses.iter().map(IpAddr::to_string);
                let names = addresses.chain(certificate.names.clone()).join(", ");
                format!(
                    "it is for {names}, not for {}: use one of these as the remote, or make keys \
                     for this one too (podwire-controller keys --server)",
                    name.to_str()
                )
            }
            other => other.to_string(),
        }
    }
}

impl ServerCertVerifier for SignedByOurCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let certificate = Certificate::parse(end_entity)
            .map_err(|_| Error::InvalidCertificate(Invalid::BadEncoding))?;
        let parsed = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let verified = verify_server_cert_signed_by_trust_anchor(
            &parsed,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )
        .and_then(|()| match lists_such(&certificate, server_name) {
            true => verify_server_name(&parsed, server_name),
            false => Ok(()),
        });
        if let Err(error) = &verified {
            let refusal = TlsError::Server {
                problem: self.problem(&certificate, server_name, error),
                certificate: Box::new(certificate),
            };
            *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
        }
        verified.map(|()| ServerCertVerified::assertion())
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

/// Whether a server's certificate is made for comparing names of that kind.
fn lists_such(certificate: &Certificate, name: &ServerName<'_>) -> bool {
    let lists = match name {
        ServerName::IpAddress(_) => !certificate.addresses.is_empty(),
        _ => !certificate.names.is_empty(),
    };
    lists && certificate.is_servers == Some(true)
}
