//! Networks of other controllers as NetworkAttachmentDefinitions: `onapNetwork` of the design for
//! several interfaces of a pod, and OVN4NFV's Network and ProviderNetwork
//! (`k8s.plugin.opnfv.org/v1alpha1`). What a definition can't have is refused by its field, or is
//! said in a comment.

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};
use itertools::Itertools as _;
use podwire_apiserver::brief;
use podwire_daemon::output::yaml;
use serde_json::{Map, Value};

use super::{config_of, object_of};
use crate::cluster::ObjectName;
use crate::cluster::network::{Mistake, Topology, network_name, shape};
use crate::tools::ToolError;
use crate::tools::file::documents;

/// The API of OVN4NFV.
const OVN4NFV: &str = "k8s.plugin.opnfv.org/v1alpha1";

/// The definitions of the networks in some files, as YAML for `kubectl apply`. Objects of other
/// kinds are named in a comment.
///
/// # Errors
/// A file can't be read, has no network, or has one that podwire can't make, with the field.
pub fn import(files: &[PathBuf], namespace: &str) -> Result<String, ToolError> {
    let mut text = String::new();
    for path in files {
        let mut networks = 0;
        for (place, object) in documents(path)? {
            let failed = |problem| {
                let path = path.display();
                ToolError::Mistake(format!("{path}: {place}: {problem}"))
            };
            match converted(&object, namespace).map_err(failed)? {
                Some(converted) => {
                    networks += 1;
                    text.push_str(&converted.shown()?);
                }
                None => {
                    let kind = brief(&object["kind"].as_str().unwrap_or_default());
                    let _ = writeln!(text, "# {place}: {kind:?} is no network");
                }
            }
        }
        if networks == 0 {
            let problem = "it has no onapNetwork, Network or ProviderNetwork";
            let path = path.display();
            return Err(ToolError::Mistake(format!("{path}: {problem}")));
        }
    }
    Ok(text)
}

/// A definition, and what of its object it does not have.
struct Converted {
    id: ObjectName,
    config: Value,
    notes: Vec<String>,
}

impl Converted {
    fn shown(&self) -> Result<String, ToolError> {
        let mut text = "---\n".to_owned();
        for note in &self.notes {
            let _ = writeln!(text, "# {note}");
        }
        let object = object_of(&self.id, &self.config);
        text.push_str(&yaml(&object).map_err(ToolError::Format)?);
        Ok(text)
    }
}

/// `None` for an object of another kind.
fn converted(object: &Value, namespace: &str) -> Result<Option<Converted>, String> {
    let api = object["apiVersion"].as_str().unwrap_or_default();
    let read = match (object["kind"].as_str().unwrap_or_default(), api) {
        ("onapNetwork", _) => of_design,
        ("Network", OVN4NFV) => of_network,
        ("ProviderNetwork", OVN4NFV) => of_provider,
        _ => return Ok(None),
    };
    let name = text_of(&object["metadata"]["name"], "metadata.name")?;
    if name.is_empty() {
        return Err("metadata.name: it is missing".to_owned());
    }
    let own = object["metadata"]["namespace"].as_str();
    let id = (own.unwrap_or(namespace).into(), name.into());
    let mut network = Read {
        name: name.to_owned(),
        named_by: "metadata.name",
        place: "",
        subnets: Vec::new(),
        excluded: Vec::new(),
        topology: Topology::Layer2,
        vlan: None,
        notes: Vec::new(),
    };
    read(&object["spec"], &mut network)?;
    network.converted(id).map(Some)
}

/// What was read of an object.
struct Read {
    name: String,
    /// The field of the name.
    named_by: &'static str,
    /// Where the subnets stand.
    place: &'static str,
    subnets: Vec<String>,
    excluded: Vec<IpNet>,
    topology: Topology,
    vlan: Option<String>,
    notes: Vec<String>,
}

