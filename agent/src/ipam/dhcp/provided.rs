//! The options that a network configuration has the client send, in the `dhcp` plugin's form:
//! `"provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}]`.

use podwire_cni::env::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ipam::Family;

/// The names that stand for numbers (RFC 2132).
const NAMES: [(&str, u8); 4] = [
    ("host-name", 12),
    ("vendor-class-identifier", 60),
    ("dhcp-client-identifier", 61),
    ("user-class", 77),
];
/// What the client itself says, and what frames the options.
const OWN: [u8; 10] = [0, 50, 51, 52, 53, 54, 55, 57, 82, 255];
/// The longest value, in bytes (RFC 2132, section 2).
const LONGEST: usize = 255;
/// The most options: their message has to fit into what every server takes.
const MOST: usize = 8;

/// An option and its value, as bytes of text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provided {
    /// Its number.
    pub code: u8,
    /// Its value.
    pub value: String,
}

impl Provided {
    /// Whether every message has it: it tells who the client is (RFC 2131, table 5).
    pub(super) fn is_identity(&self) -> bool {
        self.code == 61
    }
}

/// Reads `provide` of an `ipam` section. `args` are CNI_ARGS.
///
/// # Errors
/// What is wrong with which field.
pub fn provided(section: &Map<String, Value>, args: &Args) -> Result<Vec<Provided>, String> {
    let entries = match section.get("provide") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(entries)) if entries.len() <= MOST => entries,
        Some(_) => {
            return Err(format!(
                "ipam.provide is not a list of at most {MOST} options"
            ));
        }
    };
    let read = |(at, entry): (usize, &Value)| {
        one(entry, args).map_err(|problem| format!("ipam.provide[{at}]: {problem}"))
    };
    entries.iter().enumerate().map(read).collect()
}

/// Reads `ipFamilies` of an `ipam` section: IPv4 alone if it is missing, as with the plugin.
///
/// # Errors
/// What is wrong with which field.
pub fn families(section: &Map<String, Value>) -> Result<Vec<Family>, String> {
    let entries = match section.get("ipFamilies") {
        None | Some(Value::Null) => return Ok(vec![Family::V4]),
        Some(Value::Array(entries)) if !entries.is_empty() => entries,
        Some(_) => return Err("ipam.ipFamilies is not a list of IPv4 and IPv6".to_owned()),
    };
    let all = [Family::V4, Family::V6];
    let read = |(at, entry): (usize, &Value)| {
        let named = |family: &&Family| entry.as_str() == Some(&*family.to_string());
        let family = all.iter().find(named).copied();
        family.ok_or_else(|| format!("ipam.ipFamilies[{at}]: {entry} is neither IPv4 nor IPv6"))
    };
    entries.iter().enumerate().map(read).collect()
}

fn one(entry: &Value, args: &Args) -> Result<Provided, String> {
    let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
    let option = text("option");
    let named = NAMES.iter().find(|(name, _)| *name == option);
    let code = named.map(|(_, code)| *code).or_else(|| option.parse().ok());
    let Some(code) = code.filter(|code| !OWN.contains(code)) else {
        let names = NAMES.map(|(name, _)| name).join(", ");
        return Err(format!(
            "option {option:?} is not one that can be sent: {names}, or a number"
        ));
    };
    let (value, argument) = (text("value"), text("fromArg"));
    let of_argument = args.get(argument).filter(|value| !value.is_empty());
    let value = match of_argument.unwrap_or(value) {
        "" if argument.is_empty() => return Err("value and fromArg are missing".to_owned()),
        "" => return Err(format!("fromArg: CNI_ARGS has no {argument}")),
        value => value,
    };
    if value.len() > LONGEST {
        return Err(format!("its value has more than {LONGEST} bytes"));
    }
    let value = value.to_owned();
    Ok(Provided { code, value })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(provide: Value) -> Result<Vec<Provided>, String> {
        let section = json!({"type": "dhcp", "provide": provide});
        let args = Args::parse("IgnoreUnknown=1;K8S_POD_NAME=web-0").unwrap();
        provided(section.as_object().unwrap(), &args)
    }

    #[test]
    fn options_have_a_name_or_a_number_and_a_value_or_an_argument() {
        let of = |code, value: &str| Provided {
            code,
            value: value.to_owned(),
        };
        let both = json!([
            {"option": "host-name", "fromArg": "K8S_POD_NAME"},
            {"option": "77", "value": "pods", "fromArg": "NOT_THERE"},
        ]);
        assert_eq!(read(both), Ok(vec![of(12, "web-0"), of(77, "pods")]));
        assert_eq!(read(Value::Null), Ok(Vec::new()));
    }

    #[test]
    fn families_are_ipv4_unless_they_are_named() {
        let read = |value: Value| families(json!({"ipFamilies": value}).as_object().unwrap());
        assert_eq!(families(&Map::new()), Ok(vec![Family::V4]));
        let both = json!(["IPv4", "IPv6"]);
        assert_eq!(read(both), Ok(vec![Family::V4, Family::V6]));
        assert_eq!(read(json!(["IPv6"])), Ok(vec![Family::V6]));
        for (value, words) in [
            (json!([]), "ipam.ipFamilies is not a list"),
            (json!("IPv6"), "ipam.ipFamilies is not a list"),
            (json!(["IPv4", "ipv6"]), "ipam.ipFamilies[1]: \"ipv6\""),
        ] {
            let error = read(value).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_with_its_place() {
        let long = "a".repeat(256);
        for (provide, words) in [
            (json!({}), "ipam.provide is not a list"),
            (json!(vec![json!({}); 9]), "at most 8 options"),
            (json!(["host-name"]), "ipam.provide[0]: option \"\""),
            (json!([{"option": "53", "value": "1"}]), "option \"53\""),
            (
                json!([{"option": "routers", "value": "1"}]),
                "option \"routers\"",
            ),
            (json!([{"option": "12"}]), "value and fromArg are missing"),
            (
                json!([{"option": "12", "fromArg": "X"}]),
                "CNI_ARGS has no X",
            ),
            (
                json!([{"option": "12", "value": long}]),
                "more than 255 bytes",
            ),
        ] {
            let error = read(provide).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
