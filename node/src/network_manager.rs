//! NetworkManager, over D-Bus: what it says of a NIC, a profile for the bridge that the NIC is
//! moved into, and who configures which of the two.
//!
//! The profile is in its memory, below /run: a boot forgets it, and the NIC comes up by the
//! machine's own profile. The NIC is left to nobody meanwhile, which changes nothing on it. Its
//! checkpoints are not used: their rollback knows nothing of the bridge, and would put addresses on
//! a NIC that is a port (docs/decisions/0166).

mod profile;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use zbus::message::Type;
use zbus::wire::{DynamicDeserialize, DynamicType};
use zbus::{Connection, MatchRule, OwnedObjectPath, OwnedVariant};

pub(crate) use profile::{StandIns, Told};

use crate::bus::Signals;

/// Time limit of an answer, and of a device's next state. The NIC's addresses are there meanwhile,
/// and a guard waits longer.
const LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at what nobody tells of.
const PAUSE: Duration = Duration::from_millis(5);

const NAME: &str = "org.freedesktop.NetworkManager";
const PATH: &str = "/org/freedesktop/NetworkManager";
const SETTINGS_PATH: &str = "/org/freedesktop/NetworkManager/Settings";
const SETTINGS: &str = "org.freedesktop.NetworkManager.Settings";
const PROFILE: &str = "org.freedesktop.NetworkManager.Settings.Connection";
const DEVICE: &str = "org.freedesktop.NetworkManager.Device";
const ACTIVE: &str = "org.freedesktop.NetworkManager.Connection.Active";

/// The profile of the bridge, under the name that configure-ovs.sh gives it. Where there are two of
/// it, the other one is not in memory.
const ID: &str = "ovs-if-br-ex";
const UUID: &str = "0d1c5b0e-6b0f-4f0e-9d7e-b2a1c7f5e6a4";
/// Where NetworkManager keeps it.
const FILE: &str = "/run/NetworkManager/system-connections/ovs-if-br-ex.nmconnection";

/// NMSettingsAddConnection2Flags and NMSettingsUpdate2Flags: in memory, and not activated by
/// itself.
const IN_MEMORY: u32 = 0x2;
const BLOCK_AUTOCONNECT: u32 = 0x20;
/// NMDeviceState.
const UNAVAILABLE: u32 = 20;
const DISCONNECTED: u32 = 30;
const PREPARE: u32 = 40;
const IP_CONFIG: u32 = 70;
const ACTIVATED: u32 = 100;
const DEACTIVATING: u32 = 110;
const FAILED: u32 = 120;
/// NM_ACTIVATION_STATE_FLAG_EXTERNAL, of an active connection: another program's, only shown.
const EXTERNAL: u32 = 0x80;
/// NM_CAPABILITY_OVS: its plugin for Open vSwitch is there.
const OVS: u32 = 2;

/// A profile: its settings by section and name.
type Settings = BTreeMap<String, BTreeMap<String, OwnedVariant>>;

/// A link that it configures.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Managed {
    /// The profile's UUID and name.
    uuid: String,
    id: String,
    settings: Settings,
    /// The metric of its routes.
    metric: Option<u32>,
    /// What its DHCP servers know it by: client identifier, DUID and identity association.
    client_id: Option<String>,
    duid: Option<String>,
    iaid: Option<String>,
    /// Why it can't do so for a bridge.
    reasons: Vec<String>,
    /// Whether it has done all that the profile says.
    pub(crate) is_done: bool,
}

/// What it is told.
#[derive(Debug)]
pub(crate) enum Deed {
    /// To know the bridge's profile.
    Add(Told),
    /// To leave a link to nobody, as it is.
    LetGo(String),
    /// To configure the bridge by its profile.
    Take(String),
    /// To drop the stand-ins of the bridge's profile.
    Settle(String, Told),
    /// To configure the NIC by its own profile again, and by what stands in for a lease.
    TakeBack(String, StandIns),
    /// To drop the stand-ins of the NIC.
    SettleBack(String),
    /// To forget the bridge's profile.
    Forget,
}

