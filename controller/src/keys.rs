//! `podwire-controller keys`: the keys for TLS between OVN's databases, the controller and the
//! nodes. One command makes them, and the same command renews them.
//!
//! There are two CAs, because a database believes whomever its CA has signed: the controllers' CA
//! signs the northbound database's certificate and the controller's, the chassis' CA signs the
//! southbound database's and the nodes' (docs/decisions/0074). The CAs' private keys are in `ca/`,
//! and nothing but this command needs them.
//!
//! ```text
//! ca/         controllers.crt, controllers.key, chassis.crt, chassis.key
//! northbound/, southbound/, controller/, chassis/NODE/
//!             ca.crt, tls.crt, tls.key
//! ```

mod files;
mod sign;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use jiff::Timestamp;
use podwire_daemon::file::FileError;
use podwire_daemon::output::OutputArgs;
use podwire_ovs::certificate::{Certificate, CertificateError};
use podwire_ovs::client::TlsKeys;

use sign::Authority;

/// What `podwire-controller keys` is to make.
#[derive(Clone, Debug, clap::Args)]
pub struct KeysArgs {
    /// Directory of the keys. Certificates in it with less than a third of their time left are
    /// renewed. Keep its directory ca/ where only you can read it; nothing else needs that
    pub directory: PathBuf,
    /// Address or name of a machine with OVN's databases, as in the remotes; separate several by
    /// commas [default: those of the certificates that are there]
    #[arg(long = "server", value_name = "HOST", value_delimiter = ',')]
    pub servers: Vec<Host>,
    /// A node, and its external_ids:system-id in Open vSwitch; may be repeated [default: the nodes
    /// in DIRECTORY]
    #[arg(long = "chassis", value_name = "NODE=SYSTEM-ID")]
    pub chassis: Vec<Chassis>,
    /// How long new certificates are valid, in days
    #[arg(long, value_name = "DAYS", default_value_t = 365,
        value_parser = clap::value_parser!(u16).range(1..=1825))]
    pub days: u16,
    /// Renew all certificates
    #[arg(long)]
    pub renew: bool,
    /// The format.
    #[command(flatten)]
    pub format: OutputArgs,
}

/// A key with its certificate, and what was done with it.
#[derive(Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Made {
    /// Below the directory of the keys.
    place: String,
    /// `made`, `kept`, or `renewed` with the reason.
    done: String,
    subject: String,
    /// Until when it is valid (RFC 3339).
    not_after: String,
}

/// For people.
impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            place,
            done,
            subject,
            not_after,
        } = self;
        writeln!(f, "{place}: {done}: {subject}, valid to {not_after}")
    }
}

/// A machine in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Host {
    /// By its address.
    Address(IpAddr),
    /// By its DNS name.
    Name(String),
}

/// A node and its chassis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chassis {
    /// Names the directory.
    pub node: String,
    /// Open vSwitch's `external_ids:system-id`, which OVN calls the chassis' name.
    pub system_id: String,
}

/// Why the keys could not be made.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// A file or directory can't be read or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The same command is running.
    #[error("another podwire-controller keys is running in {}", .0.display())]
    Locked(PathBuf),
    /// A CA has gone.
    #[error(
        "{} is missing, and only with it can new certificates be signed. Put it back; or begin \
         anew in another directory, and replace all keys", .0.display()
    )]
    NoAuthority(PathBuf),
    /// A CA ends before what it would sign.
    #[error(
        "{} ends on {ends}, too soon to sign certificates. Begin anew in another directory, and \
         replace all keys", .file.display()
    )]
    AuthorityEnds {
        /// Its certificate.
        file: PathBuf,
        /// When it ends.
        ends: Timestamp,
    },
    /// A CA's files can't be used.
    #[error("{} can't be used: {problem}", .file.display())]
    Authority {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The machines of the databases are unknown.
    #[error(
        "--server is missing: name each address or name by which nodes and controllers reach the \
         machines with OVN's databases, as in --server 192.0.2.1"
    )]
    NoServer,
    /// The certificate that says who a node is can't be read.
    #[error("{error}; name the node by --chassis {node}=SYSTEM-ID")]
    UnknownChassis {
        /// The node.
        node: String,
        /// Why its certificate can't be read.
        error: CertificateError,
    },
    /// Two nodes have one chassis.
    #[error(
        "the nodes {one} and {other} have the same system-id, {system_id}: a cloned machine has \
         that of its original. Give each machine one of its own, or remove the directory of a node \
         that is gone"
    )]
    SameChassis {
        /// A node.
        one: String,
        /// Another.
        other: String,
        /// The identity of both.
        system_id: String,
    },
    /// A certificate can't be made.
    #[error("sign {}: {source}", .file.display())]
    Sign {
        /// Its file.
        file: PathBuf,
        /// Why.
        source: rcgen::Error,
    },
}

