use proptest::prelude::*;

use super::*;

fn parse(annotations: &[(&str, &str)]) -> Result<Settings, AnnotationError> {
    let annotations = annotations
        .iter()
        .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
        .collect();
    Settings::parse(&annotations)
}

#[test]
fn the_pods_mtu_is_for_every_interface_that_it_fits() {
    let none = parse(&[]).unwrap();
    assert_eq!(none.mtu_with(&[]), Ok(None));
    let v4: IpNet = "10.1.0.2/24".parse().unwrap();
    let v6: IpNet = "fd00::2/64".parse().unwrap();
    let small = parse(&[(MTU, "1279")]).unwrap();
    assert_eq!(small.mtu_with(&[v4]), Ok(Some(1279)));
    assert_eq!(
        small.mtu_with(&[v4, v6]).unwrap_err().to_string(),
        r#"annotation podwire.io/mtu: "1279": not an MTU between 1280 and 65535, as IPv6 needs"#
    );
}

#[test]
fn each_refusal_names_the_annotation_and_its_value() {
    for text in ["67", "65536", "1400 ", "", "1e3", "-1", "0x578"] {
        assert_eq!(
            parse(&[(MTU, text)]).unwrap_err().to_string(),
            format!("annotation podwire.io/mtu: {text:?}: not an MTU between 68 and 65535")
        );
    }
    let error = parse(&[(bandwidth::INGRESS, "fast")]).unwrap_err();
    assert_eq!(error.annotation, bandwidth::INGRESS);
}

#[test]
fn both_limits_are_read() {
    let settings = parse(&[(bandwidth::INGRESS, "10M"), (bandwidth::EGRESS, "1k")]).unwrap();
    assert_eq!(settings.bandwidth.ingress_rate, Some(10_000_000));
    assert_eq!(settings.bandwidth.egress_rate, Some(1_000));
}

proptest! {
    #[test]
    fn any_text_is_an_mtu_in_bounds_or_refused(text in "[+-]?[0-9]{0,12}|.*") {
        match parse(&[(MTU, &text)]) {
            Ok(settings) => prop_assert!((68..=65535).contains(&settings.mtu.unwrap())),
            Err(error) => prop_assert_eq!(error.annotation, MTU),
        }
    }
}