/// Why it did not do so.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkManagerError {
    #[error("ask NetworkManager over D-Bus: {0}")]
    Bus(#[from] zbus::Error),
    #[error("NetworkManager does not answer {asked} within {limit} ms", limit = LIMIT.as_millis())]
    Silent { asked: String },
    #[error("NetworkManager has not begun to configure {link} within {limit} ms: its state is \
             {state}", limit = LIMIT.as_millis())]
    State { link: String, state: u32 },
    #[error("for {limit} ms NetworkManager has had IPv6 off on {link}; its profile has it on",
        limit = LIMIT.as_millis())]
    Ipv6Off { link: String },
}

type Result<T> = std::result::Result<T, NetworkManagerError>;

/// Whether it was told to configure the bridge.
pub(crate) fn is_told() -> bool {
    let text = std::fs::read_to_string(FILE).unwrap_or_default();
    text.contains(UUID)
}

impl Managed {
    /// What it says of a link; None if it does not configure it.
    pub(crate) async fn look(link: &str, index: u32) -> Option<Self> {
        let state = std::fs::read_to_string(format!("/run/NetworkManager/devices/{index}")).ok()?;
        let value = |wanted: &str| {
            let mut lines = state.lines().filter_map(|line| line.split_once('='));
            lines.find_map(|(key, value)| (key == wanted).then_some(value))
        };
        if value("connection-uuid") == Some(UUID) {
            return None;
        }
        if value("managed") != Some("true") || !Path::new("/run/dbus").exists() {
            return None;
        }
        let metric = value("route-metric-default-effective");
        let metric = metric.and_then(|metric| metric.parse().ok());
        let asked = async {
            let bus = Bus::connect().await?;
            bus.managed(link).await
        };
        let managed = match asked.await {
            Ok(managed) => managed?,
            Err(error) => Self {
                reasons: vec![error.to_string()],
                ..Self::default()
            },
        };
        Some(Self { metric, ..managed })
    }

    /// Whether it is bound to renew what has a lifetime.
    pub(crate) fn renews(&self) -> bool {
        self.reasons.is_empty()
    }
}

/// NetworkManager on the system's bus.
struct Bus(Connection);

async fn in_time<T>(asked: &str, answer: impl Future<Output = zbus::Result<T>>) -> Result<T> {
    let answer = timeout(LIMIT, answer).await;
    let silent = |_| NetworkManagerError::Silent {
        asked: asked.to_owned(),
    };
    Ok(answer.map_err(silent)??)
}

impl Bus {
    async fn connect() -> Result<Self> {
        let connection = in_time("a connection", Connection::system());
        Ok(Self(connection.await?))
    }

    async fn call<B, A>(&self, path: &str, interface: &str, method: &str, body: &B) -> Result<A>
    where
        B: Serialize + DynamicType,
        A: for<'d> DynamicDeserialize<'d>,
    {
        let (to, interface) = (Some(NAME), Some(interface));
        let answer = self.0.call_method(to, path, interface, method, body);
        Ok(in_time(method, answer).await?.body().deserialize()?)
    }

    async fn get<T>(&self, path: &str, interface: &str, name: &str) -> Result<T>
    where
        T: TryFrom<OwnedVariant, Error = zbus::Error>,
    {
        let properties = "org.freedesktop.DBus.Properties";
        let value: OwnedVariant = self
            .call(path, properties, "Get", &(interface, name))
            .await?;
        Ok(T::try_from(value)?)
    }

    async fn device(&self, link: &str) -> Result<OwnedObjectPath> {
        self.call(PATH, NAME, "GetDeviceByIpIface", &link).await
    }

    /// The profile that a device has been activated by; None without one.
    async fn profile_of(&self, device: &str) -> Result<Option<(OwnedObjectPath, u32)>> {
        let active: OwnedObjectPath = self.get(device, DEVICE, "ActiveConnection").await?;
        if active.as_str() == "/" {
            return Ok(None);
        }
        let profile = self.get(active.as_str(), ACTIVE, "Connection").await?;
        let flags = self.get(active.as_str(), ACTIVE, "StateFlags").await?;
        Ok(Some((profile, flags)))
    }