/// A CA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ca {
    Controllers,
    Chassis,
}

/// What a certificate is for.
#[derive(Clone, Debug)]
enum Purpose {
    Server(Vec<Host>),
    Client,
}

/// A key with its certificate, as it should be.
#[derive(Clone, Debug)]
struct Wanted {
    /// Below the directory of the keys.
    place: PathBuf,
    ca: Ca,
    common_name: String,
    purpose: Purpose,
}

/// Makes what is missing, renews what ends soon, and returns what it has done.
///
/// # Errors
/// See [`KeysError`].
pub fn make(args: &KeysArgs) -> Result<Vec<Made>, KeysError> {
    let directory = &args.directory;
    files::make_directory(directory)?;
    let _lock = files::lock(directory)?;
    let wanted = wanted(args)?;
    let mut report = Vec::new();
    let mut authorities = Vec::new();
    for ca in [Ca::Controllers, Ca::Chassis] {
        let is_new = !wanted
            .iter()
            .any(|it| it.ca == ca && has_files(directory, it));
        let (authority, made) = Authority::open(&directory.join("ca"), ca, is_new)?;
        if made {
            let place = format!("ca/{}", ca.file());
            report.push(Made::of(place, "made".to_owned(), authority.certificate()));
        }
        authorities.push((ca, authority));
    }
    for it in &wanted {
        let authority = authorities.iter().find(|(ca, _)| *ca == it.ca);
        let (_, authority) = authority.expect("both CAs were opened above");
        let keys = keys(&directory.join(&it.place));
        let (verb, certificate) = match reason(it, &keys, authority, args.renew) {
            Ok(certificate) => ("kept".to_owned(), certificate),
            Err(reason) => {
                let certificate = authority.sign(it, &keys, args.days)?;
                (reason, certificate)
            }
        };
        report.push(Made::of(it.place.display().to_string(), verb, &certificate));
    }
    Ok(report)
}

impl Made {
    fn of(place: String, done: String, certificate: &Certificate) -> Self {
        Self {
            place,
            done,
            subject: certificate.subject.to_string(),
            not_after: certificate.not_after.to_string(),
        }
    }
}

/// All keys that there should be.
fn wanted(args: &KeysArgs) -> Result<Vec<Wanted>, KeysError> {
    let servers = servers(args)?;
    let fixed = [
        (
            "northbound",
            Ca::Controllers,
            Purpose::Server(servers.clone()),
        ),
        ("southbound", Ca::Chassis, Purpose::Server(servers)),
        ("controller", Ca::Controllers, Purpose::Client),
    ];
    let fixed = fixed.into_iter().map(|(name, ca, purpose)| Wanted {
        place: name.into(),
        ca,
        common_name: format!("podwire {name}"),
        purpose,
    });
    let nodes = chassis(args)?.into_iter().map(|(node, system_id)| Wanted {
        place: Path::new(CHASSIS).join(node),
        ca: Ca::Chassis,
        common_name: system_id,
        purpose: Purpose::Client,
    });
    Ok(fixed.chain(nodes).collect())
}

/// The directory of the nodes' directories.
const CHASSIS: &str = "chassis";

/// The machines with the databases.
fn servers(args: &KeysArgs) -> Result<Vec<Host>, KeysError> {
    if !args.servers.is_empty() {
        return Ok(args.servers.clone());
    }
    let known = ["northbound", "southbound"].into_iter().find_map(|place| {
        let hosts = hosts_of(&keys(&args.directory.join(place)).own().ok()?);
        (!hosts.is_empty()).then_some(hosts)
    });
    known.ok_or(KeysError::NoServer)
}

/// The nodes: those that are named, and those whose directories are there.
fn chassis(args: &KeysArgs) -> Result<BTreeMap<String, String>, KeysError> {
    let named = args.chassis.iter().cloned();
    let mut nodes: BTreeMap<String, String> = named.map(|it| (it.node, it.system_id)).collect();
    let directory = args.directory.join(CHASSIS);
    for node in files::directories(&directory)? {
        if nodes.contains_key(&node) {
            continue;
        }
        let own = keys(&directory.join(&node)).own();
        let system_id = own.map(|certificate| certificate.common_name.unwrap_or_default());
        let system_id = system_id.map_err(|error| {
            let node = node.clone();
            KeysError::UnknownChassis { node, error }
        })?;
        nodes.insert(node, system_id);
    }
    let mut by_id: BTreeMap<&String, &String> = BTreeMap::new();
    for (node, system_id) in &nodes {
        if let Some(other) = by_id.insert(system_id, node) {
            return Err(KeysError::SameChassis {
                one: other.clone(),
                other: node.clone(),
                system_id: system_id.clone(),
            });
        }
    }
    Ok(nodes)
}

