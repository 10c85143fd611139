//! firewalld, over D-Bus. It rejects what arrives at a link or is forwarded from one, unless the
//! zone of the link or of the sender's address allows it, whatever other tables say. So the pods'
//! link and addresses are put into a zone that accepts everything, and tunnel packets are accepted
//! on the uplink.
//!
//! These settings belong to its runtime configuration and end when it reloads, which it signals;
//! they are added to its permanent configuration only if requested.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use zbus::message::Type;
use zbus::zvariant::DynamicType;
use zbus::{Connection, MatchRule, Message, OwnedObjectPath};

use crate::FIREWALLD;
use crate::bus::Signals;

/// The zone that accepts everything.
pub(crate) const TRUSTED: &str = "trusted";

/// Time limit of an answer. A reloading firewalld answers when it is done.
const LIMIT: Duration = Duration::from_secs(2);

const NAME: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const CONFIG_PATH: &str = "/org/fedoraproject/FirewallD1/config";
/// Interfaces: zones of the runtime and of the permanent configuration, and one zone of the latter.
const RUNTIME: &str = "org.fedoraproject.FirewallD1.zone";
const CONFIG: &str = "org.fedoraproject.FirewallD1.config";
const CONFIG_ZONE: &str = "org.fedoraproject.FirewallD1.config.zone";
/// The prefixes of its errors for what is already so (firewall/errors.py).
const DONE: [&str; 2] = ["ALREADY_ENABLED", "NOT_ENABLED"];

/// One setting of a zone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Rule {
    pub(crate) zone: String,
    pub(crate) what: RuleKind,
    /// Whether it belongs to the permanent configuration.
    pub(crate) permanent: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RuleKind {
    /// The zone of a link.
    Interface(String),
    /// The zone of these senders.
    Source(IpNet),
    /// A UDP port that the zone accepts.
    Port(u16),
}

impl RuleKind {
    /// firewalld's name for it, and its value.
    fn of_firewalld(&self) -> (&'static str, String) {
        match self {
            Self::Interface(link) => ("Interface", link.clone()),
            Self::Source(net) => ("Source", net.to_string()),
            Self::Port(port) => ("Port", port.to_string()),
        }
    }
}

impl Rule {
    /// The key that marks a permanent one as podwire's, and the runtime one derived from it.
    pub(crate) fn mark(&self) -> String {
        let permanent = Self {
            permanent: true,
            ..self.clone()
        };
        let text = serde_json::to_string(&permanent).unwrap_or_default();
        format!("{FIREWALLD}{text}")
    }

    /// The rules for such a key.
    pub(crate) fn of_mark(key: &str) -> Option<[Self; 2]> {
        let permanent: Self = serde_json::from_str(key.strip_prefix(FIREWALLD)?).ok()?;
        let runtime = Self {
            permanent: false,
            ..permanent.clone()
        };
        Some([runtime, permanent])
    }
}

/// The connection to firewalld.
#[derive(Debug, Clone)]
pub(crate) struct Firewalld(Connection);

/// firewalld's state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ObservedFirewalld {
    /// The zone of the uplink; None if it does not answer.
    pub(crate) uplink_zone: Option<String>,
    /// The zones of the requested rules' subjects, if they are in one.
    pub(crate) rules: BTreeMap<Rule, String>,
}

impl Firewalld {
    /// Connects to the system bus; None if there is none.
    pub(crate) async fn connect() -> Option<Self> {
        let connecting = zbus::connection::Builder::system().method_timeout(LIMIT);
        let connection = timeout(LIMIT, connecting.build()).await.ok()?.ok()?;
        Some(Self(connection))
    }

    /// Its state for this uplink; None if it does not run.
    pub(crate) async fn observe(&self, uplink: &str) -> Option<ObservedFirewalld> {
        let bus = "org.freedesktop.DBus";
        let path = "/org/freedesktop/DBus";
        let owned = self
            .0
            .call_method(Some(bus), path, Some(bus), "NameHasOwner", &NAME);
        if !owned.await.ok()?.body().deserialize::<bool>().ok()? {
            return None;
        }
        let zone = async {
            let zone: String = self
                .ask(PATH, RUNTIME, "getZoneOfInterface", &uplink)
                .await?;
            match zone.is_empty() {
                true => self.ask(PATH, NAME, "getDefaultZone", &()).await,
                false => Ok(zone),
            }
        };
        Some(ObservedFirewalld {
            uplink_zone: zone.await.ok(),
            rules: BTreeMap::new(),
        })
    }

