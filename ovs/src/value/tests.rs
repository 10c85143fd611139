use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;

use super::*;

fn encoded(value: &Value) -> String {
    let mut out = Vec::new();
    value.encode(5, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn parsed(json: &str) -> Result<Value, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn atom() -> impl Strategy<Value = Atom> {
    prop_oneof![
        any::<i64>().prop_map(Atom::Integer),
        any::<bool>().prop_map(Atom::Boolean),
        ".*".prop_filter("no NUL", |text| !text.contains('\0'))
            .prop_map(Atom::from),
        any::<[u8; 16]>().prop_map(|bytes| Atom::Uuid(Uuid::from_bytes(bytes))),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        atom().prop_map(Value::Atom),
        btree_set(atom(), 0..8).prop_map(Value::from_set),
        btree_map(atom(), atom(), 0..8).prop_map(Value::map),
    ]
}

proptest! {
    #[test]
    fn a_value_is_read_back_as_it_was_written(value in value()) {
        prop_assert_eq!(parsed(&encoded(&value)), Ok(value));
    }

    #[test]
    fn a_map_finds_every_key_it_has_and_no_other(entries in btree_map("[a-c]{0,3}", any::<i64>(),
        0..8), absent in "[a-d]{0,3}") {
        let Value::Map(map) = Value::map(entries.clone()) else { unreachable!() };
        for (key, value) in &entries {
            prop_assert_eq!(map.get(key), Some(&Atom::Integer(*value)));
        }
        prop_assert_eq!(map.get(&absent).is_some(), entries.contains_key(&absent));
    }

    #[test]
    fn a_map_s_difference_is_applied_as_the_server_makes_it(
        old in btree_map("[a-e]", 0..3_i64, 0..5),
        new in btree_map("[a-e]", 0..3_i64, 0..5),
    ) {
        // ovsdb_datum_diff: a key on one side only, with its value; a key whose value differs, with
        // the new one.
        let one_side = old.iter().filter(|(key, _)| !new.contains_key(*key));
        let changed = new.iter().filter(|(key, value)| old.get(*key) != Some(value));
        let difference: Map = one_side.chain(changed).map(|(key, value)| (key.into(), (*value)
            .into())).collect();
        let map = |entries: &std::collections::BTreeMap<String, i64>| entries.iter().map(|(key,
            value)| (key.into(), (*value).into())).collect::<Map>();
        prop_assert_eq!(map(&old).merged(difference), map(&new));
    }

    #[test]
    fn a_uuid_s_text_is_its_own(bytes in any::<[u8; 16]>()) {
        let uuid = Uuid::from_bytes(bytes);
        prop_assert_eq!(uuid.to_string().parse(), Ok(uuid));
        prop_assert_eq!(uuid.to_string().to_uppercase().parse(), Ok(uuid));
    }

    #[test]
    fn no_text_makes_the_uuid_parser_panic(text in ".{0,40}") {
        let _ = text.parse::<Uuid>();
    }
}

#[test]
fn both_notations_of_one_element_are_one_value() {
    assert_eq!(parsed(r#"["set",["a"]]"#), parsed(r#""a""#));
    assert_eq!(
        parsed(r#"["set",[["uuid","00000000-0000-0000-0000-000000000000"]]]"#)
            .unwrap()
            .as_uuid(),
        Some(Uuid::from_bytes([0; 16]))
    );
    assert_eq!(Value::set([1]), Value::from(1));
    assert_eq!(Value::set([1, 1]), Value::from(1));
    assert_eq!(parsed(r#"["set",[]]"#), Ok(Value::empty()));
}

#[test]
fn what_is_not_a_value_is_refused() {
    for json in [
        "null",
        "{}",
        "[]",
        r#"["set"]"#,
        r#"["set",1]"#,
        r#"["set",[],1]"#,
        r#"["set",[["set",[]]]]"#,
        r#"["set",[1,1]]"#,
        r#"["set",[1,["map",[]]]]"#,
        r#"["map",[[1]]]"#,
        r#"["map",[[1,2,3]]]"#,
        r#"["map",[[1,2],[1,3]]]"#,
        r#"["map",{}]"#,
        r#"["uuid","0"]"#,
        r#"["uuid","00000000-0000-0000-0000-00000000000"]"#,
        r#"["uuid","00000000+0000-0000-0000-000000000000"]"#,
        r#"["uuid","+0000000-0000-0000-0000-000000000000"]"#,
        r#"["uuid","00000000-0000-0000-0000-0000000000000"]"#,
        r#"["uuid",1]"#,
        r#"["named-uuid","row"]"#,
        r#"["nonsense",1]"#,
        "[1,2]",
        "9223372036854775808",
        "1e999",
        "1.5",
    ] {
        assert!(parsed(json).is_err(), "{json}");
    }
}

#[test]
fn a_row_s_name_carries_its_transaction_s_number() {
    assert_eq!(
        encoded(&Value::from(RowName(3))),
        r#"["named-uuid","r5_3"]"#
    );
    assert_eq!(
        encoded(&Value::map([(7, RowName(0))])),
        r#"["map",[[7,["named-uuid","r5_0"]]]]"#
    );
}

#[test]
fn a_string_that_open_vswitch_can_t_take_is_not_sent() {
    let mut out = Vec::new();
    assert_eq!(
        Value::from("a\0b").encode(0, &mut out),
        Err(EncodeError::Nul("a\0b".to_owned()))
    );
    assert_eq!(
        Value::map([("key", "\0")]).encode(0, &mut out),
        Err(EncodeError::Nul("\0".to_owned()))
    );
}

#[test]
fn of_two_entries_with_one_key_the_last_stays() {
    assert_eq!(
        Value::map([("a", 1), ("b", 2), ("a", 3), ("a", 4)]),
        Value::map([("b", 2), ("a", 4)])
    );
}