/// The files of a key below its directory, named as in Secrets of the type kubernetes.io/tls.
fn keys(place: &Path) -> TlsKeys {
    TlsKeys {
        private_key: place.join("tls.key"),
        certificate: place.join("tls.crt"),
        ca_certificate: place.join("ca.crt"),
    }
}

fn has_files(directory: &Path, wanted: &Wanted) -> bool {
    keys(&directory.join(&wanted.place)).certificate.exists()
}

/// The certificate, if it is as it should be; or why it is made.
fn reason(
    wanted: &Wanted,
    keys: &TlsKeys,
    authority: &Authority,
    renew: bool,
) -> Result<Certificate, String> {
    if !keys.certificate.exists() {
        return Err("made".to_owned());
    }
    let certificate = keys.check().map_err(|error| format!("renewed, {error}"))?;
    if renew {
        return Err("renewed, as --renew says".to_owned());
    }
    if certificate.issuer != authority.certificate().subject || !authority.is_in(keys) {
        return Err("renewed, another CA had signed it".to_owned());
    }
    match outdated(wanted, &certificate, Timestamp::now()) {
        Some(why) => Err(format!("renewed, {why}")),
        None => Ok(certificate),
    }
}

/// Why a certificate that could be used is not as it should be.
fn outdated(wanted: &Wanted, certificate: &Certificate, now: Timestamp) -> Option<String> {
    if certificate.common_name.as_ref() != Some(&wanted.common_name) {
        return Some(format!("it was for {}", certificate.subject));
    }
    if let Purpose::Server(hosts) = &wanted.purpose {
        let hosts: BTreeSet<&Host> = hosts.iter().collect();
        let has = hosts_of(certificate);
        if hosts != has.iter().collect() {
            return Some("its addresses were others".to_owned());
        }
    }
    let left = certificate.not_after.duration_since(now);
    let whole = certificate.not_after.duration_since(certificate.not_before);
    (left < whole / 3).then(|| format!("it had {} days left", left.as_hours() / 24))
}

/// The machines in a certificate.
fn hosts_of(certificate: &Certificate) -> Vec<Host> {
    let addresses = certificate.addresses.iter().copied().map(Host::Address);
    let names = certificate.names.iter().cloned().map(Host::Name);
    addresses.chain(names).collect()
}

impl Ca {
    /// The name of its files in `ca/`.
    fn file(self) -> &'static str {
        match self {
            Self::Controllers => "controllers",
            Self::Chassis => CHASSIS,
        }
    }
}

impl FromStr for Host {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            return match address.is_unspecified() {
                true => Err("it is no machine's address".to_owned()),
                false => Ok(Self::Address(address)),
            };
        }
        let is_label = |label: &str| {
            let mut bytes = label.bytes();
            bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.is_empty()
                && !label.starts_with('-')
        };
        match text.len() <= 253 && text.split('.').all(is_label) {
            true => Ok(Self::Name(text.to_owned())),
            false => Err("expected an address or a DNS name, as in 192.0.2.1".to_owned()),
        }
    }
}

impl FromStr for Chassis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (node, system_id) = text.split_once('=').unwrap_or((text, ""));
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        if node.is_empty()
            || node.len() > 253
            || node.starts_with('.')
            || !node.bytes().all(is_name)
        {
            return Err(
                "expected NODE=SYSTEM-ID, with a node's name of a-z, 0-9, '-' and '.'".to_owned(),
            );
        }
        // As ovs-vsctl prints it.
        let system_id = system_id.trim().trim_matches('"');
        // RFC 5280's ub-common-name is 64 characters.
        let is_one = |byte: u8| byte.is_ascii_graphic() && byte != b'"';
        match (1..=64).contains(&system_id.len()) && system_id.bytes().all(is_one) {
            true => Ok(Self {
                node: node.to_owned(),
                system_id: system_id.to_owned(),
            }),
            false => Err(format!(
                "expected the system-id behind {node}=, 1 to 64 characters, as `ovs-vsctl get \
                 open_vswitch . external_ids:system-id` prints it on the node"
            )),
        }
    }
}

#[cfg(test)]
mod tests;
