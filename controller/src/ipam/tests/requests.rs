use super::*;

#[test]
fn a_request_is_met_or_refused_with_a_reason() {
    let (mut addresses, now) = (Addresses::new(REST), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24"), net("fd00::/64")]);
    let port = "02:00:00:00:00:99".parse().ok();
    addresses.set_management("n", port).unwrap();
    let port = "02:00:00:00:00:98".parse().ok();
    addresses.set_management("other", port).unwrap();
    let mut take = |number, ips: Option<&str>, mac: Option<&str>| {
        let claimed = addresses.claim(
            &pod(number),
            (&"uid".into(), &"n".into()),
            &[],
            || Request::parse(ips, mac),
            now,
        );
        let claimed = claimed.map_err(|error| error.to_string())?;
        let first = claimed.addresses[0].addr();
        Ok::<_, String>(format!(
            "{first} {} {}",
            claimed.addresses[1].addr(),
            claimed.mac
        ))
    };
    let given = take(1, Some("10.0.0.77, fd00::77"), Some("02:00:00:00:00:01"));
    assert_eq!(given.unwrap(), "10.0.0.77 fd00::77 02:00:00:00:00:01");
    // What it does not ask for it gets as any other.
    let given = take(2, Some("fd00::9"), None);
    assert_eq!(given.unwrap(), "10.0.0.78 fd00::9 0a:58:0a:00:00:4e");
    let own = take(3, Some("10.0.0.80"), Some("0a:58:0a:00:00:50"));
    assert!(own.is_ok(), "{own:?}");
    for (ips, mac, reason) in [
        (
            Some("10.0.0.77"),
            None,
            "requests 10.0.0.77, which pod ns/p1 has",
        ),
        (
            Some("10.0.1.9"),
            None,
            "node's subnets are 10.0.0.0/24, fd00::/64",
        ),
        (Some("10.0.0.2"), None, "without their first three"),
        (Some("10.0.0.255"), None, "and the last"),
        (Some("10.0.0.9,10.0.0.10"), None, "one family"),
        (
            Some("ten"),
            None,
            "podwire.io/ip-addresses: \"ten\" is no IP address",
        ),
        (
            None,
            Some("02:00:00:00:00:01"),
            "02:00:00:00:00:01, which pod ns/p1 has",
        ),
        (
            None,
            Some("02:00:00:00:00:99"),
            "which the management port of node n has",
        ),
        // The router's.
        (None, Some("0a:58:0a:00:00:01"), "begin with 0a:58"),
        (None, Some("01:00:5e:00:00:01"), "podwire.io/mac-address"),
    ] {
        let refused = take(9, ips, mac).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    let own = "02:00:00:00:00:01".parse().ok();
    assert_eq!(addresses.set_management("n", own).unwrap_err(), "pod ns/p1");
    addresses.set_management("other", own).unwrap();
}

#[test]
fn a_requested_address_rests_too_but_not_for_the_pod_that_replaces_its_holder() {
    let (mut addresses, now) = (Addresses::new(REST), Instant::now());
    addresses.set_node("n", &[net("10.0.0.0/24")]);
    let take = |addresses: &mut Addresses, number, uid: &str, at| {
        let whose = (&uid.into(), &"n".into());
        let request = || Request::parse(Some("10.0.0.77"), None);
        let claimed = addresses.claim(&pod(number), whose, &[], request, at);
        claimed.map(|_| ())
    };
    let rests = |until| {
        let address = "10.0.0.77".parse().unwrap();
        Err(AddressError::Released { address, until })
    };
    take(&mut addresses, 1, "first", now).unwrap();
    addresses.release(&pod(1), now);
    assert_eq!(take(&mut addresses, 2, "uid", now), rests(now + REST));
    // Nor is an annotation that users can write a way around it.
    let had = [net("10.0.0.77/24")];
    assert!(claim(&mut addresses, 2, ("uid", "n"), &had, now).is_err());
    take(&mut addresses, 1, "second", now).unwrap();
    addresses.release(&pod(1), now);
    take(&mut addresses, 2, "uid", now + REST).unwrap();

    // An earlier leader may have freed it.
    let mut addresses = Addresses::new(REST);
    addresses.set_node("n", &[net("10.0.0.0/24")]);
    addresses.succeed(now);
    assert_eq!(take(&mut addresses, 1, "uid", now), rests(now + REST));
    // Of this one there was still a row.
    addresses.rest(&pod(1), "n", &former(&had, true).had, now);
    assert_eq!(take(&mut addresses, 2, "uid", now), rests(now + REST));
    take(&mut addresses, 1, "uid", now).unwrap();
}

#[test]
fn a_pod_keeps_the_mac_that_was_derived_in_another_way_before() {
    let (mut addresses, now) = (Addresses::new(REST), Instant::now());
    addresses.set_node("n", &[net("fd00::/64")]);
    let mut mac_of = |number, mac: &str, is_certain| {
        let had = Had {
            addresses: vec![net(&format!("fd00::{number}/64"))],
            mac: Some(mac.parse().unwrap()),
            is_exact: false,
        };
        let whose = (&"uid".into(), &"n".into());
        let former = [Former { had, is_certain }];
        let nothing = || Ok(Request::default());
        let claimed = addresses.claim(&pod(number), whose, &former, nothing, now);
        claimed.unwrap().mac.to_string()
    };
    assert_eq!(mac_of(5, "0a:58:00:00:00:05", false), "0a:58:00:00:00:05");
    assert_eq!(mac_of(6, "0a:58:00:00:00:06", true), "0a:58:00:00:00:06");
    // Another address' is not its own.
    let own = mac("fd00::7".parse().unwrap()).to_string();
    assert_eq!(mac_of(7, "0a:58:00:00:00:08", false), own);
}
