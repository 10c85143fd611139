//! Networks that all nodes share.

use super::*;

fn shared(excluded: &[&str], subnets: &[&str]) -> Addresses {
    let excluded = excluded.iter().map(|it| net(it)).collect();
    let mut addresses = Addresses::new(Layout::Shared { excluded }, REST);
    let subnets: Vec<_> = subnets.iter().map(|it| net(it)).collect();
    addresses.set_node("blue", &subnets);
    addresses
}

fn take(
    addresses: &mut Addresses,
    entry: &str,
    (ips, mac): (Option<&str>, Option<&str>),
) -> Result<String, String> {
    let attachment = Attachment {
        entry: entry.into(),
        ..pod(1)
    };
    let request = || Request::parse(ips, mac);
    let whose = (&"uid".into(), &"blue".into());
    let claimed = addresses.claim(&attachment, whose, &[], request, Instant::now());
    let claimed = claimed.map_err(|error| error.to_string())?;
    let texts: Vec<_> = claimed.addresses.iter().map(ToString::to_string).collect();
    Ok(format!("{} {}", claimed.mac, texts.join(" ")))
}

#[test]
fn a_pod_gets_an_address_for_each_attachment_and_none_that_is_excluded() {
    let subnets = ["10.1.0.0/29", "fd00::/64"];
    let excluded = ["10.1.0.2/32", "10.1.0.4/31", "fd00::/65"];
    let mut addresses = shared(&excluded, &subnets);
    let nothing = (None, None);
    let first = take(&mut addresses, "ns/blue", nothing).unwrap();
    assert_eq!(first, "0a:58:0a:01:00:01 10.1.0.1/29 fd00::8000:0:0:0/64");
    let second = take(&mut addresses, "ns/blue/1", nothing).unwrap();
    assert_eq!(second, "0a:58:0a:01:00:03 10.1.0.3/29 fd00::8000:0:0:1/64");
    take(&mut addresses, "ns/green", nothing).unwrap();
    let full = take(&mut addresses, "ns/red", nothing).unwrap_err();
    assert!(full.contains("no address is left in 10.1.0.0/29"), "{full}");
    assert!(full.contains("network blue"), "{full}");
    // What a pod has stays, though it is excluded later.
    let recorded = FormerAddresses {
        is_certain: true,
        ..former(&[net("10.1.0.5/29")], true)
    };
    let whose = (&"uid".into(), &"blue".into());
    let nothing = || Ok(Request::default());
    let claimed = addresses.claim(&pod(2), whose, &[recorded], nothing, Instant::now());
    assert_eq!(claimed.unwrap().addresses, [net("10.1.0.5/29")]);
}

#[test]
fn requests_are_met_anywhere_in_the_networks_subnets_but_where_it_excludes() {
    let mut addresses = shared(&["10.0.0.0/24"], &["10.0.0.0/8", "fd00::/64"]);
    let wishes = (Some("10.200.1.1,fd00::1:2:3:4"), Some("02:00:00:00:00:01"));
    let given = take(&mut addresses, "ns/blue", wishes).unwrap();
    assert_eq!(given, "02:00:00:00:00:01 10.200.1.1/8 fd00::1:2:3:4/64");
    for (ips, reason) in [
        ("10.200.1.1", "which pod ns/p1 has"),
        ("10.0.0.9", "its network excludes 10.0.0.0/24"),
        ("192.0.2.1", "no pod of network blue can have"),
        ("10.255.255.255", "without their first address and the last"),
    ] {
        let refused = take(&mut addresses, "ns/blue/1", (Some(ips), None)).unwrap_err();
        assert!(refused.contains(reason), "{ips}: {refused}");
    }
    // No router is on it, and so none has the first address's MAC.
    let first = (Some("10.0.1.1"), Some("0a:58:0a:00:01:01"));
    take(&mut addresses, "ns/blue/1", first).unwrap();
}

#[test]
fn without_subnets_each_attachment_has_a_mac_address_of_its_own_that_it_keeps() {
    let mut addresses = shared(&[], &[]);
    let first = take(&mut addresses, "ns/blue", (None, None)).unwrap();
    let second = take(&mut addresses, "ns/blue/1", (None, None)).unwrap();
    assert!(first.starts_with("02:") && first.ends_with(' '), "{first}");
    assert_ne!(first, second);
    let wished = (None, Some("02:00:00:00:00:07"));
    take(&mut addresses, "ns/red", wished).unwrap();
    let refused = take(&mut addresses, "ns/green", wished).unwrap_err();
    assert!(refused.contains("which pod ns/p1 has"), "{refused}");
    let refused = take(&mut addresses, "ns/grey", (Some("10.0.0.1"), None)).unwrap_err();
    assert!(refused.contains("the network has no subnets"), "{refused}");
    // A leader that begins knows it by its row.
    let mut fresh = shared(&[], &[]);
    let recorded = RecordedAddresses {
        mac: Some("02:00:00:00:00:07".parse().unwrap()),
        ..RecordedAddresses::default()
    };
    let recorded = FormerAddresses {
        recorded,
        is_certain: true,
    };
    let whose = (&"uid".into(), &"blue".into());
    let claimed = fresh.claim(
        &pod(1),
        whose,
        &[recorded],
        || Ok(Request::default()),
        Instant::now(),
    );
    assert_eq!(claimed.unwrap().mac.to_string(), "02:00:00:00:00:07");
}
