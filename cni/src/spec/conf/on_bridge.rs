//! The members of ovs-cni: the bridge that an attachment's port is on, its VLANs and its number.

use std::fmt;
use std::str::FromStr;

use serde_json::Value;

use crate::spec::FieldError;
use crate::spec::fields::{Fields, is_valid_ifname};

/// The name of ovs-cni's plugin.
pub const OVS_CNI: &str = "ovs";

/// The last VLAN; 4095 is reserved (IEEE 802.1Q, table 9-2).
const LAST_VLAN: u16 = 4094;
/// The last number of an OpenFlow port, as ovs-cni and ovs-vswitchd.conf.db(5) have it.
const LAST_OFPORT: u16 = 65_279;

/// Where the port of an attachment is, by ovs-cni's members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OnBridge {
    /// `bridge`; absent for a logical port of OVN.
    pub bridge: Option<String>,
    /// `vlan` and `trunk`.
    pub vlan: Vlan,
    /// `ofport_request`; 0 in the configuration is none.
    pub ofport_request: Option<u16>,
    /// `socket_file`: the path of Open vSwitch's database.
    pub socket_file: Option<String>,
}

/// The VLANs of a port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vlan {
    /// The VLAN of packets without a tag.
    pub tag: Option<u16>,
    /// The VLANs of packets with a tag; without `tag`, none means all.
    pub trunks: Vlans,
}

/// VLANs as ranges, sorted, that neither overlap nor touch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vlans(Vec<(u16, u16)>);

impl Vlan {
    /// `vlan_mode` of the Port row (ovs-vswitchd.conf.db(5), Port, "VLAN Configuration").
    pub fn mode(&self) -> &'static str {
        match (self.tag, self.trunks.is_empty()) {
            (None, _) => "trunk",
            (Some(_), true) => "access",
            (Some(_), false) => "native-untagged",
        }
    }
}

/// `vlan_mode access, tag 100`, `vlan_mode trunk, trunks 42,1000-1010`.
impl fmt::Display for Vlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vlan_mode {}", self.mode())?;
        if let Some(tag) = self.tag {
            write!(f, ", tag {tag}")?;
        }
        match self.trunks.is_empty() {
            true => Ok(()),
            false => write!(f, ", trunks {}", self.trunks),
        }
    }
}

/// Reads what [`Display`](fmt::Display) wrote.
impl FromStr for Vlan {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut vlan = Self::default();
        let mut parts = text.split(", ");
        let mode = parts.next().ok_or(())?;
        for part in parts {
            match part.split_once(' ').ok_or(())? {
                ("tag", tag) => vlan.tag = Some(tag.parse().map_err(|_| ())?),
                ("trunks", trunks) => vlan.trunks = trunks.parse()?,
                _ => return Err(()),
            }
        }
        match mode.strip_prefix("vlan_mode ") == Some(vlan.mode()) {
            true => Ok(vlan),
            false => Err(()),
        }
    }
}

impl Vlans {
    /// Ranges in any order, each with its first and its last VLAN.
    pub fn of(ranges: impl IntoIterator<Item = (u16, u16)>) -> Self {
        let mut ranges: Vec<(u16, u16)> = ranges.into_iter().collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u16, u16)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some((_, end)) if first <= end.saturating_add(1) => *end = last.max(*end),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each VLAN.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }
}

/// `42,1000-1010`.
impl fmt::Display for Vlans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (first, last)) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Vlans {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| text.parse::<u16>().map_err(|_| ());
        let range = |text: &str| match text.split_once('-') {
            Some((first, last)) => Ok((number(first)?, number(last)?)),
            None => Ok((number(text)?, number(text)?)),
        };
        let ranges = text.split(',').map(range);
        Ok(Self::of(ranges.collect::<Result<Vec<_>, ()>>()?))
    }
}

/// The members of a configuration; None if it has none of them.
pub(super) fn read(fields: &mut Fields, plugin_type: &str) -> Result<Option<OnBridge>, FieldError> {
    let link = "a bridge's name: 1 to 15 characters without '/', ':', '%' and white space";
    let bridge = fields.parsed("bridge", link, |text| {
        is_valid_ifname(text).then(|| text.to_owned())
    })?;
    let is_ovs_cni = plugin_type == OVS_CNI;
    if bridge.is_none() && !is_ovs_cni {
        return without_bridge(fields);
    }
    refuse_unserved(fields)?;
    let tag = fields.number("vlan", "a VLAN, 0 to 4094", is_vlan)?;
    let trunks = fields.list("trunk", trunk)?;
    let ofport = "an OpenFlow port, 1 to 65279";
    let ofport_request = fields
        .number("ofport_request", ofport, |it| *it <= LAST_OFPORT)?
        .filter(|ofport| *ofport != 0);
    let socket_file = fields.string("socket_file")?;
    // Waits of podwire end by events, and have the ADD's deadline.
    for unused in ["link_state_check_retries", "link_state_check_interval"] {
        fields.number(unused, "a number", |_: &u64| true)?;
    }
    // It would have the agent, which is root, read a file that a configuration names.
    fields.string("configuration_path")?;
    Ok(Some(OnBridge {
        bridge,
        vlan: Vlan {
            tag,
            trunks: Vlans::of(trunks.into_iter().flatten()),
        },
        ofport_request,
        socket_file,
    }))
}

/// Without a bridge, members of ovs-cni would be without effect.
fn without_bridge(fields: &mut Fields) -> Result<Option<OnBridge>, FieldError> {
    for name in ["vlan", "trunk", "ofport_request", "interface_type"] {
        if let Some(value) = fields.take(name) {
            let expected = "for a configuration without \"bridge\"";
            return Err(FieldError::invalid(name, &value, expected));
        }
    }
    Ok(None)
}

/// What ovs-cni has and podwire does not.
fn refuse_unserved(fields: &mut Fields) -> Result<(), FieldError> {
    fields.parsed(
        "deviceID",
        "served: podwire's ports are veth pairs, not VFs",
        |_| None::<()>,
    )?;
    let expected = "served: a pod's port is one end of a veth pair, which is of type \"system\"";
    fields.parsed("interface_type", expected, |kind| {
        (kind == "system").then_some(())
    })?;
    if fields.mentions("netAttachDefName") {
        let value = Value::from("netAttachDefName");
        return Err(FieldError::invalid(
            "bridge",
            &value,
            "a member of the same configuration: it is of a network of OVN",
        ));
    }
    Ok(())
}

fn is_vlan(vlan: &u16) -> bool {
    *vlan <= LAST_VLAN
}

/// The ranges of one element of `trunk`: `id`, `minID` and `maxID`, or both.
fn trunk(path: String, value: Value) -> Result<Vec<(u16, u16)>, FieldError> {
    let mut fields = Fields::of(&path, value)?;
    let mut vlan = |name| fields.number(name, "a VLAN, 0 to 4094", is_vlan);
    let (id, first, last) = (vlan("id")?, vlan("minID")?, vlan("maxID")?);
    let mut ranges: Vec<(u16, u16)> = id.into_iter().map(|id| (id, id)).collect();
    match (first, last) {
        (None, None) if id.is_none() => return Err(fields.missing("id")),
        (None, None) => {}
        (Some(_), None) => return Err(fields.missing("maxID")),
        (None, Some(_)) => return Err(fields.missing("minID")),
        (Some(first), Some(last)) if last < first => {
            let (field, expected) = (fields.path("maxID"), format!("minID, {first}, or more"));
            return Err(FieldError::invalid(field, &Value::from(last), expected));
        }
        (Some(first), Some(last)) => ranges.push((first, last)),
    }
    Ok(ranges)
}
