//! Results as JSON, in every version.

use ipnet::IpNet;
use serde_json::{Map, Value};

use super::{CniResult, Dns, Interface, IpConfig, Route};
use crate::spec::fields::Fields;
use crate::spec::{CniVersion, ErrorCode, FieldError, SpecError, VersionError};

/// Why a result could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ResultError {
    /// The bytes are not one JSON value.
    #[error("the result is not JSON: {0}")]
    NotJson(String),
    /// The result's own cniVersion is not supported; 0.1.0 and 0.2.0 have another format.
    #[error("the result's {0}")]
    Version(#[from] VersionError),
    /// A member is wrong.
    #[error("the result's {0}")]
    Field(#[from] FieldError),
}

impl From<ResultError> for SpecError {
    fn from(error: ResultError) -> Self {
        Self::new(ErrorCode::DECODE, error.to_string())
    }
}

pub(super) fn read(value: Value) -> Result<CniResult, ResultError> {
    let Value::Object(members) = value else {
        return Err(FieldError::invalid("top level", &value, "an object").into());
    };
    let mut fields = Fields::root(members);
    if let Some(version) = fields.string("cniVersion")? {
        version.parse::<CniVersion>()?;
    }
    let interfaces = fields.list("interfaces", read_interface)?;
    let ips = fields.list("ips", |path, value| read_ip(path, value, interfaces.len()))?;
    let routes = fields.list("routes", read_route)?;
    let dns = Dns::read(&mut fields)?;
    Ok(CniResult {
        interfaces,
        ips,
        routes,
        dns,
    })
}

fn read_interface(path: String, value: Value) -> Result<Interface, FieldError> {
    let mut fields = Fields::of(&path, value)?;
    Ok(Interface {
        name: fields
            .string("name")?
            .ok_or_else(|| fields.missing("name"))?,
        mac: fields.string("mac")?,
        sandbox: fields.string("sandbox")?,
        mtu: read_count(&mut fields, "mtu")?,
        socket_path: fields.string("socketPath")?,
        pci_id: fields.string("pciID")?,
    })
}

fn read_ip(path: String, value: Value, interfaces: usize) -> Result<IpConfig, FieldError> {
    let mut fields = Fields::of(&path, value)?;
    Ok(IpConfig {
        address: read_cidr(&mut fields, "address")?,
        gateway: fields.parsed("gateway", "an IP address", |text| text.parse().ok())?,
        interface: fields.number(
            "interface",
            &format!("an index into the {interfaces} interfaces"),
            |index| *index < interfaces,
        )?,
    })
}

fn read_route(path: String, value: Value) -> Result<Route, FieldError> {
    let mut fields = Fields::of(&path, value)?;
    Ok(Route {
        dst: read_cidr(&mut fields, "dst")?,
        gw: fields.parsed("gw", "an IP address", |text| text.parse().ok())?,
        mtu: read_count(&mut fields, "mtu")?,
        advmss: read_count(&mut fields, "advmss")?,
        priority: read_count(&mut fields, "priority")?,
        table: read_any(&mut fields, "table")?,
        scope: read_any(&mut fields, "scope")?,
    })
}

fn read_cidr(fields: &mut Fields, name: &str) -> Result<IpNet, FieldError> {
    fields
        .parsed(name, "an address with a prefix length", |text| {
            text.parse().ok()
        })?
        .ok_or_else(|| fields.missing(name))
}

/// A number for which 0 means absent, as in the specification's Go types.
fn read_count(fields: &mut Fields, name: &str) -> Result<Option<u32>, FieldError> {
    Ok(read_any(fields, name)?.filter(|count| *count != 0))
}

/// A number for which 0 is valid: table 0 and scope 0 have a meaning.
fn read_any(fields: &mut Fields, name: &str) -> Result<Option<u32>, FieldError> {
    fields.number(name, "a whole number of 32 bits", |_| true)
}

pub(super) fn write(result: &CniResult, version: CniVersion) -> Value {
    let mut object = Object::default();
    object.text("cniVersion", Some(version.as_str()));
    object.list("interfaces", &result.interfaces, |interface| {
        write_interface(interface, version)
    });
    object.list("ips", &result.ips, |ip| write_ip(ip, version));
    object.list("routes", &result.routes, |route| {
        write_route(route, version)
    });
    if !result.dns.is_empty() {
        object.0.insert("dns".to_owned(), write_dns(&result.dns));
    }
    Value::Object(object.0)
}

fn write_interface(interface: &Interface, version: CniVersion) -> Value {
    let mut object = Object::default();
    object.text("name", Some(&interface.name));
    object.text("mac", interface.mac.as_deref());
    object.text("sandbox", interface.sandbox.as_deref());
    if version >= CniVersion::V1_1_0 {
        object.number("mtu", interface.mtu);
        object.text("socketPath", interface.socket_path.as_deref());
        object.text("pciID", interface.pci_id.as_deref());
    }
    Value::Object(object.0)
}

fn write_ip(ip: &IpConfig, version: CniVersion) -> Value {
    let mut object = Object::default();
    if version < CniVersion::V1_0_0 {
        let family = if ip.address.addr().is_ipv4() {
            "4"
        } else {
            "6"
        };
        object.text("version", Some(family));
    }
    object.text("address", Some(&ip.address.to_string()));
    object.text(
        "gateway",
        ip.gateway.map(|gateway| gateway.to_string()).as_deref(),
    );
    object.number("interface", ip.interface);
    Value::Object(object.0)
}

fn write_route(route: &Route, version: CniVersion) -> Value {
    let mut object = Object::default();
    object.text("dst", Some(&route.dst.to_string()));
    object.text("gw", route.gw.map(|gw| gw.to_string()).as_deref());
    if version >= CniVersion::V1_1_0 {
        object.number("mtu", route.mtu);
        object.number("advmss", route.advmss);
        object.number("priority", route.priority);
        object.number("table", route.table);
        object.number("scope", route.scope);
    }
    Value::Object(object.0)
}

fn write_dns(dns: &Dns) -> Value {
    let mut object = Object::default();
    object.list("nameservers", &dns.nameservers, |entry| {
        Value::from(entry.as_str())
    });
    object.text("domain", dns.domain.as_deref());
    object.list("search", &dns.search, |entry| Value::from(entry.as_str()));
    object.list("options", &dns.options, |entry| Value::from(entry.as_str()));
    Value::Object(object.0)
}

/// An object being built; absent and empty members are left out.
#[derive(Default)]
struct Object(Map<String, Value>);

impl Object {
    fn text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.0.insert(name.to_owned(), Value::from(text));
        }
    }

    fn number<T: Into<Value>>(&mut self, name: &str, number: Option<T>) {
        if let Some(number) = number {
            self.0.insert(name.to_owned(), number.into());
        }
    }

    fn list<T>(&mut self, name: &str, elements: &[T], write: impl Fn(&T) -> Value) {
        if !elements.is_empty() {
            self.0
                .insert(name.to_owned(), elements.iter().map(write).collect());
        }
    }
}
