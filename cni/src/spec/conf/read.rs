//! From JSON to [`NetConf`], member by member.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use macaddr::MacAddr6;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::on_bridge::{self, OVS_CNI};
use super::{
    Attachment, Bandwidth, CniArgs, ConfError, IpamConf, NetConf, RequestedIp, RuntimeConfig,
};
use crate::spec::fields::{Fields, MAX_NAME, is_valid_name};
use crate::spec::{CniVersion, Dns, FieldError, VersionError};

/// The capability in which containerd passes a pod's annotations.
const POD_ANNOTATIONS: &str = "io.kubernetes.cri.pod-annotations";
/// The maximum deadline of a configuration.
const LONGEST_TIMEOUT: u64 = 3600;

/// How to treat an invalid member.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Faults {
    Refuse,
    SetAside,
}

pub(super) fn conf(bytes: &[u8], on_fault: Faults) -> Result<NetConf, ConfError> {
    let not_json = |error: serde_json::Error| ConfError::NotJson(error.to_string());
    let raw: Box<RawValue> = serde_json::from_slice(bytes).map_err(not_json)?;
    let members: Map<String, Value> = serde_json::from_str(raw.get()).map_err(not_json)?;
    let mut fields = Fields::root(members);

    let cni_version = version(&mut fields)?;
    let name = required_name(&mut fields)?;
    let plugin_type = fields
        .string("type")?
        .ok_or_else(|| fields.missing("type"))?;

    let mut faults = FaultList::of(on_fault);
    Ok(NetConf {
        cni_version,
        name,
        on_bridge: faults.resolve(on_bridge::read(&mut fields, &plugin_type))?,
        plugin_type,
        runtime: faults.resolve(runtime_config(&mut fields))?,
        args: faults.resolve(cni_args(&mut fields))?,
        ipam: faults.resolve(ipam(&mut fields))?,
        mtu: faults.resolve(mtu(&mut fields))?,
        dns: faults.resolve(Dns::read(&mut fields))?,
        agent_socket: faults.resolve(agent_socket(&mut fields))?,
        timeout: faults.resolve(timeout(&mut fields))?,
        port_security: faults.resolve(fields.switch("portSecurity"))?,
        quiet_pods: faults.resolve(fields.switch("quietPods"))?,
        net_attach_def_name: faults.resolve(fields.string("netAttachDefName"))?,
        physical_network_name: faults.resolve(fields.string("physicalNetworkName"))?,
        is_localnet: fields.has_text("topology", "localnet"),
        capabilities: faults.resolve(capabilities(&mut fields))?,
        attachments: faults.resolve(attachments(&mut fields))?,
        prev_result: fields.take("prevResult"),
        others: fields.rest(),
        ignored: faults.ignored,
        raw,
    })
}

pub(super) struct FaultList {
    on_fault: Faults,
    ignored: Vec<FieldError>,
}

impl FaultList {
    pub(super) fn of(on_fault: Faults) -> Self {
        Self {
            on_fault,
            ignored: Vec::new(),
        }
    }

    pub(super) fn resolve<T: Default>(
        &mut self,
        member: Result<T, FieldError>,
    ) -> Result<T, FieldError> {
        match member {
            Err(fault) if self.on_fault == Faults::SetAside => {
                self.ignored.push(fault);
                Ok(T::default())
            }
            resolved => resolved,
        }
    }
}

pub(super) fn version(fields: &mut Fields) -> Result<CniVersion, ConfError> {
    match fields.string("cniVersion")? {
        Some(version) => Ok(version.parse()?),
        // ovs-cni's examples have none. Runtimes read the version of the result from the result.
        None if fields.has_text("type", OVS_CNI) => Ok(CniVersion::V0_3_1),
        None => Err(VersionError::Missing.into()),
    }
}

fn required_name(fields: &mut Fields) -> Result<String, FieldError> {
    let expected = "a network name: at most 253 letters, digits, '_', '.' and '-', the first a \
                    letter or digit";
    fields
        .parsed("name", expected, |text| {
            (is_valid_name(text) && text.len() <= MAX_NAME).then(|| text.to_owned())
        })?
        .ok_or_else(|| fields.missing("name"))
}

fn runtime_config(root: &mut Fields) -> Result<RuntimeConfig, FieldError> {
    let Some(mut fields) = root.object("runtimeConfig")? else {
        return Ok(RuntimeConfig::default());
    };
    Ok(RuntimeConfig {
        ips: fields.list("ips", requested_ip)?,
        mac: mac(&mut fields)?,
        pod_annotations: pod_annotations(&mut fields)?,
        bandwidth: bandwidth(&mut fields)?,
        others: fields.rest(),
    })
}

/// Only `args.cni` concerns podwire; the rest of `args` belongs to others.
fn cni_args(root: &mut Fields) -> Result<CniArgs, FieldError> {
    let Some(mut args) = root.object("args")? else {
        return Ok(CniArgs::default());
    };
    let Some(mut fields) = args.object("cni")? else {
        return Ok(CniArgs::default());
    };
    // ovs-cni takes these two in any case, as annotations are written by hand.
    for name in ["mac", "ovnPort"] {
        fields.respell(name);
    }
    Ok(CniArgs {
        ips: fields.list("ips", requested_ip)?,
        mac: mac(&mut fields)?,
        ovn_port: fields.string("ovnPort")?,
        others: fields.rest(),
    })
}

