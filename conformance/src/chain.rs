//! The plugins before the one that is judged: what they have made, and what they have answered.

use serde_json::{Value, json};

use crate::container::Container;
use crate::spec::Version;
use crate::trouble::Trouble;

/// The address of the interface.
pub(crate) const ADDRESS: &str = "192.0.2.7/24";
/// A route by it.
pub(crate) const ROUTE: &str = "198.18.0.0/15";
/// The name server of the result.
pub(crate) const NAME_SERVER: &str = "192.0.2.53";

/// Makes an interface of this name, and says what it is as the result of an ADD.
pub(crate) fn make(container: &Container, name: &str, version: Version) -> Result<Value, Trouble> {
    let peer = "before1";
    container.ip(&["link", "add", name, "type", "veth", "peer", "name", peer])?;
    container.ip(&["address", "add", ADDRESS, "dev", name])?;
    container.ip(&["link", "set", peer, "up"])?;
    container.ip(&["link", "set", name, "up"])?;
    container.ip(&["route", "add", ROUTE, "via", "192.0.2.1"])?;
    let mac = container.link(name)?.map(|link| link.mac);
    let mut ip = json!({"address": ADDRESS, "gateway": "192.0.2.1", "interface": 0});
    if version < Version::V1_0_0 {
        ip["version"] = "4".into();
    }
    Ok(json!({
        "cniVersion": version.as_str(),
        "interfaces": [{"name": name, "mac": mac, "sandbox": container.netns}],
        "ips": [ip],
        "routes": [{"dst": ROUTE, "gw": "192.0.2.1"}],
        "dns": {"nameservers": [NAME_SERVER]},
    }))
}
