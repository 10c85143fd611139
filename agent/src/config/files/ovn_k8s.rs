//! ovn-kubernetes' file, `/etc/openvswitch/ovn_k8s.conf`. It is the cluster's as much as the node's: keys that are somebody
//! else's are passed over, and those that nobody knows are named in a warning, as ovn-kubernetes does it.

use std::path::Path;

use super::super::layers::{Given, Layer, Origin};
use super::super::legacy;
use super::ini::{self, Entry};
use super::{Parsed, Wrong, passed_over};

/// What a key is to podwire.
enum Meaning {
    /// This setting.
    Setting(&'static str),
    /// This setting; a number, which may be hexadecimal.
    Number(&'static str),
    /// The log filter, as a number.
    LogLevel,
    /// The plugin's name, which must be one of ours.
    Plugin,
    /// Nothing: it is the cluster's, or the gateway's.
    NotOurs,
}

pub(super) fn parse(text: &str, path: &Path) -> Parsed {
    let mut layer = Layer::new();
    let mut unknown = Vec::new();
    for entry in ini::parse(text)? {
        let wrong = |problem: String| Wrong {
            line: Some(entry.line),
            problem: format!("[{}] {}: {problem}", entry.section, entry.name),
        };
        let Some(meaning) = meaning(&entry) else {
            unknown.push(format!("[{}] {}", entry.section, entry.name));
            continue;
        };
        let (key, value) = match meaning {
            Meaning::NotOurs => continue,
            Meaning::Plugin => {
                let name = entry.value.as_deref().filter(|name| !name.is_empty());
                name.map_or(Ok(()), legacy::check_plugin).map_err(wrong)?;
                continue;
            }
            Meaning::Setting(key) => (key, entry.value.clone()),
            Meaning::Number(key) => (key, entry.value.as_deref().map(decimal)),
            Meaning::LogLevel => {
                let filter = entry.value.as_deref().map(legacy::log_filter);
                ("log", filter.transpose().map_err(wrong)?)
            }
        };
        let value = value.ok_or_else(|| wrong("expected = and a value".to_owned()))?;
        // An empty value is none: the installers' templates leave them in.
        if value.is_empty() {
            continue;
        }
        let origin = Origin::File {
            path: path.to_owned(),
            key: format!("[{}] {}", entry.section, entry.name),
            line: Some(entry.line),
        };
        layer.insert(key.to_owned(), Given::one(value, origin));
    }
    Ok((layer, passed_over(&unknown)))
}

fn meaning(entry: &Entry) -> Option<Meaning> {
    use Meaning::{LogLevel, NotOurs, Number, Plugin, Setting};
    Some(match (entry.section.as_str(), entry.name.as_str()) {
        ("default", "mtu") => Number("mtu"),
        ("kubernetes", "kubeconfig") => Setting("kubeconfig"),
        ("kubernetes", "apiserver") => Setting("k8s-apiserver"),
        ("kubernetes", "cacert") => Setting("k8s-cacert"),
        ("kubernetes", "token") => Setting("k8s-token"),
        ("kubernetes", "tokenfile" | "token-file") => Setting("k8s-token-file"),
        ("logging", "loglevel") => LogLevel,
        ("logging", "logfile") => Setting("log-file"),
        ("cni", "conf-dir") => Setting("cni-conf-dir"),
        ("cni", "plugin") => Plugin,
        ("ovnsouth", "address") => Setting("ovn-remote"),
        ("ovnsouth", "client-privkey") => Setting("ovn-private-key"),
        ("ovnsouth", "client-cert") => Setting("ovn-certificate"),
        ("ovnsouth", "client-cacert") => Setting("ovn-ca-cert"),
        ("ovnsouth", "server-privkey" | "server-cert" | "server-cacert") => NotOurs,
        ("ovnnorth", _) => NotOurs,
        ("default", "cluster-subnets" | "conntrack-zone") => NotOurs,
        _ => return None,
    })
}

/// gcfg reads numbers with 0x in front as hexadecimal.
fn decimal(text: &str) -> String {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let number = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.map_or_else(|| text.to_owned(), |number| number.to_string())
}