fn requested_ip(path: String, value: Value) -> Result<RequestedIp, FieldError> {
    value.as_str().and_then(RequestedIp::parse).ok_or_else(|| {
        FieldError::invalid(
            path,
            &value,
            "an IP address, with or without a prefix length",
        )
    })
}

fn mac(fields: &mut Fields) -> Result<Option<MacAddr6>, FieldError> {
    fields.parsed("mac", "a unicast Ethernet address", unicast_mac)
}

/// A unicast address: a bridge neither learns a group address nor delivers to it as a station's.
pub fn unicast_mac(text: &str) -> Option<MacAddr6> {
    let mac: Option<MacAddr6> = text.parse().ok();
    mac.filter(|mac| !mac.is_multicast() && !mac.is_nil())
}

fn pod_annotations(fields: &mut Fields) -> Result<BTreeMap<String, String>, FieldError> {
    let Some(annotations) = fields.object(POD_ANNOTATIONS)? else {
        return Ok(BTreeMap::new());
    };
    let at = annotations.path("");
    let read = |(key, value)| match value {
        Value::String(text) => Ok((key, text)),
        other => Err(FieldError::invalid(
            format!("{at}{key}"),
            &other,
            "a string",
        )),
    };
    annotations.rest().into_iter().map(read).collect()
}

fn bandwidth(fields: &mut Fields) -> Result<Option<Bandwidth>, FieldError> {
    let Some(mut limits) = fields.object("bandwidth")? else {
        return Ok(None);
    };
    let mut bits = |name| {
        Ok(limits
            .number(name, "a whole number of bits", |_| true)?
            .unwrap_or_default())
    };
    Ok(Some(Bandwidth {
        ingress_rate: bits("ingressRate")?,
        ingress_burst: bits("ingressBurst")?,
        egress_rate: bits("egressRate")?,
        egress_burst: bits("egressBurst")?,
    }))
}

/// libcni writes `"ipam": {}` for a network without one. With a path separator in the type, a
/// configuration could run any file, so it is refused (as by libcni).
fn ipam(root: &mut Fields) -> Result<Option<IpamConf>, FieldError> {
    let Some(mut fields) = root.object("ipam")? else {
        return Ok(None);
    };
    if fields.is_empty() {
        return Ok(None);
    }
    let plugin_type = fields
        .parsed("type", "the file name of a plugin", |text| {
            (!text.contains('/') && text != "." && text != "..").then(|| text.to_owned())
        })?
        .ok_or_else(|| fields.missing("type"))?;
    let mut section = fields.rest();
    section.insert("type".to_owned(), Value::from(plugin_type.as_str()));
    Ok(Some(IpamConf {
        plugin_type,
        section,
    }))
}

/// 68 is the minimum of IPv4 (RFC 791), 65535 the maximum of a veth. Whether the pod has IPv6, and
/// so needs 1280, is not known here.
fn mtu(fields: &mut Fields) -> Result<Option<u32>, FieldError> {
    let accept = |mtu: &u32| *mtu == 0 || (68..=65535).contains(mtu);
    Ok(fields
        .number("mtu", "an MTU, 68 to 65535", accept)?
        .filter(|mtu| *mtu != 0))
}

pub(super) fn agent_socket(fields: &mut Fields) -> Result<Option<PathBuf>, FieldError> {
    fields.parsed("agentSocket", "an absolute path", |text| {
        text.starts_with('/').then(|| text.into())
    })
}

pub(super) fn timeout(fields: &mut Fields) -> Result<Option<Duration>, FieldError> {
    let expected = format!("a number of seconds, 1 to {LONGEST_TIMEOUT}");
    let accept = |seconds: &u64| (1..=LONGEST_TIMEOUT).contains(seconds);
    Ok(fields
        .number("timeoutSeconds", &expected, accept)?
        .map(Duration::from_secs))
}

fn capabilities(root: &mut Fields) -> Result<BTreeMap<String, bool>, FieldError> {
    let Some(fields) = root.object("capabilities")? else {
        return Ok(BTreeMap::new());
    };
    let at = fields.path("");
    let read = |(name, value): (String, Value)| match value.as_bool() {
        Some(wanted) => Ok((name, wanted)),
        None => Err(FieldError::invalid(
            format!("{at}{name}"),
            &value,
            "true or false",
        )),
    };
    fields.rest().into_iter().map(read).collect()
}

fn attachments(fields: &mut Fields) -> Result<Option<Vec<Attachment>>, FieldError> {
    const NAMES: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];
    let mentioned = NAMES.map(|name| fields.mentions(name));
    let [valid, older] = NAMES.map(|name| fields.list(name, attachment));
    Ok(match mentioned {
        [true, _] => Some(valid?),
        [false, true] => Some(older?),
        [false, false] => None,
    })
}

fn attachment(path: String, value: Value) -> Result<Attachment, FieldError> {
    let mut fields = Fields::of(&path, value)?;
    Ok(Attachment {
        container_id: fields
            .string("containerID")?
            .ok_or_else(|| fields.missing("containerID"))?,
        ifname: fields
            .string("ifname")?
            .ok_or_else(|| fields.missing("ifname"))?,
    })
}