impl Read {
    fn converted(self, id: ObjectName) -> Result<Converted, String> {
        let mut config = config_of(&id, &self.name, self.topology);
        if !self.subnets.is_empty() {
            config["subnets"] = self.subnets.join(",").into();
        }
        if !self.excluded.is_empty() {
            config["excludeSubnets"] = self.excluded.iter().join(",").into();
        }
        if let Some(vlan) = &self.vlan {
            let number: Result<u32, _> = vlan.parse();
            let wrong = |_| format!("spec.vlan.vlanId: {:?} is no number", brief(vlan));
            config["vlanID"] = number.map_err(wrong)?.into();
        }
        let place = self.place;
        let named_by = self.named_by;
        let named = |Mistake { field, problem }| match field {
            "name" => format!("{named_by}: {problem}"),
            "vlanID" => format!("spec.vlan.vlanId: {problem}"),
            _ => format!("{place}: {problem}"),
        };
        network_name(Some(&self.name)).map_err(named)?;
        shape(&config).map_err(named)?;
        Ok(Converted {
            id,
            config,
            notes: self.notes,
        })
    }

    /// A gateway is kept free: a definition's network has no router.
    fn gateway(&mut self, field: &str, text: &str, subnet: &str) -> Result<(), String> {
        if text.is_empty() {
            return Ok(());
        }
        let address = text.split('/').next().unwrap_or_default();
        let address: IpAddr = address
            .parse()
            .map_err(|_| format!("{field}: {:?} is no IP address", brief(&text)))?;
        let is_within = subnet
            .parse::<IpNet>()
            .is_ok_and(|net| net.contains(&address));
        if !is_within {
            return Err(format!("{field}: {address} is not in {subnet}"));
        }
        self.excluded.push(address.into());
        self.notes.push(format!(
            "{field}: no router has {address}, and no pod gets it; the network leads nowhere else"
        ));
        Ok(())
    }
}

/// `spec.config` is JSON; its values may begin with blanks.
fn of_design(spec: &Value, network: &mut Read) -> Result<(), String> {
    known(spec, "spec", &["config"])?;
    let text = text_of(&spec["config"], "spec.config")?;
    let config: Value = serde_json::from_str(text)
        .map_err(|error| format!("spec.config is no JSON: {}", brief(&error)))?;
    let fields = ["cnitype", "name", "subnet", "gateway"];
    known(&config, "spec.config", &fields)?;
    match text_of(&config["cnitype"], "spec.config.cnitype")? {
        "" | "ovn" => {}
        other => {
            let other = brief(&other);
            return Err(format!("spec.config.cnitype: {other:?} is not ovn"));
        }
    }
    let name = text_of(&config["name"], "spec.config.name")?;
    if !name.is_empty() {
        network.name = name.to_owned();
        network.named_by = "spec.config.name";
    }
    network.place = "spec.config.subnet";
    let subnet = text_of(&config["subnet"], network.place)?;
    if subnet.is_empty() {
        return Err(format!("{}: it is missing", network.place));
    }
    network.subnets.push(subnet.to_owned());
    let field = "spec.config.gateway";
    network.gateway(field, text_of(&config["gateway"], field)?, subnet)
}

/// The fields that both kinds of OVN4NFV have.
const COMMON: [&str; 5] = ["cniType", "ipv4Subnets", "ipv6Subnets", "dns", "routes"];

fn of_network(spec: &Value, network: &mut Read) -> Result<(), String> {
    known(spec, "spec", &COMMON)?;
    common(spec, network)
}

