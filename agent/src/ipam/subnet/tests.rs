use super::*;

fn spec(text: &str) -> SubnetSpec {
    text.parse().unwrap()
}

fn refusal(text: &str) -> String {
    text.parse::<SubnetSpec>().unwrap_err().to_string()
}

/// What is assignable, written as ranges.
fn assignable(text: &str) -> Vec<String> {
    let spec = spec(text);
    let address = |number| spec.family().address(number);
    let range = |(first, last)| AddressRange {
        first: address(first),
        last: address(last),
    };
    spec.assignable()
        .into_iter()
        .map(|interval| range(interval).to_string())
        .collect()
}

#[test]
fn a_bare_subnet_has_the_first_address_as_its_gateway() {
    assert_eq!(spec("10.186.0.0/22").gateway().to_string(), "10.186.0.1");
    assert_eq!(
        spec("fd70:6f64:7769:7265::/64").gateway().to_string(),
        "fd70:6f64:7769:7265::1"
    );
    assert_eq!(spec("10.186.0.0/31").gateway().to_string(), "10.186.0.0");
    assert_eq!(spec("fd00::/127").gateway().to_string(), "fd00::");
}

#[test]
fn network_broadcast_anycast_and_gateway_are_never_assignable() {
    let table: &[(&str, &[&str])] = &[
        ("10.0.0.0/24", &["10.0.0.2-10.0.0.254"]),
        ("10.0.0.0/24,gateway=10.0.0.254", &["10.0.0.1-10.0.0.253"]),
        (
            "10.0.0.0/24,gateway=10.0.0.9",
            &["10.0.0.1-10.0.0.8", "10.0.0.10-10.0.0.254"],
        ),
        ("10.0.0.0/30", &["10.0.0.2-10.0.0.2"]),
        ("10.0.0.0/31", &["10.0.0.1-10.0.0.1"]),
        ("10.0.0.0/31,gateway=10.0.0.1", &["10.0.0.0-10.0.0.0"]),
        ("fd00::/126", &["fd00::2-fd00::3"]),
        ("fd00::/127", &["fd00::1-fd00::1"]),
        ("fd00::/64", &["fd00::2-fd00::ffff:ffff:ffff:ffff"]),
        (
            "10.0.0.0/24,range=10.0.0.0-10.0.0.255",
            &["10.0.0.2-10.0.0.254"],
        ),
    ];
    for (text, expected) in table {
        assert_eq!(assignable(text), *expected, "{text}");
    }
}

#[test]
fn ranges_and_exclusions_shape_what_is_assignable() {
    let text = "10.186.0.0/22, gateway=10.186.0.1, range=10.186.2.0-10.186.2.9, \
                range=10.186.0.10-10.186.0.200, exclude=10.186.0.50, exclude=10.186.0.64/28";
    let expected = [
        "10.186.0.10-10.186.0.49",
        "10.186.0.51-10.186.0.63",
        "10.186.0.80-10.186.0.200",
        "10.186.2.0-10.186.2.9",
    ];
    assert_eq!(assignable(text), expected);
}

#[test]
fn an_address_knows_why_it_is_reserved() {
    let v4 = spec("10.0.0.0/24,exclude=10.0.0.64/28,range=10.0.0.20-10.0.0.100");
    let reserved = |address: &str| v4.reserved(address.parse().unwrap());
    assert_eq!(reserved("10.0.0.0"), Some(Reserved::Network));
    assert_eq!(reserved("10.0.0.255"), Some(Reserved::Broadcast));
    assert_eq!(reserved("10.0.0.1"), Some(Reserved::Gateway));
    let exclusion = "10.0.0.64/28".parse().unwrap();
    assert_eq!(reserved("10.0.0.70"), Some(Reserved::Excluded(exclusion)));
    assert_eq!(
        reserved("10.0.0.5"),
        None,
        "beside the range is not reserved"
    );
    let v6 = spec("fd00::/64");
    assert_eq!(
        v6.reserved("fd00::".parse().unwrap()),
        Some(Reserved::RouterAnycast)
    );
    assert_eq!(
        v6.reserved("fd00::ffff:ffff:ffff:ffff".parse().unwrap()),
        None
    );
}

