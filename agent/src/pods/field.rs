//! A value in an annotation's JSON that knows its path from the root, so that an error can name it.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;
use macaddr::MacAddr6;
use podwire_cni::env::is_valid_ifname;
use podwire_netns::Route;
use serde_json::{Map, Value};

use super::annotation::{AnnotationError, Problem};
use crate::plan::{MAX_MTU, MIN_MTU, MIN_MTU_IPV6, not_a_host, not_an_interfaces};

/// How much of a refused value an error shows, in characters: it is shown in a pod's event.
const SHOWN: usize = 120;

/// The longest annotation, in bytes: the limit for all annotations of an object (Kubernetes,
/// `TotalAnnotationSizeLimitB`).
const LONGEST: usize = 256 << 10;

/// Parses an annotation as JSON.
pub(super) fn document(annotation: &'static str, text: &str) -> Result<Value, AnnotationError> {
    let refuse = |value, problem| AnnotationError {
        annotation,
        network: None,
        field: None,
        value,
        problem,
    };
    if text.len() > LONGEST {
        return Err(refuse(None, Problem::TooLong(text.len(), LONGEST)));
    }
    serde_json::from_str(text).map_err(|error| {
        let value = shown(&format!("{text:?}"));
        refuse(Some(value), Problem::NotJson(error.to_string()))
    })
}

/// A value and its path.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    annotation: &'static str,
    network: Option<&'a str>,
    field: String,
    value: &'a Value,
}

impl<'a> Field<'a> {
    pub(super) fn root(annotation: &'static str, value: &'a Value) -> Self {
        Self {
            annotation,
            network: None,
            field: String::new(),
            value,
        }
    }

    /// A member of the annotation: the entry of the network with this name.
    pub(super) fn of_network(annotation: &'static str, name: &'a str, value: &'a Value) -> Self {
        Self {
            network: Some(name),
            ..Self::root(annotation, value)
        }
    }

    /// The member `name`. Null and the empty string count as absent, as with Go's decoders.
    pub(super) fn member(&self, name: &str) -> Result<Option<Self>, AnnotationError> {
        let Some(value) = self.object()?.get(name) else {
            return Ok(None);
        };
        if value.is_null() || value.as_str() == Some("") {
            return Ok(None);
        }
        let field = self.path(name);
        Ok(Some(Self {
            field,
            value,
            ..*self
        }))
    }

