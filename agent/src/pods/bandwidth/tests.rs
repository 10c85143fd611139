use proptest::prelude::*;

use super::*;

fn read(ingress: &str) -> Result<Bandwidth, AnnotationError> {
    parse(&BTreeMap::from([(INGRESS.to_owned(), ingress.to_owned())]))
}

#[test]
fn quantities_are_bits_per_second_rounded_up() {
    let table = [
        ("1k", 1_000),
        ("1000", 1_000),
        ("10M", 10_000_000),
        ("1.5M", 1_500_000),
        ("+2G", 2_000_000_000),
        (".5G", 500_000_000),
        ("5.G", 5_000_000_000),
        ("1P", 1_000_000_000_000_000),
        ("1Ki", 1_024),
        ("1Mi", 1_048_576),
        ("1.5Ki", 1_536),
        ("2e6", 2_000_000),
        ("2E+6", 2_000_000),
        ("20000e-1", 2_000),
        ("1000001m", 1_001),
        ("1000000000001n", 1_001),
        ("1000.0000001", 1_001),
    ];
    for (text, expected) in table {
        assert_eq!(read(text).unwrap().ingress_rate, Some(expected), "{text}");
    }
}

#[test]
fn what_is_absent_is_no_limit_and_the_two_are_apart() {
    assert_eq!(parse(&BTreeMap::new()).unwrap(), Bandwidth::default());
    let both =
        [(INGRESS, "1M"), (EGRESS, "2M")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let expected = Bandwidth {
        ingress_rate: Some(1_000_000),
        egress_rate: Some(2_000_000),
    };
    assert_eq!(parse(&BTreeMap::from(both)).unwrap(), expected);
}

#[test]
fn a_refusal_names_annotation_and_value() {
    let words = "not a bandwidth between 1k and 1P bit/s";
    for text in [
        "",
        "fast",
        "999",
        "0",
        "-1M",
        "1.0001P",
        "2P",
        "1E",
        "1Pi",
        "1e16",
        "1MB",
        "1m",
        "1 M",
        "1.2.3M",
        ".",
        "+",
        "k",
        "1e",
        "1e99999999999",
        "1e2147483647",
        "1e-2147483648",
        "1K",
        "١M",
        "340282366920938463463374607431768211456",
    ] {
        let expected = format!("annotation kubernetes.io/ingress-bandwidth: {text:?}: {words}");
        assert_eq!(read(text).unwrap_err().to_string(), expected);
    }
    let egress = BTreeMap::from([(EGRESS.to_owned(), "x".to_owned())]);
    let expected = format!("annotation kubernetes.io/egress-bandwidth: \"x\": {words}");
    assert_eq!(parse(&egress).unwrap_err().to_string(), expected);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![".*",
        "[+-]?[0-9.]{0,40}([numkMGTPE]i?|[eE][+-]?[0-9]{0,12})?"]) {
        if let Ok(Bandwidth { ingress_rate, .. }) = read(&text) {
            prop_assert!(ingress_rate.is_some_and(|limit| (LEAST..=MOST).contains(&limit)));
        }
    }

    #[test]
    fn whole_numbers_mean_themselves(value in LEAST..=MOST) {
        prop_assert_eq!(read(&value.to_string()).unwrap().ingress_rate, Some(value));
    }
}
