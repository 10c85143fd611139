//! The second gateway bridge, whose NIC is a spare one.

use super::{DataBridge, Hints, Profile, SettingsError, bad};
use crate::EXTRA_GATEWAY;

/// The physical network of the second bridge, as ovn-kubernetes names it.
const NETWORK: &str = "exgwphysnet";
const FLAG: &str = "--extra-interface";

/// The bridge, if the flag or a file of others names its NIC.
///
/// # Errors
/// It does not go with the profile, or with another bridge.
pub(super) fn bridge(
    flag: Option<String>,
    profile: Profile,
    hints: &Hints,
    others: &[DataBridge],
) -> Result<Option<DataBridge>, SettingsError> {
    let hint = hints.extra.as_ref();
    let (by, nic) = match (flag, hint) {
        (Some(nic), _) => (FLAG, nic),
        (None, Some((path, nic))) => (*path, nic.clone()),
        (None, None) => return Ok(None),
    };
    if profile != Profile::Bridged {
        let problem = "it is for --profile bridged: use that, or --data-bridge";
        return Err(bad(by, &nic, problem));
    }
    let is_taken = |it: &&DataBridge| it.name == EXTRA_GATEWAY || it.nic == nic;
    if let Some(other) = others.iter().find(is_taken) {
        let problem = format!("--data-bridge {} has the bridge or the NIC", other.by.1);
        return Err(bad(by, &nic, problem));
    }
    Ok(Some(DataBridge {
        name: EXTRA_GATEWAY.to_owned(),
        network: Some(NETWORK.to_owned()),
        by: (by, nic.clone()),
        nic,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_counts_before_the_file_and_no_bridge_is_there_twice() {
        let file = Hints {
            extra: Some(("/etc/ovnk/extra_bridge", "eth2".to_owned())),
            ..Hints::default()
        };
        let of = |flag: Option<&str>, hints: &Hints, others: &[DataBridge]| {
            bridge(flag.map(str::to_owned), Profile::Bridged, hints, others)
        };
        assert_eq!(of(None, &Hints::default(), &[]).unwrap(), None);
        let by_file = of(None, &file, &[]).unwrap().unwrap();
        assert_eq!((&*by_file.name, &*by_file.nic), ("br-ex1", "eth2"));
        assert_eq!(by_file.network.as_deref(), Some("exgwphysnet"));
        let by_flag = of(Some("eth1"), &file, &[]).unwrap().unwrap();
        assert_eq!(by_flag.nic, "eth1");
        let twice = of(Some("eth1"), &file, &[by_flag]).unwrap_err().to_string();
        assert!(twice.contains("--extra-interface eth1"), "{twice}");
        let routed = bridge(Some("eth1".to_owned()), Profile::Routed, &file, &[]);
        assert!(routed.unwrap_err().to_string().contains("--data-bridge"));
    }
}
