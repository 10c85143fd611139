//! CAs, and what they sign.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use podwire_ovs::certificate::Certificate;
use podwire_ovs::client::TlsKeys;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose as Usage, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use time::{Duration, OffsetDateTime};

use super::{Ca, Host, KeysError, Purpose, Wanted, files};

/// How long a CA is valid, in days: ten years.
const AUTHORITY_DAYS: i64 = 3650;
/// Certificates begin that much before they are made, for machines whose clock is behind.
const BEFORE: Duration = Duration::hours(1);

/// A CA with its private key.
pub(super) struct Authority {
    /// Its certificate's file.
    file: PathBuf,
    certificate: Certificate,
    pem: String,
    /// None if the private key is elsewhere.
    issuer: Option<Issuer<'static, KeyPair>>,
}

impl Authority {
    /// Reads a CA; if it is new, makes it unless it is there. Returns whether it made it.
    pub(super) fn open(directory: &Path, ca: Ca, is_new: bool) -> Result<(Self, bool), KeysError> {
        let file = directory.join(format!("{}.crt", ca.file()));
        let key_file = directory.join(format!("{}.key", ca.file()));
        let problem = |file: &Path, problem: String| KeysError::Authority {
            file: file.to_owned(),
            problem,
        };
        let key = files::read(&key_file)?;
        let Some(pem) = files::read(&file)? else {
            if !is_new {
                return Err(KeysError::NoAuthority(file));
            }
            create(ca, &file, &key_file)?;
            return Ok((Self::open(directory, ca, false)?.0, true));
        };
        let certificate = parse(&pem).map_err(|it| problem(&file, it))?;
        let issuer = match key {
            Some(key) => {
                let key =
                    KeyPair::from_pem(&key).map_err(|it| problem(&key_file, it.to_string()))?;
                let issuer = Issuer::from_ca_cert_pem(&pem, key);
                Some(issuer.map_err(|it| problem(&file, it.to_string()))?)
            }
            None => None,
        };
        let authority = Self {
            file,
            certificate,
            pem,
            issuer,
        };
        Ok((authority, false))
    }

    pub(super) fn certificate(&self) -> &Certificate {
        &self.certificate
    }

    /// Whether these keys trust this CA.
    pub(super) fn is_in(&self, keys: &TlsKeys) -> bool {
        std::fs::read_to_string(&keys.ca_certificate).is_ok_and(|text| text.contains(&self.pem))
    }

    /// Makes a key and its certificate.
    ///
    /// The private key is written last. ovsdb-server, ovs-vswitchd and ovn-controller read both
    /// again only once both have changed, beginning with the key
    /// (`stream_ssl_set_key_and_cert` in Open vSwitch's lib/stream-ssl.c): a new key beside the old
    /// certificate would leave them with the old pair for ever.
    pub(super) fn sign(
        &self,
        wanted: &Wanted,
        keys: &TlsKeys,
        days: u16,
    ) -> Result<Certificate, KeysError> {
        let key_file = self.file.with_extension("key");
        let issuer = self.issuer.as_ref();
        let issuer = issuer.ok_or(KeysError::NoAuthority(key_file))?;
        let file = &keys.certificate;
        let failed = |source| KeysError::Sign {
            file: file.clone(),
            source,
        };
        let params = self.params(wanted, days).map_err(failed)?;
        let key = KeyPair::generate().map_err(failed)?;
        let pem = params.signed_by(&key, issuer).map_err(failed)?.pem();
        let certificate = parse(&pem).map_err(|problem| KeysError::Authority {
            file: file.clone(),
            problem,
        })?;
        if certificate.not_after > self.certificate.not_after {
            return Err(KeysError::AuthorityEnds {
                file: self.file.clone(),
                ends: self.certificate.not_after,
            });
        }
        if let Some(place) = file.parent() {
            files::make_directory(place)?;
        }
        files::write(&keys.ca_certificate, &self.pem, 0o644)?;
        files::write(file, &pem, 0o644)?;
        files::write(&keys.private_key, &key.serialize_pem(), 0o600)?;
        Ok(certificate)
    }

    fn params(&self, wanted: &Wanted, days: u16) -> Result<CertificateParams, rcgen::Error> {
        let now = OffsetDateTime::now_utc();
        let mut params = CertificateParams::default();
        let name = wanted.common_name.as_str();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = now - BEFORE;
        params.not_after = now + Duration::days(days.into());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = match &wanted.purpose {
            // The members of a cluster connect to each other with the same certificate.
            Purpose::Server(_) => vec![Usage::ServerAuth, Usage::ClientAuth],
            // Otherwise each chassis could pretend to be the database.
            Purpose::Client => vec![Usage::ClientAuth],
        };
        if let Purpose::Server(hosts) = &wanted.purpose {
            let names = hosts.iter().map(|host| match host {
                Host::Address(address) => Ok(SanType::IpAddress(*address)),
                Host::Name(name) => Ok(SanType::DnsName(name.as_str().try_into()?)),
            });
            params.subject_alt_names = names.collect::<Result<_, rcgen::Error>>()?;
        }
        Ok(params)
    }
}

/// Makes a CA's files. The certificate is written last: without it, the next run begins anew.
fn create(ca: Ca, file: &Path, key_file: &Path) -> Result<(), KeysError> {
    let failed = |source| KeysError::Sign {
        file: file.to_owned(),
        source,
    };
    let now = OffsetDateTime::now_utc();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    // Each has a name of its own: a client that trusts two of them picks the issuer by it.
    let name = format!("podwire {} CA {}", ca.file(), Timestamp::now().as_second());
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = now - BEFORE;
    params.not_after = now + Duration::days(AUTHORITY_DAYS);
    let key = KeyPair::generate().map_err(failed)?;
    let certificate = params.self_signed(&key).map_err(failed)?;
    if let Some(directory) = file.parent() {
        files::make_directory(directory)?;
    }
    files::write(key_file, &key.serialize_pem(), 0o600)?;
    Ok(files::write(file, &certificate.pem(), 0o644)?)
}

fn parse(text: &str) -> Result<Certificate, String> {
    Certificate::from_pem(text.as_bytes())
}
