//! X.509 certificates in PEM files: whom each is for, who signed it, and when it ends.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem};
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer as _, X509Certificate, X509Name};

use crate::protocol::TlsKeys;

/// The largest file that is read, in bytes.
const LARGEST_FILE: u64 = 1 << 20;

/// A certificate in a file should be renewed when it ends within this time.
pub const SOON: SignedDuration = SignedDuration::from_hours(30 * 24);

/// A certificate, as far as TLS between OVN's parts depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Whom it is for, as in `CN=node-a`.
    pub subject: String,
    /// The first CN of the subject: whom ovsdb-server's access control takes the client for.
    pub common_name: Option<String>,
    /// Who signed it.
    pub issuer: String,
    /// Its alternative names that are addresses.
    pub addresses: Vec<IpAddr>,
    /// Its alternative names that are DNS names.
    pub names: Vec<String>,
    /// Whether its extended key usage makes it a server's; None if it does not say.
    pub is_servers: Option<bool>,
    /// When it begins to be valid.
    pub not_before: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
}

/// Why a certificate or a key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The file can't be read.
    #[error("reading {}: {source}", .file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The file's content can't be used.
    #[error("{} can't be used: {problem}", .file.display())]
    Unusable {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The certificate is not valid at this time.
    #[error("{}, {certificate}: {}", .file.display(), .certificate.untimely())]
    Untimely {
        /// The file.
        file: PathBuf,
        /// The certificate.
        certificate: Box<Certificate>,
    },
}

impl CertificateError {
    fn unusable(file: &Path, problem: impl fmt::Display) -> Self {
        Self::Unusable {
            file: file.to_owned(),
            problem: problem.to_string(),
        }
    }
}

impl TlsKeys {
    /// This end's own certificate.
    ///
    /// # Errors
    /// The file can't be read, or contains none.
    pub fn own(&self) -> Result<Certificate, CertificateError> {
        first(&self.certificate)
    }

    /// The certificates on which a connection depends, with their files: this end's own, and that
    /// of the CA.
    pub fn inspect(&self) -> [(&Path, Result<Certificate, CertificateError>); 2] {
        [&self.certificate, &self.ca_certificate].map(|file| (file.as_path(), first(file)))
    }
}

/// The first certificate of a file.
fn first(file: &Path) -> Result<Certificate, CertificateError> {
    let parsed = Certificate::from_pem(&contents(file)?);
    parsed.map_err(|problem| CertificateError::unusable(file, problem))
}

/// All certificates of a file, at least one.
pub(crate) fn read(file: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let all = certificates(&contents(file)?);
    all.map_err(|problem| CertificateError::unusable(file, problem))
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(text).collect();
    match all {
        Ok(all) if all.is_empty() => Err("it holds no certificate".to_owned()),
        Ok(all) => Ok(all),
        Err(error) => Err(error.to_string()),
    }
}

/// The private key of a file.
pub(crate) fn read_key(file: &Path) -> Result<PrivateKeyDer<'static>, CertificateError> {
    let text = contents(file)?;
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| CertificateError::unusable(file, error))
}

fn contents(file: &Path) -> Result<Vec<u8>, CertificateError> {
    let unreadable = |source| CertificateError::Unreadable {
        file: file.to_owned(),
        source,
    };
    // Opening a fifo would wait for its writer.
    if !fs::metadata(file).map_err(unreadable)?.is_file() {
        return Err(CertificateError::unusable(file, "it is no regular file"));
    }
    let mut text = Vec::new();
    let opened = File::open(file).map_err(unreadable)?;
    let length = opened.take(LARGEST_FILE + 1).read_to_end(&mut text);
    if length.map_err(unreadable)? as u64 > LARGEST_FILE {
        let problem = format!("it is larger than {LARGEST_FILE} bytes");
        return Err(CertificateError::unusable(file, problem));
    }
    Ok(text)
}

impl Certificate {
    /// The first certificate of a PEM text.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn from_pem(text: &[u8]) -> Result<Self, String> {
        let all = certificates(text)?;
        Self::parse(all.first().map(|der| &**der).unwrap_or_default())
    }

    /// Parses a certificate in DER.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(der: &[u8]) -> Result<Self, String> {
        let (_, parsed) = X509Certificate::from_der(der).map_err(|error| error.to_string())?;
        let problem = |error: x509_parser::error::X509Error| error.to_string();
        let time = |seconds| Timestamp::from_second(seconds).map_err(|error| error.to_string());
        let usage = parsed.extended_key_usage().map_err(problem)?;
        let alternatives = parsed.subject_alternative_name().map_err(problem)?;
        let alternatives = alternatives.map_or(&[][..], |names| &names.value.general_names);
        let common_name = parsed.subject().iter_common_name().next();
        Ok(Self {
            subject: name(parsed.subject()),
            common_name: common_name.and_then(|name| Some(name.as_str().ok()?.to_owned())),
            issuer: name(parsed.issuer()),
            addresses: alternatives.iter().filter_map(address).collect(),
            names: alternatives
                .iter()
                .filter_map(|name| match name {
                    GeneralName::DNSName(name) => Some((*name).to_owned()),
                    _ => None,
                })
                .collect(),
            is_servers: usage.map(|usage| usage.value.server_auth || usage.value.any),
            not_before: time(parsed.validity().not_before.timestamp())?,
            not_after: time(parsed.validity().not_after.timestamp())?,
        })
    }

    /// Whether it is valid at that time.
    pub fn is_valid_at(&self, time: Timestamp) -> bool {
        (self.not_before..=self.not_after).contains(&time)
    }

    /// Why it is not valid now.
    fn untimely(&self) -> &'static str {
        match self.not_before > Timestamp::now() {
            true => "it is not valid yet: is this machine's clock right?",
            false => "it has ended: renew it (podwire-controller keys), and replace the file",
        }
    }
}

/// What a log or a status says of a certificate that ends soon or has ended; None for one that is
/// valid for longer than [`SOON`].
pub fn ending(file: &Path, certificate: &Certificate, now: Timestamp) -> Option<String> {
    let left = certificate.not_after.duration_since(now);
    if left > SOON {
        return None;
    }
    let days = left.as_hours() / 24;
    let ends = match days {
        _ if left.is_negative() => "has ended".to_owned(),
        0 => "ends within a day".to_owned(),
        1 => "ends in 1 day".to_owned(),
        days => format!("ends in {days} days"),
    };
    Some(format!(
        "{} {ends} ({certificate}): renew it (podwire-controller keys), and replace the file",
        file.display()
    ))
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            subject,
            issuer,
            not_before,
            not_after,
            ..
        } = self;
        write!(
            f,
            "{subject}, signed by {issuer}, valid from {not_before} to {not_after}"
        )
    }
}

/// As text without control characters, of bounded length: a peer may have chosen it.
fn name(name: &X509Name<'_>) -> String {
    let text = name.to_string();
    let printable = text.chars().filter(|it| !it.is_control());
    match text.is_empty() {
        true => "no name".to_owned(),
        false => printable.take(200).collect(),
    }
}

fn address(name: &GeneralName<'_>) -> Option<IpAddr> {
    let GeneralName::IPAddress(bytes) = name else {
        return None;
    };
    if let Ok(four) = <[u8; 4]>::try_from(*bytes) {
        return Some(Ipv4Addr::from(four).into());
    }
    Some(Ipv6Addr::from(<[u8; 16]>::try_from(*bytes).ok()?).into())
}