    /// The result of `read` for the member `name`; `None` if it is absent.
    pub(super) fn optional<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Self) -> Result<T, AnnotationError>,
    ) -> Result<Option<T>, AnnotationError> {
        self.member(name)?.as_ref().map(read).transpose()
    }

    /// The member `name`, which is required.
    pub(super) fn required(&self, name: &str) -> Result<Self, AnnotationError> {
        self.member(name)?.ok_or_else(|| AnnotationError {
            field: Some(self.path(name).into()),
            value: None,
            ..self.refuse(Problem::Missing)
        })
    }

    /// The first of these members that is present: one member under several names.
    pub(super) fn any_member(&self, names: &[&str]) -> Result<Option<Self>, AnnotationError> {
        for name in names {
            if let Some(member) = self.member(name)? {
                return Ok(Some(member));
            }
        }
        Ok(None)
    }

    /// The elements of the list `name`; none if it is absent.
    pub(super) fn elements(&self, name: &str) -> Result<Vec<Self>, AnnotationError> {
        match self.member(name)? {
            Some(list) => list.items(),
            None => Ok(Vec::new()),
        }
    }

    /// The elements of this list.
    pub(super) fn items(&self) -> Result<Vec<Self>, AnnotationError> {
        let list = self
            .value
            .as_array()
            .ok_or_else(|| self.refuse(Problem::Type("a list")))?;
        let item = |(at, value)| Self {
            field: format!("{}[{at}]", self.field),
            value,
            ..*self
        };
        Ok(list.iter().enumerate().map(item).collect())
    }

    pub(super) fn is_list(&self) -> bool {
        self.value.is_array()
    }

    fn object(&self) -> Result<&'a Map<String, Value>, AnnotationError> {
        self.value
            .as_object()
            .ok_or_else(|| self.refuse(Problem::Type("an object")))
    }

    pub(super) fn text(&self) -> Result<&'a str, AnnotationError> {
        self.value
            .as_str()
            .ok_or_else(|| self.refuse(Problem::Type("a string")))
    }

    fn parse<T: FromStr>(&self, problem: Problem) -> Result<T, AnnotationError> {
        self.text()?.parse().map_err(|_| self.refuse(problem))
    }

    /// A MAC that an interface can have: the kernel accepts no other (is_valid_ether_addr).
    pub(super) fn mac(&self) -> Result<MacAddr6, AnnotationError> {
        let mac: MacAddr6 = self.parse(Problem::Mac)?;
        if mac.is_nil() {
            return Err(self.refuse(Problem::MacKind("all zero")));
        }
        if mac.is_multicast() {
            return Err(self.refuse(Problem::MacKind("a multicast address")));
        }
        Ok(mac)
    }

    /// An interface's address with its prefix length.
    pub(super) fn interface_address(&self) -> Result<IpNet, AnnotationError> {
        let net: IpNet = self.parse(Problem::Cidr)?;
        match not_an_interfaces(&net) {
            None => Ok(net),
            Some(kind) => Err(self.refuse(Problem::AddressKind(kind))),
        }
    }

    /// A destination; host bits are masked, as Go's ParseCIDR does.
    pub(super) fn destination(&self) -> Result<IpNet, AnnotationError> {
        Ok(self.parse::<IpNet>(Problem::Cidr)?.trunc())
    }

    /// A gateway's address.
    pub(super) fn gateway(&self) -> Result<IpAddr, AnnotationError> {
        let address: IpAddr = self.parse(Problem::Address)?;
        match not_a_host(address) {
            None => Ok(address),
            Some(kind) => Err(self.refuse(Problem::AddressKind(kind))),
        }
    }

    /// The next hop of a route to `dst`.
    pub(super) fn next_hop(&self, dst: IpNet) -> Result<IpAddr, AnnotationError> {
        let next_hop = self.gateway()?;
        if next_hop.is_ipv4() != dst.addr().is_ipv4() {
            return Err(self.refuse(Problem::NextHopFamily(dst)));
        }
        Ok(next_hop)
    }

    /// A route, `{dest, nextHop}` with nextHop optional. A default route is refused: it belongs in
    /// the member `gateways` beside the routes.
    pub(super) fn route(&self, gateways: &'static str) -> Result<Route, AnnotationError> {
        let dest = self.required("dest")?;
        let dst = dest.destination()?;
        if dst.addr().is_unspecified() {
            return Err(dest.refuse(Problem::DefaultRoute(gateways)));
        }
        let gateway = self.optional("nextHop", |hop| hop.next_hop(dst))?;
        Ok(Route::new(dst, gateway))
    }

    /// A link-local IPv6 address.
    pub(super) fn link_local(&self) -> Result<Ipv6Addr, AnnotationError> {
        match self.parse(Problem::LinkLocal)? {
            IpAddr::V6(address) if address.is_unicast_link_local() => Ok(address),
            _ => Err(self.refuse(Problem::LinkLocal)),
        }
    }

    /// The MTU of an interface with these addresses.
    pub(super) fn mtu(&self, addresses: &[IpNet]) -> Result<u32, AnnotationError> {
        self.bounded_mtu(self.value.as_u64(), addresses)
    }

    /// [`Self::mtu`] for a format whose numbers may be strings.
    pub(super) fn mtu_or_text(&self, addresses: &[IpNet]) -> Result<u32, AnnotationError> {
        let text = self.value.as_str().and_then(|text| text.parse().ok());
        self.bounded_mtu(self.value.as_u64().or(text), addresses)
    }

    fn bounded_mtu(
        &self,
        number: Option<u64>,
        addresses: &[IpNet],
    ) -> Result<u32, AnnotationError> {
        let least = match addresses.iter().any(|address| address.addr().is_ipv6()) {
            true => MIN_MTU_IPV6,
            false => MIN_MTU,
        };
        match number.and_then(|number| u32::try_from(number).ok()) {
            Some(mtu) if (least..=MAX_MTU).contains(&mtu) => Ok(mtu),
            _ => Err(self.refuse(Problem::Mtu { least })),
        }
    }

    /// The name of an interface within the pod; `None` for `*`, which means CNI_IFNAME.
    pub(super) fn interface_name(&self) -> Result<Option<String>, AnnotationError> {
        match self.text()? {
            "*" => Ok(None),
            name if is_valid_ifname(name) => Ok(Some(name.to_owned())),
            _ => Err(self.refuse(Problem::InterfaceName)),
        }
    }

    /// `"true"` or `"false"`, as a string or as a JSON boolean.
    pub(super) fn flag(&self) -> Result<bool, AnnotationError> {
        match (self.value.as_bool(), self.value.as_str()) {
            (Some(flag), _) => Ok(flag),
            (_, Some("true")) => Ok(true),
            (_, Some("false")) => Ok(false),
            _ => Err(self.refuse(Problem::Flag)),
        }
    }

    fn path(&self, name: &str) -> String {
        match self.field.as_str() {
            "" => name.to_owned(),
            parent => format!("{parent}.{name}"),
        }
    }

    /// The error that refuses this value.
    pub(super) fn refuse(&self, problem: Problem) -> AnnotationError {
        AnnotationError {
            annotation: self.annotation,
            network: self.network.map(shown),
            field: Some(self.field.as_str())
                .filter(|field| !field.is_empty())
                .map(Box::from),
            value: Some(shown(&self.value.to_string())),
            problem,
        }
    }
}

fn shown(text: &str) -> Box<str> {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()).into(),
        None => text.into(),
    }
}