fn of_provider(spec: &Value, network: &mut Read) -> Result<(), String> {
    let own = ["providerNetType", "vlan", "direct"];
    let fields: Vec<&str> = COMMON.into_iter().chain(own).collect();
    known(spec, "spec", &fields)?;
    common(spec, network)?;
    network.topology = Topology::Localnet;
    let (part, fields) = match text_of(&spec["providerNetType"], "spec.providerNetType")? {
        "VLAN" => {
            let own = ["vlanNodeSelector", "vlanId", "logicalInterfaceName"];
            ("vlan", own.to_vec())
        }
        "DIRECT" => ("direct", vec!["directNodeSelector"]),
        other => {
            let problem = format!("{:?} is neither VLAN nor DIRECT", brief(&other));
            return Err(format!("spec.providerNetType: {problem}"));
        }
    };
    let place = format!("spec.{part}");
    let fields: Vec<&str> = fields
        .into_iter()
        .chain(["nodeLabelList", "providerInterfaceName"])
        .collect();
    known(&spec[part], &place, &fields)?;
    if part == "vlan" {
        let id = text_of(&spec[part]["vlanId"], "spec.vlan.vlanId")?;
        network.vlan = Some(id.to_owned());
    }
    let field = format!("{place}.providerInterfaceName");
    let interface = brief(&text_of(&spec[part]["providerInterfaceName"], &field)?);
    network.notes.push(format!(
        "{field}: the network is on the nodes with {}:BRIDGE in external_ids:ovn-bridge-mappings; \
         there {interface:?} has to be in BRIDGE",
        network.name
    ));
    Ok(())
}

fn common(spec: &Value, network: &mut Read) -> Result<(), String> {
    match text_of(&spec["cniType"], "spec.cniType")? {
        "ovn4nfv" => {}
        other => return Err(format!("spec.cniType: {:?} is not ovn4nfv", brief(&other))),
    }
    for field in ["dns", "routes"] {
        let given = &spec[field];
        let is_empty = given.is_null()
            || given.as_array().is_some_and(Vec::is_empty)
            || given.as_object().is_some_and(Map::is_empty);
        if !is_empty {
            return Err(format!("spec.{field}: a definition has none: leave it out"));
        }
    }
    network.place = "spec.ipv4Subnets and spec.ipv6Subnets";
    for list in ["ipv4Subnets", "ipv6Subnets"] {
        let all = match &spec[list] {
            Value::Null => continue,
            Value::Array(all) => all,
            _ => return Err(format!("spec.{list}: it is no list")),
        };
        for (number, it) in all.iter().enumerate() {
            let place = format!("spec.{list}[{number}]");
            known(it, &place, &["name", "subnet", "gateway", "excludeIps"])?;
            let subnet = text_of(&it["subnet"], &format!("{place}.subnet"))?;
            network.subnets.push(subnet.to_owned());
            let field = format!("{place}.gateway");
            network.gateway(&field, text_of(&it["gateway"], &field)?, subnet)?;
            let field = format!("{place}.excludeIps");
            for range in text_of(&it["excludeIps"], &field)?.split_whitespace() {
                let nets = range_of(range).ok_or_else(|| {
                    let range = brief(&range);
                    format!("{field}: {range:?} is neither ADDRESS nor ADDRESS..ADDRESS")
                });
                network.excluded.extend(nets?);
            }
        }
    }
    Ok(())
}

/// Refuses fields that nobody would read.
fn known(value: &Value, place: &str, fields: &[&str]) -> Result<(), String> {
    let Some(members) = value.as_object() else {
        return Err(format!("{place}: it is missing, or no object"));
    };
    match members.keys().find(|it| !fields.contains(&it.as_str())) {
        Some(other) => Err(format!("{place}.{}: there is no such field", brief(other))),
        None => Ok(()),
    }
}

/// A text without blanks around it; empty if there is none.
fn text_of<'a>(value: &'a Value, field: &str) -> Result<&'a str, String> {
    match value {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text.trim()),
        other => Err(format!("{field}: {} is no text", brief(other))),
    }
}

/// The networks of `ADDRESS` or `ADDRESS..ADDRESS`.
fn range_of(text: &str) -> Option<Vec<IpNet>> {
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    match (first.parse().ok()?, last.parse().ok()?) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            Some(Ipv4Subnets::new(first, last, 0).map(IpNet::from).collect())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            Some(Ipv6Subnets::new(first, last, 0).map(IpNet::from).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