#[test]
fn each_refusal_names_field_and_value() {
    let table = r#"
        pods => subnet "pods": not an address and a prefix length, as in 10.186.0.0/22
        10.0.0.0 => subnet "10.0.0.0": not an address and a prefix length, as in 10.186.0.0/22
        10.0.0.0/33 => subnet "10.0.0.0/33": not an address and a prefix length, as in 10.186.0.0/22
        10.0.0.5/24 => subnet 10.0.0.5/24: the address has bits below the prefix length; the subnet is 10.0.0.0/24
        fd00::1/64 => subnet fd00::1/64: the address has bits below the prefix length; the subnet is fd00::/64
        224.0.0.0/24 => subnet 224.0.0.0/24: not a range of ordinary unicast addresses
        127.1.0.0/16 => subnet 127.1.0.0/16: not a range of ordinary unicast addresses
        0.0.0.0/0 => subnet 0.0.0.0/0: not a range of ordinary unicast addresses
        fe80::/64 => subnet fe80::/64: not a range of ordinary unicast addresses
        ff02::/64 => subnet ff02::/64: not a range of ordinary unicast addresses
        ::/0 => subnet ::/0: not a range of ordinary unicast addresses
        10.0.0.1/32 => subnet 10.0.0.1/32: too small, it has no room for a gateway and a pod
        fd00::1/128 => subnet fd00::1/128: too small, it has no room for a gateway and a pod
        10.0.0.0/24, => subnet 10.0.0.0/24: unknown option ""; there are gateway=, range= and exclude=
        10.0.0.0/24,gw=10.0.0.1 => subnet 10.0.0.0/24: unknown option "gw=10.0.0.1"; there are gateway=, range= and exclude=
        10.0.0.0/24,gateway=10.0.0.1,gateway=10.0.0.1 => subnet 10.0.0.0/24: gateway is given twice, the second time as "10.0.0.1"
        10.0.0.0/24,gateway=first => subnet 10.0.0.0/24: gateway=first: not an address
        10.0.0.0/24,gateway=10.0.1.1 => subnet 10.0.0.0/24: gateway=10.0.1.1 is not within the subnet
        10.0.0.0/24,gateway=fd00::1 => subnet 10.0.0.0/24: gateway=fd00::1 is not within the subnet
        10.0.0.0/24,gateway=10.0.0.0 => subnet 10.0.0.0/24: gateway=10.0.0.0 is the subnet's network address
        10.0.0.0/24,gateway=10.0.0.255 => subnet 10.0.0.0/24: gateway=10.0.0.255 is the subnet's broadcast address
        fd00::/64,gateway=fd00:: => subnet fd00::/64: gateway=fd00:: is the subnet's subnet-router anycast address
        10.0.0.0/24,range=10.0.0.5 => subnet 10.0.0.0/24: range=10.0.0.5: not two addresses with - between them
        10.0.0.0/24,range=10.0.0.5-x => subnet 10.0.0.0/24: range=10.0.0.5-x: not two addresses with - between them
        10.0.0.0/24,range=10.0.0.5-10.0.1.9 => subnet 10.0.0.0/24: range=10.0.0.5-10.0.1.9 is not within the subnet
        10.0.0.0/24,range=10.0.0.9-10.0.0.5 => subnet 10.0.0.0/24: range=10.0.0.9-10.0.0.5 ends before it begins
        10.0.0.0/24,range=10.0.0.20-10.0.0.30,range=10.0.0.10-10.0.0.20 => subnet 10.0.0.0/24: range=10.0.0.20-10.0.0.30 overlaps range=10.0.0.10-10.0.0.20
        10.0.0.0/24,exclude=x => subnet 10.0.0.0/24: exclude=x: not an address or a CIDR
        10.0.0.0/24,exclude=10.0.0.65/28 => subnet 10.0.0.0/24: exclude=10.0.0.65/28: not a CIDR without bits below its prefix length
        10.0.0.0/24,exclude=10.0.0.0/16 => subnet 10.0.0.0/24: exclude=10.0.0.0/16 is not within the subnet
        10.0.0.0/24,exclude=10.0.0.0/24 => subnet 10.0.0.0/24: its ranges and exclusions leave no address for a pod
        10.0.0.0/30,exclude=10.0.0.2 => subnet 10.0.0.0/30: its ranges and exclusions leave no address for a pod
    "#;
    for case in table.trim().lines() {
        let (text, expected) = case.trim().split_once(" => ").unwrap();
        assert_eq!(refusal(text), expected, "{text}");
    }
    let expected = "subnet \"\": not an address and a prefix length, as in 10.186.0.0/22";
    assert_eq!(refusal(""), expected);
}