    /// Whether a device has been activated by this profile. What it had may go at any time.
    async fn is_by(&self, device: &OwnedObjectPath, profile: &OwnedObjectPath) -> bool {
        let seen = self.profile_of(device.as_str()).await;
        matches!(seen, Ok(Some((seen, _))) if seen == *profile)
    }

    async fn managed(&self, link: &str) -> Result<Option<Managed>> {
        let device = self.device(link).await?;
        let device = device.as_str();
        if !self.get::<bool>(device, DEVICE, "Managed").await? {
            return Ok(None);
        }
        let Some((profile, flags)) = self.profile_of(device).await? else {
            let reasons = vec![format!(
                "NetworkManager has no profile for {link}, and would configure it by the next one \
                 that fits: give it one, or leave {link} alone by `nmcli device set {link} managed \
                 no`"
            )];
            return Ok(Some(Managed {
                reasons,
                ..Managed::default()
            }));
        };
        // What is in effect, which may differ from the profile as it is stored.
        let (settings, _): (Settings, u64) = self
            .call(device, DEVICE, "GetAppliedConnection", &0_u32)
            .await?;
        let options = async |which: &str, interface: &str| -> Result<_> {
            let path: OwnedObjectPath = self.get(device, DEVICE, which).await?;
            if path.as_str() == "/" {
                return Ok(BTreeMap::new());
            }
            let properties = "org.freedesktop.DBus.Properties";
            let name = format!("{NAME}.{interface}");
            let asked = (&*name, "Options");
            let options: OwnedVariant = self.call(path.as_str(), properties, "Get", &asked).await?;
            Ok(BTreeMap::<String, OwnedVariant>::try_from(options)?)
        };
        let (v4, v6) = (
            options("Dhcp4Config", "DHCP4Config").await?,
            options("Dhcp6Config", "DHCP6Config").await?,
        );
        let of = |options: &BTreeMap<String, OwnedVariant>, name: &str| {
            options.get(name).and_then(profile::text)
        };
        let capabilities: Vec<u32> = self.get(PATH, NAME, "Capabilities").await?;
        let mut managed = Managed {
            uuid: profile::of(&settings, "connection", "uuid").unwrap_or_default(),
            id: profile::of(&settings, "connection", "id").unwrap_or_default(),
            client_id: of(&v4, "dhcp_client_identifier"),
            duid: of(&v6, "dhcp6_client_id"),
            iaid: of(&v6, "iaid"),
            settings,
            ..Managed::default()
        };
        let file: String = self.get(profile.as_str(), PROFILE, "Filename").await?;
        managed.reasons = managed.refused(link, &file);
        let state: u32 = self.get(device, DEVICE, "State").await?;
        let is_leased = profile::of(&managed.settings, "ipv4", "method").as_deref() == Some("auto");
        managed.is_done = state == ACTIVATED && !(is_leased && v4.is_empty());
        if flags & EXTERNAL != 0 {
            managed.reasons.push(format!(
                "another program configures {link}, and NetworkManager shows it: leave {link} \
                 alone by `nmcli device set {link} managed no`"
            ));
        }
        if capabilities.contains(&OVS) {
            managed.reasons.push(format!(
                "NetworkManager has its plugin for Open vSwitch, and would make and remove bridges \
                 itself: make {} by its profiles (ovs-bridge, ovs-port, ovs-interface), and use \
                 --profile adopt",
                crate::GATEWAY
            ));
        }
        Ok(Some(managed))
    }

    /// Waits until a device is in one of these states.
    async fn reaches(&self, link: &str, states: Range<u32>) -> Result<OwnedObjectPath> {
        self.reaches_by(None, link, states).await
    }

