use super::*;

#[test]
fn an_error_object_has_version_code_and_msg_and_details_only_if_any() {
    let error = SpecError::new(ErrorCode::TRY_AGAIN, "later \"perhaps\"");
    let object: Value = serde_json::from_str(&error.to_json(CniVersion::V0_4_0)).unwrap();
    assert_eq!(
        object,
        json!({"cniVersion": "0.4.0", "code": 11, "msg": "later \"perhaps\""})
    );
    let error = error.with_details("why");
    let object: Value = serde_json::from_str(&error.to_json(CniVersion::V1_1_0)).unwrap();
    assert_eq!(object["details"], "why");
    assert_eq!(error.to_string(), "later \"perhaps\": why");
}

#[test]
fn an_error_object_round_trips_and_anything_else_is_none() {
    let error = SpecError::new(ErrorCode(107), "no").with_details("more");
    assert_eq!(
        SpecError::from_json(error.to_json(CniVersion::LATEST).as_bytes()),
        Some(error)
    );
    for text in [
        "",
        "{}",
        "[]",
        r#"{"code":1}"#,
        r#"{"code":-1,"msg":""}"#,
        r#"{"code":"1","msg":""}"#,
    ] {
        assert_eq!(SpecError::from_json(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn the_table_of_codes_is_sorted_and_has_each_once() {
    assert!(ErrorCode::TABLE.is_sorted_by(|(one, _), (next, _)| one < next));
    assert_eq!(
        ErrorCode::SUPERSEDED.meaning(),
        Some("superseded by a newer sandbox of the same pod")
    );
    assert_eq!(ErrorCode(99).meaning(), None);
}

#[test]
fn an_excerpt_is_cut_between_characters() {
    assert_eq!(excerpt("a\n"), r#""a\n""#);
    let cut = excerpt(&"é".repeat(81));
    assert!(
        cut.ends_with("… (162 bytes)") && cut.contains(&"é".repeat(80)),
        "{cut}"
    );
}

#[test]
fn another_programs_words_are_cut() {
    let long = "é".repeat(SpecError::MAX_TEXT);
    let error = SpecError::new(ErrorCode::IO, &long).with_details(&long);
    for text in [&error.msg, &error.details] {
        assert!(text.len() < SpecError::MAX_TEXT + 100);
        assert!(text.ends_with("… (32768 bytes)"), "{text}");
    }
}
