//! Files by which MicroShift and OpenShift say which NIC becomes the gateway bridge's
//! (configure-ovs.sh; microshift-cni-overview). They are read, and never written.

use podwire_daemon::settings::{SettingsError, bad};

use super::Profile;
use crate::{EXTRA_GATEWAY, GATEWAY};

/// What they say. Each is a file, and a link that it names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Hints {
    /// The NIC, as --interface names it.
    pub(crate) named: Option<(&'static str, String)>,
    /// The NIC, if it has a default route.
    pub(crate) hint: Option<(&'static str, String)>,
    /// The NIC of the second bridge.
    pub(crate) extra: Option<(&'static str, String)>,
}

const DEFAULT_BRIDGE: &str = "/etc/ovnk/default_bridge";
const EXTRA_BRIDGE: &str = "/etc/ovnk/extra_bridge";
const HINT: &str = "/var/lib/ovnk/iface_default_hint";
const MICROSHIFT: &str = "/etc/microshift/ovn.yaml";

impl Hints {
    /// Those of this machine, for this profile.
    ///
    /// # Errors
    /// They leave the bridge to the operator.
    pub(super) fn read(profile: Profile) -> Result<Self, SettingsError> {
        let text = |path: &str| std::fs::read_to_string(path).ok();
        match profile {
            Profile::Bridged => Self::of(text),
            Profile::Routed | Profile::Adopt => Ok(Self::default()),
        }
    }

    fn of(text: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let link = |path: &'static str| {
            let text = text(path)?;
            let name = text.lines().next().unwrap_or_default().trim();
            let is_nic = !["", GATEWAY, EXTRA_GATEWAY].contains(&name);
            is_nic.then(|| (path, name.to_owned()))
        };
        let microshift = text(MICROSHIFT).unwrap_or_default();
        let value = |wanted: &str| {
            let mut lines = microshift.lines().filter_map(|line| {
                let line = line.split(" #").next().unwrap_or_default();
                line.split_once(':')
            });
            let value = lines.find_map(|(key, value)| (key.trim() == wanted).then_some(value));
            let value = value.map(|it| it.trim().trim_matches(['"', '\'']).to_owned());
            value.filter(|it| !it.is_empty())
        };
        if value("disableOVSInit").is_some_and(|it| it == "true") {
            let problem = format!(
                "{MICROSHIFT} has disableOVSInit: true, which leaves {GATEWAY} to the operator: \
                 use --profile adopt"
            );
            return Err(bad("--profile", "bridged", problem));
        }
        let of_microshift = |key| value(key).map(|nic| (MICROSHIFT, nic));
        let extra = link(EXTRA_BRIDGE).or_else(|| of_microshift("externalGatewayInterface"));
        let hint = link(HINT);
        Ok(Self {
            named: link(DEFAULT_BRIDGE).or_else(|| of_microshift("gatewayInterface")),
            hint: hint.filter(|(_, nic)| extra.as_ref().is_none_or(|(_, other)| other != nic)),
            extra,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(files: &[(&str, &str)]) -> Result<Hints, SettingsError> {
        Hints::of(|path| {
            let mut files = files.iter();
            files.find_map(|(name, text)| (*name == path).then(|| (*text).to_owned()))
        })
    }

    #[test]
    fn the_files_of_others_name_nics_and_never_bridges() {
        assert_eq!(of(&[]).unwrap(), Hints::default());
        let hints = of(&[
            (HINT, "eth1\n"),
            (EXTRA_BRIDGE, "eth2"),
            (DEFAULT_BRIDGE, "br-ex"),
        ]);
        let hints = hints.unwrap();
        assert_eq!(hints.hint, Some((HINT, "eth1".to_owned())));
        assert_eq!(hints.extra, Some((EXTRA_BRIDGE, "eth2".to_owned())));
        assert_eq!(hints.named, None);
        // The second bridge's is never the first one's.
        assert_eq!(
            of(&[(HINT, "eth1"), (EXTRA_BRIDGE, "eth1")]).unwrap().hint,
            None
        );
        let yaml = "ovsInit:\n  disableOVSInit: false # no\n  gatewayInterface: \"eth3\"\n";
        let hints = of(&[(MICROSHIFT, yaml)]).unwrap();
        assert_eq!(hints.named, Some((MICROSHIFT, "eth3".to_owned())));
    }

    #[test]
    fn a_bridge_that_is_left_to_the_operator_is_not_made() {
        let error = of(&[(MICROSHIFT, "disableOVSInit: true\nmtu: 1400\n")]).unwrap_err();
        assert!(error.to_string().contains("use --profile adopt"), "{error}");
    }
}