    /// Waits until a device is in one of these states, by this profile if one is given.
    async fn reaches_by(
        &self,
        profile: Option<&OwnedObjectPath>,
        link: &str,
        states: Range<u32>,
    ) -> Result<OwnedObjectPath> {
        let rule = MatchRule::builder().msg_type(Type::Signal);
        let rule = rule.path_namespace(PATH).build()?;
        let mut signals = Signals::listen(&self.0, [rule]).await?;
        let until = Instant::now() + LIMIT;
        loop {
            // It may not have seen the link yet.
            let device = self.device(link).await;
            // Before the state, which is that of an earlier profile otherwise.
            let is_by = match (&device, profile) {
                (Ok(device), Some(profile)) => self.is_by(device, profile).await,
                _ => true,
            };
            let state = match &device {
                Ok(device) => self.get(device.as_str(), DEVICE, "State").await?,
                Err(_) => 0,
            };
            if let Ok(device) = device
                && is_by
                && states.contains(&state)
            {
                return Ok(device);
            }
            let next = timeout_at(until, signals.next()).await;
            if state == FAILED || !matches!(next, Ok(Some(_))) {
                let link = link.to_owned();
                return Err(NetworkManagerError::State { link, state });
            }
        }
    }

    async fn find(&self, uuid: &str) -> Option<OwnedObjectPath> {
        let asked = self.call(SETTINGS_PATH, SETTINGS, "GetConnectionByUuid", &uuid);
        asked.await.ok()
    }

    /// Configures a device by a profile, unless it does so already.
    async fn activate(&self, profile: &OwnedObjectPath, link: &str) -> Result<()> {
        let device = self.reaches(link, 0..FAILED).await?;
        if self.is_by(&device, profile).await {
            return Ok(());
        }
        let none = OwnedObjectPath::try_from("/")?;
        let asked = (profile, &device, none);
        self.call::<_, OwnedObjectPath>(PATH, NAME, "ActivateConnection", &asked)
            .await?;
        Ok(())
    }

    async fn manages(&self, link: &str, so: bool) -> Result<()> {
        let device = self.reaches(link, 0..FAILED).await?;
        if self.get::<bool>(device.as_str(), DEVICE, "Managed").await? == so {
            return Ok(());
        }
        let properties = "org.freedesktop.DBus.Properties";
        let asked = (DEVICE, "Managed", zbus::Variant::from(so));
        let _: () = self
            .call(device.as_str(), properties, "Set", &asked)
            .await?;
        if !so {
            self.reaches(link, 0..UNAVAILABLE).await?;
        }
        Ok(())
    }

    /// Changes what is in effect on a link to these settings, or to its profile's without any.
    async fn reapply(&self, link: &str, settings: &Settings) -> Result<()> {
        let device = self.reaches(link, PREPARE..DEACTIVATING).await?;
        let asked = (settings, 0_u64, 0_u32);
        self.call(device.as_str(), DEVICE, "Reapply", &asked).await
    }
}

impl Deed {
    /// Whether it configures a link anew, also after its answer: it then turns IPv6 off and on, by
    /// which the kernel forgets what it has not made itself (nm-device.c, `_dev_addrgenmode6_set`).
    pub(crate) fn configures(&self) -> bool {
        match self {
            Self::Take(_) | Self::Settle(..) | Self::TakeBack(..) | Self::SettleBack(_) => true,
            Self::Add(_) | Self::LetGo(_) | Self::Forget => false,
        }
    }

