//! The settings that can change at run time, and the differences between two configurations.

use std::time::Duration;

use super::layers::{Given, Merged};
use super::settings::{Setting, Settings};
use super::{ConfigError, bad};
use crate::ipam::subnet::SubnetSpec;

/// The settings that take effect without a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Live {
    /// The subnets of the embedded address pools.
    pub subnets: Vec<SubnetSpec>,
    /// MTU in bytes for pods without one of their own; None for the node's, minus the tunnel's
    /// overhead.
    pub mtu: Option<u32>,
    /// Largest MTU in bytes that the node can carry; None if not set.
    pub max_mtu: Option<u32>,
    /// Time limit of an ADD in total: for its turn, its annotation, Open vSwitch and OVN.
    pub add_timeout: Duration,
    /// The limit of concurrent operations.
    pub max_operations: usize,
    /// The log filter.
    pub log: String,
}

/// A changed setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its key.
    pub key: String,
    /// Whether it takes effect without a restart.
    pub live: bool,
    /// Its description: old value, new value, and source.
    pub text: String,
}

/// The differences between the earlier and the present settings.
pub(super) fn changes(settings: &Settings, before: &Merged, now: &Merged) -> Vec<Change> {
    let change = |setting: &Setting| {
        let (before, now) = (before.find(&setting.key), now.find(&setting.key));
        if value(setting, before) == value(setting, now) {
            return None;
        }
        let origin = match now {
            Some(given) => given.origin.to_string(),
            None => "it is no longer set".to_owned(),
        };
        let text = format!(
            "{} from {} to {} ({origin})",
            setting.key,
            shown(setting, before),
            shown(setting, now)
        );
        Some(Change {
            key: setting.key.clone(),
            live: setting.live,
            text,
        })
    };
    settings.iter().filter_map(change).collect()
}

fn value<'a>(setting: &'a Setting, given: Option<&'a Given>) -> &'a [String] {
    given.map_or(&setting.defaults, |given| &given.values)
}

fn shown(setting: &Setting, given: Option<&Given>) -> String {
    match value(setting, given) {
        [] => "its default".to_owned(),
        _ if setting.secret => "another secret".to_owned(),
        values => values.join(" "),
    }
}

/// A filter's grammar accepts any word as a module's name, so a mistyped level would silence the
/// log.
pub(super) fn check_log(filter: &str) -> Result<(), ConfigError> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_plain = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric());
    let word = filter
        .split(',')
        .map(str::trim)
        .find(|part| is_plain(part) && !LEVELS.contains(&part.to_lowercase().as_str()));
    if word.is_some() {
        let expected = format!(
            "expected {} or filters as in info,podwire_ovs=debug",
            LEVELS.join(", ")
        );
        return Err(bad("--log", filter, &expected));
    }
    tracing_subscriber::EnvFilter::try_new(filter)
        .map(drop)
        .map_err(|error| bad("--log", filter, &error.to_string()))
}
