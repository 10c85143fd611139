use super::batch::{Verdict, judge};
use super::encode::Shape;
use super::*;

fn encoded(build: impl FnOnce(&mut Transaction)) -> String {
    let mut transaction = Transaction::new();
    build(&mut transaction);
    String::from_utf8(transaction.encode(9).unwrap().bytes).unwrap()
}

#[test]
fn operations_are_written_as_rfc_7047_has_them() {
    let row = Uuid::from_bytes([0xab; 16]);
    const ROW: &str = r#"["uuid","abababab-abab-abab-abab-abababababab"]"#;
    let cases: [(String, String); 9] = [
        (
            encoded(|transaction| {
                let interface = transaction.insert("Interface", Columns::new().set("name", "a\"b"));
                transaction.insert("Port", Columns::new().set("interfaces", interface)
                    .set_some("tag", None::<i64>));
            }),
            r#"{"op":"insert","table":"Interface","uuid-name":"r9_0","row":{"name":"a\"b"}},{"op":"insert","table":"Port","uuid-name":"r9_1","row":{"interfaces":["named-uuid","r9_0"]}}"#.to_owned(),
        ),
        (
            encoded(|transaction| { transaction.select("Port", [Condition::equal("tag", 5)],
                &["name"]); }),
            r#"{"op":"select","table":"Port","where":[["tag","==",5]],"columns":["name"]}"#.to_owned(),
        ),
        (
            encoded(|transaction| { transaction.select("Port", [], &[]); }),
            r#"{"op":"select","table":"Port","where":[]}"#.to_owned(),
        ),
        (
            encoded(|transaction| { transaction.update("Port", Condition::uuid(row), Columns::new()
                .set("tag", Value::empty())); }),
            format!(r#"{{"op":"update","table":"Port","where":[["_uuid","==",{ROW}]],"row":{{"tag":["set",[]]}}}}"#),
        ),
        (
            encoded(|transaction| {
                let mutations = [Mutation::delete("external_ids", "key"),
                    Mutation::insert("bridges", row)];
                transaction.mutate("Open_vSwitch", [], mutations).expect_count(1);
            }),
            format!(r#"{{"op":"mutate","table":"Open_vSwitch","where":[],"mutations":[["external_ids","delete","key"],["bridges","insert",{ROW}]]}}"#),
        ),
        (
            encoded(|transaction| {
                transaction.mutate("NB_Global", [], Mutation::add("nb_cfg", 1));
            }),
            r#"{"op":"mutate","table":"NB_Global","where":[],"mutations":[["nb_cfg","+=",1]]}"#.to_owned(),
        ),
        (
            encoded(|transaction| { transaction.delete("Port", [Condition::equal("name", "x"),
                Condition::includes("trunks", 1)]); }),
            r#"{"op":"delete","table":"Port","where":[["name","==","x"],["trunks","includes",1]]}"#.to_owned(),
        ),
        (
            encoded(|transaction| { transaction.guard("Bridge", Condition::uuid(row)); }),
            format!(r#"{{"op":"wait","table":"Bridge","where":[["_uuid","==",{ROW}]],"columns":["_uuid"],"timeout":0,"until":"!=","rows":[]}}"#),
        ),
        (
            encoded(|transaction| {
                transaction.comment("why");
            }),
            r#"{"op":"comment","comment":"why"}"#.to_owned(),
        ),
    ];
    for (written, expected) in cases {
        assert_eq!(written, expected);
        assert!(serde_json::from_str::<serde_json::Value>(&format!("[{written}]")).is_ok());
    }
}

/// Two members: the first inserts and mutates one row, the second selects.
fn members() -> [Vec<Shape>; 2] {
    let mut first = Transaction::new();
    first.insert("Port", Columns::new());
    first.mutate("Bridge", [], []).expect_count(1);
    let mut second = Transaction::new();
    second.select("Port", [], &[]);
    second.guard("Port", []);
    [first, second].map(|transaction| transaction.encode(0).unwrap().shapes)
}

fn verdict(reply: &str) -> Result<Verdict, String> {
    let [first, second] = members();
    judge(Ok(reply), &[&first, &second]).map_err(|error| error.to_string())
}

const INSERTED: &str = r#"{"uuid":["uuid","abababab-abab-abab-abab-abababababab"]}"#;

#[test]
fn a_commit_is_told_apart_by_member() {
    let verdict = verdict(&format!(
        r#"[{INSERTED},{{"count":1}},{{"rows":[{{"name":"x"}},{{}}]}},{{}}]"#
    ))
    .unwrap();
    let Verdict::Committed(outcomes) = verdict else {
        panic!("{verdict:?}")
    };
    let [Ok(first), Ok(second)] = &outcomes[..] else {
        panic!("{outcomes:?}")
    };
    assert_eq!(
        (first.uuid(RowName(0)), first.count(1)),
        (Some(Uuid::from_bytes([0xab; 16])), Some(1))
    );
    assert_eq!(
        (first.uuid(RowName(1)), first.count(0), first.rows(1)),
        (None, None, &[][..])
    );
    assert_eq!(second.rows(0)[0].column("name"), Some(&Value::from("x")));
    assert_eq!(second.rows(0).len(), 2);
}

#[test]
fn a_wrong_count_is_its_member_s_error_and_the_other_s_outcome_stands() {
    let verdict = verdict(&format!(r#"[{INSERTED},{{"count":0}},{{"rows":[]}},{{}}]"#)).unwrap();
    let Verdict::Committed(outcomes) = verdict else {
        panic!("{verdict:?}")
    };
    let count = TransactError::Count {
        index: 1,
        operation: "mutate",
        table: "Bridge".to_owned(),
        expected: 1,
        actual: 0,
    };
    assert_eq!(outcomes[0], Err(count));
    assert!(outcomes[1].is_ok());
}

#[test]
fn a_failed_operation_names_its_member() {
    let details = Some("why".to_owned());
    let (error, table) = ("constraint violation".to_owned(), "Bridge".to_owned());
    let operation = TransactError::Operation {
        index: 1,
        operation: "mutate",
        table,
        error,
        details,
    };
    assert_eq!(
        verdict(&format!(
            r#"[{INSERTED},{{"error":"constraint violation","details":"why"}},null,null]"#
        )),
        Ok(Verdict::Culprit {
            member: 0,
            error: operation
        })
    );
    let guard = TransactError::Guard {
        index: 1,
        table: "Port".to_owned(),
    };
    assert_eq!(
        verdict(&format!(
            r#"[{INSERTED},{{"count":1}},{{"rows":[]}},{{"error":"timed out"}}]"#
        )),
        Ok(Verdict::Culprit {
            member: 1,
            error: guard
        })
    );
}

#[test]
fn a_failed_commit_names_nobody() {
    let commit = TransactError::Commit {
        error: "referential integrity violation".to_owned(),
        details: None,
    };
    assert_eq!(
        verdict(&format!(
            r#"[{INSERTED},{{"count":1}},{{"rows":[]}},{{}},{{"error":"referential integrity violation"}}]"#
        )),
        Ok(Verdict::Unattributed(commit))
    );
    let [first, second] = members();
    assert_eq!(
        judge(Err(r#""canceled""#), &[&first, &second]).unwrap(),
        Verdict::Unattributed(TransactError::Refused {
            error: r#""canceled""#.to_owned()
        })
    );
}

#[test]
fn a_reply_that_does_not_fit_is_refused() {
    for reply in [
        "{}",
        "[]",
        "[null,null,null,null]",
        &format!("[{INSERTED},{INSERTED},{INSERTED},{INSERTED}]"),
        &format!(r#"[{INSERTED},{{"count":1}},{{"rows":[]}}]"#),
        &format!(r#"[{INSERTED},{{"count":1}},{{"rows":[]}},{{}},{{}}]"#),
        &format!(r#"[{INSERTED},{{"count":1}},{{"rows":[]}},{{}},null]"#),
        &format!(r#"[{INSERTED},{{"count":1}},{{"rows":[]}},{{}},{{}},{{"error":"late"}}]"#),
        &format!(r#"[{INSERTED},{{"count":-1}},{{"rows":[]}},{{}}]"#),
        r#"[{"uuid":["set",[]]},{"count":1},{"rows":[]},{}]"#,
    ] {
        assert!(verdict(reply).is_err(), "{reply}");
    }
}