    /// Does so, or finds that it is done.
    pub(crate) async fn execute(&self) -> Result<()> {
        let bus = Bus::connect().await?;
        match self {
            Self::Add(told) => {
                bus.forget().await?;
                let nothing = BTreeMap::<String, OwnedVariant>::new();
                let flags = IN_MEMORY | BLOCK_AUTOCONNECT;
                let asked = (told.with_stand_ins(), flags, nothing);
                let (_, _): (OwnedObjectPath, BTreeMap<String, OwnedVariant>) = bus
                    .call(SETTINGS_PATH, SETTINGS, "AddConnection2", &asked)
                    .await?;
                Ok(())
            }
            Self::LetGo(nic) => bus.manages(nic, false).await,
            Self::Take(bridge) => {
                let Some(profile) = bus.find(UUID).await else {
                    let link = bridge.clone();
                    return Err(NetworkManagerError::State { link, state: 0 });
                };
                bus.manages(bridge, true).await?;
                bus.reaches(bridge, DISCONNECTED..FAILED).await?;
                bus.activate(&profile, bridge).await?;
                bus.begins(bridge, Some(&profile)).await.map(drop)
            }
            Self::Settle(bridge, told) => {
                if let Some(profile) = bus.find(UUID).await {
                    let nothing = BTreeMap::<String, OwnedVariant>::new();
                    let asked = (told.settled(), IN_MEMORY, nothing);
                    let _: BTreeMap<String, OwnedVariant> = bus
                        .call(profile.as_str(), PROFILE, "Update2", &asked)
                        .await?;
                }
                bus.reapply(bridge, &Settings::new()).await
            }
            Self::TakeBack(nic, stand_ins) => bus.take_back(nic, stand_ins).await,
            Self::SettleBack(nic) => bus.reapply(nic, &Settings::new()).await,
            Self::Forget => bus.forget().await,
        }
    }
}

impl Bus {
    async fn take_back(&self, nic: &str, stand_ins: &StandIns) -> Result<()> {
        self.manages(nic, true).await?;
        let own = match self.find(UUID).await {
            Some(profile) => {
                let settings: Settings = self
                    .call(profile.as_str(), PROFILE, "GetSettings", &())
                    .await?;
                profile::nic_uuid(&settings)
            }
            None => None,
        };
        let own = match own {
            Some(uuid) => self.find(&uuid).await,
            None => None,
        };
        if let Some(own) = &own {
            self.reaches(nic, DISCONNECTED..FAILED).await?;
            self.activate(own, nic).await?;
        }
        let settings = self.begins(nic, own.as_ref()).await?;
        // The profile may have changed while the NIC was in the bridge.
        let stand_ins = stand_ins.accepted_by(&settings);
        if stand_ins.is_empty() {
            return Ok(());
        }
        self.reapply(nic, &stand_ins.beside(settings)).await
    }

    /// Waits until it configures a link, by this profile if one is given, and gives by what. What
    /// it finds configured it first shows as activated, by a profile of its own, which it then
    /// deactivates. It has IPv6 off from when it knows a link as its own until it configures that,
    /// and all IPv6 addresses go meanwhile.
    async fn begins(&self, link: &str, profile: Option<&OwnedObjectPath>) -> Result<Settings> {
        let states = IP_CONFIG..DEACTIVATING;
        let device = self.reaches_by(profile, link, states).await?;
        let (settings, _): (Settings, u64) = self
            .call(device.as_str(), DEVICE, "GetAppliedConnection", &0_u32)
            .await?;
        let method = profile::of(&settings, "ipv6", "method").unwrap_or_default();
        if ["ignore", "disabled"].contains(&&*method) {
            return Ok(settings);
        }
        // The kernel tells nobody.
        let path = format!("/proc/sys/net/ipv6/conf/{link}/disable_ipv6");
        let until = Instant::now() + LIMIT;
        while std::fs::read_to_string(&path).is_ok_and(|it| it.trim() != "0") {
            if Instant::now() > until {
                let link = link.to_owned();
                return Err(NetworkManagerError::Ipv6Off { link });
            }
            sleep(PAUSE).await;
        }
        Ok(settings)
    }

    /// The bridge is left to nobody first: a link that goes while NetworkManager deactivates it
    /// may end NetworkManager (1.42, an assertion in nm-shared-utils.c).
    async fn forget(&self) -> Result<()> {
        let Some(profile) = self.find(UUID).await else {
            return Ok(());
        };
        let profile = profile.as_str();
        let settings: Settings = self.call(profile, PROFILE, "GetSettings", &()).await?;
        let bridge = profile::of(&settings, "connection", "interface-name");
        if let Some(bridge) = bridge
            && self.device(&bridge).await.is_ok()
        {
            self.manages(&bridge, false).await?;
        }
        self.call(profile, PROFILE, "Delete", &()).await
    }
}
