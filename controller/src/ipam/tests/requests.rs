use super::*;

#[test]
fn a_request_is_met_or_refused_with_a_reason() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
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
        (
            None,
            Some("0a:58:0a:00:00:01"),
            "0a:58:0a:00:00:01, which the router of node n has",
        ),
        // What annotations call a gateway, and the management port without an announced address.
        (
            None,
            Some(&mac("fd00::1".parse().unwrap()).to_string()),
            "which the router of node n has",
        ),
        (
            None,
            Some("0a:58:0a:00:00:02"),
            "which the management port of node n has",
        ),
        (None, Some("0a:58:0a:00:00:09"), "begin with 0a:58"),
        (None, Some("01:00:5e:00:00:01"), "podwire.io/mac-address"),
    ] {
        let refused = take(9, ips, mac).unwrap_err();
        assert!(refused.contains(reason), "{refused}");
    }
    let long = "x".repeat(250_000);
    for (ips, mac) in [(Some(&*long), None), (None, Some(&*long))] {
        assert!(take(9, ips, mac).unwrap_err().len() < 1_000);
    }
    let own = "02:00:00:00:00:01".parse().ok();
    assert_eq!(addresses.set_management("n", own).unwrap_err(), "pod ns/p1");
    addresses.set_management("other", own).unwrap();
}

#[test]
fn a_requested_address_rests_too_but_not_for_the_pod_that_replaces_its_holder() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
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
    let recorded = [net("10.0.0.77/24")];
    assert!(claim(&mut addresses, 2, ("uid", "n"), &recorded, now).is_err());
    take(&mut addresses, 1, "second", now).unwrap();
    addresses.release(&pod(1), now);
    take(&mut addresses, 2, "uid", now + REST).unwrap();

    // An earlier leader may have freed it.
    let mut addresses = Addresses::new(Layout::Nodes, REST);
    addresses.set_node("n", &[net("10.0.0.0/24")]);
    addresses.succeed(now);
    assert_eq!(take(&mut addresses, 1, "uid", now), rests(now + REST));
    // Of this one there was still a row.
    addresses.rest(&pod(1), "n", &former(&recorded, true).recorded, now);
    assert_eq!(take(&mut addresses, 2, "uid", now), rests(now + REST));
    take(&mut addresses, 1, "uid", now).unwrap();
}

#[test]
fn no_pod_s_derived_mac_is_another_s_on_its_switch() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
    let derived = |address: &str| mac(address.parse().unwrap());
    addresses.set_node("n", &[net("10.0.0.0/24")]);
    let port = Some(derived("10.0.0.4"));
    addresses.set_management("n", port).unwrap();
    let mut ask = |number, address: Option<&str>| {
        let whose = (&"uid".into(), &"n".into());
        let request = || Request::parse(address, None);
        let claimed = addresses.claim(&pod(number), whose, &[], request, now);
        claimed.map(|it| it.addresses[0].addr().to_string())
    };
    let refused = ask(1, Some("10.0.0.4")).unwrap_err().to_string();
    let named = "10.0.0.4 and so 0a:58:0a:00:00:04, which the management port of node n has";
    assert!(refused.contains(named), "{refused}");
    let given = [1, 2].map(|number| ask(number, None).unwrap());
    assert_eq!(given, ["10.0.0.3", "10.0.0.5"]);
    let told = addresses.set_management("n", Some(derived("10.0.0.3")));
    assert_eq!(told.unwrap_err(), "pod ns/p1");

    // Two addresses whose texts' SHA-256 begin alike.
    let alike = ["fd02::3404", "fd02::3d18"];
    assert_eq!(derived(alike[0]), derived(alike[1]));
    addresses.set_node("six", &[net("fd02::/64")]);
    addresses.set_node("other", &[net("fd02::/64")]);
    let mut run = |number, node: &str, address: &str, mac: Option<Mac>, is_certain| {
        let recorded = RecordedAddresses {
            addresses: vec![net(&format!("{address}/64"))],
            mac,
            is_exact: false,
            is_locked: false,
        };
        let (whose, former) = (
            (&"uid".into(), &node.into()),
            [FormerAddresses {
                recorded,
                is_certain,
            }],
        );
        let nothing = || Ok(Request::default());
        let claimed = addresses.claim(&pod(number), whose, &former, nothing, now);
        let text = |it: &Assigned| it.addresses[0].addr().to_string();
        claimed.map(text).map_err(|error| error.to_string())
    };
    run(3, "six", alike[0], None, true).unwrap();
    let twice = run(4, "six", alike[1], None, true).unwrap_err();
    assert!(twice.contains("which pod ns/p3 has too"), "{twice}");
    assert_eq!(run(4, "six", alike[1], None, false).unwrap(), "fd02::3405");
    run(5, "other", alike[1], None, true).unwrap();
    // The MAC address that was once derived from an address, too.
    let port = "0a:58:00:00:00:09".parse().ok();
    addresses.set_management("six", port).unwrap();
    let mut run = |number, is_certain| {
        let recorded = RecordedAddresses {
            addresses: vec![net("fd02::9/64")],
            mac: port,
            is_exact: false,
            is_locked: false,
        };
        let (whose, former) = (
            (&"uid".into(), &"six".into()),
            [FormerAddresses {
                recorded,
                is_certain,
            }],
        );
        let nothing = || Ok(Request::default());
        let claimed = addresses.claim(&pod(number), whose, &former, nothing, now);
        claimed.map(|it| it.mac).map_err(|error| error.to_string())
    };
    assert!(run(6, true).unwrap_err().contains("management port"));
    assert_eq!(run(6, false), Ok(derived("fd02::9")));
}

#[test]
fn a_pod_keeps_the_mac_that_was_derived_in_another_way_before() {
    let (mut addresses, now) = (Addresses::new(Layout::Nodes, REST), Instant::now());
    addresses.set_node("n", &[net("fd00::/64")]);
    let mut mac_of = |number, mac: &str, is_certain| {
        let recorded = RecordedAddresses {
            addresses: vec![net(&format!("fd00::{number}/64"))],
            mac: Some(mac.parse().unwrap()),
            is_exact: false,
            is_locked: false,
        };
        let whose = (&"uid".into(), &"n".into());
        let former = [FormerAddresses {
            recorded,
            is_certain,
        }];
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