    /// The zone of a rule's subject.
    ///
    /// # Errors
    /// It does not answer.
    pub(crate) async fn zone_of(&self, rule: &Rule) -> zbus::Result<Option<String>> {
        let (path, interface) = match rule.permanent {
            true => (CONFIG_PATH, CONFIG),
            false => (PATH, RUNTIME),
        };
        let (kind, value) = rule.what.of_firewalld();
        let value = value.as_str();
        let zone: String = match (&rule.what, rule.permanent) {
            (RuleKind::Interface(_) | RuleKind::Source(_), _) => {
                let method = format!("getZoneOf{kind}");
                self.ask(path, interface, &method, &value).await?
            }
            (RuleKind::Port(_), permanent) => {
                let method = format!("query{kind}");
                let is_open = match permanent {
                    true => {
                        let path = self.permanent(&rule.zone).await?;
                        let asked = (value, "udp");
                        self.ask(path.as_str(), CONFIG_ZONE, &method, &asked)
                            .await?
                    }
                    false => {
                        let asked = (rule.zone.as_str(), value, "udp");
                        self.ask(PATH, RUNTIME, &method, &asked).await?
                    }
                };
                match is_open {
                    true => rule.zone.clone(),
                    false => String::new(),
                }
            }
        };
        Ok(Some(zone).filter(|zone| !zone.is_empty()))
    }

    /// Adds or removes a rule.
    ///
    /// # Errors
    /// firewalld's; none if it is already so.
    pub(crate) async fn set(&self, rule: &Rule, so: bool) -> zbus::Result<()> {
        let verb = if so { "add" } else { "remove" };
        let (kind, value) = rule.what.of_firewalld();
        let method = format!("{verb}{kind}");
        let (zone, value) = (rule.zone.as_str(), value.as_str());
        let done = match (&rule.what, rule.permanent) {
            (RuleKind::Interface(_) | RuleKind::Source(_), false) => {
                self.call(PATH, RUNTIME, &method, &(zone, value)).await
            }
            (RuleKind::Port(_), false) if so => {
                // Permanently: the last argument is a time in seconds.
                let asked = (zone, value, "udp", 0_i32);
                self.call(PATH, RUNTIME, &method, &asked).await
            }
            (RuleKind::Port(_), false) => {
                let asked = (zone, value, "udp");
                self.call(PATH, RUNTIME, &method, &asked).await
            }
            (what, true) => {
                let path = self.permanent(zone).await?;
                let path = path.as_str();
                match what {
                    RuleKind::Interface(_) | RuleKind::Source(_) => {
                        self.call(path, CONFIG_ZONE, &method, &value).await
                    }
                    RuleKind::Port(_) => {
                        let asked = (value, "udp");
                        self.call(path, CONFIG_ZONE, &method, &asked).await
                    }
                }
            }
        };
        match done {
            Err(zbus::Error::MethodError(_, Some(text), _))
                if DONE.iter().any(|done| text.starts_with(done)) =>
            {
                Ok(())
            }
            done => done.map(drop),
        }
    }

    async fn permanent(&self, zone: &str) -> zbus::Result<OwnedObjectPath> {
        let path = self
            .call(CONFIG_PATH, CONFIG, "getZoneByName", &zone)
            .await?;
        path.body().deserialize()
    }

    async fn ask<B, A>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> zbus::Result<A>
    where
        B: Serialize + DynamicType,
        A: for<'d> zbus::zvariant::DynamicDeserialize<'d>,
    {
        let reply = self.call(path, interface, method, body).await?;
        let body = reply.body();
        body.deserialize()
    }

    async fn call<B: Serialize + DynamicType>(
        &self,
        path: &str,
        interface: &str,
        method: &str,
        body: &B,
    ) -> zbus::Result<Message> {
        let to = Some(NAME);
        self.0
            .call_method(to, path, Some(interface), method, body)
            .await
    }

    /// Its signals, and the bus' about its start and end.
    ///
    /// # Errors
    /// The bus does not answer.
    pub(crate) async fn signals(&self) -> zbus::Result<Signals> {
        let signal = || MatchRule::builder().msg_type(Type::Signal);
        let own = signal().path_namespace(PATH).build()?;
        let owner = signal()
            .interface("org.freedesktop.DBus")
            .member("NameOwnerChanged")
            .arg(0, NAME)
            .build()?;
        Signals::listen(&self.0, [own, owner]).await
    }
}

/// In the form of `plan`.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { zone, what, .. } = self;
        match what {
            RuleKind::Interface(link) => write!(f, "link {link} in zone {zone}")?,
            RuleKind::Source(net) => write!(f, "{net} in zone {zone}")?,
            RuleKind::Port(port) => write!(f, "UDP port {port} in zone {zone}")?,
        }
        f.write_str(if self.permanent { " for good" } else { "" })
    }
}
