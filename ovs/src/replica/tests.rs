use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use super::*;

const NAME: Index = Index::Column("name");
const REFERENCES: Index = Index::Column("refs");
const OPTIONAL: Index = Index::Column("opt");
const KEY: Index = Index::Key("map", "k");

const SPEC: TableSpec = TableSpec {
    name: "T",
    columns: &["name", "refs", "opt", "map", "missing"],
    indexes: &[NAME, REFERENCES, OPTIONAL, KEY],
};

fn schema() -> Schema {
    let unlimited = |key: &str| json!({ "key": key, "min": 0, "max": "unlimited" });
    let columns = json!({
        "name": { "type": "string" },
        "refs": { "type": unlimited("uuid") },
        "opt": { "type": { "key": { "type": "integer" }, "min": 0 } },
        "map": { "type": { "key": "string", "value": { "type": "string" }, "min": 0,
        "max": "unlimited" } },
    });
    Schema::parse(&json!({ "name": "D", "tables": { "T": { "columns": columns } } }).to_string())
        .unwrap()
}

fn empty() -> Db {
    let mut db = Db::new(&[SPEC]);
    assert!(db.set_schema(&schema()).unwrap().is_empty());
    db
}

/// A row as the server has it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    name: String,
    refs: BTreeSet<u8>,
    opt: Option<i32>,
    map: BTreeMap<String, String>,
}

type Rows = BTreeMap<u8, Model>;

fn uuid(number: u8) -> Uuid {
    Uuid::from_bytes([number; 16])
}

fn references(refs: &BTreeSet<u8>) -> Json {
    let refs: Vec<_> = refs
        .iter()
        .map(|&number| json!(["uuid", uuid(number).to_string()]))
        .collect();
    // One element may be written without its set.
    if let [one] = &refs[..] {
        one.clone()
    } else {
        json!(["set", refs])
    }
}

fn optional(opt: Option<i32>) -> Json {
    opt.map_or_else(|| json!(["set", []]), |number| json!(number))
}

fn map<'a>(entries: impl IntoIterator<Item = (&'a String, &'a String)>) -> Json {
    json!(["map", entries.into_iter().collect::<Vec<_>>()])
}

impl Model {
    /// All columns, but in an `update2` those of a default value are left out (ovsdb-server(7)).
    fn whole(&self, sparse: bool) -> Json {
        let mut row = serde_json::Map::new();
        let mut put = |column: &str, is_default: bool, value: Json| {
            if !(sparse && is_default) {
                row.insert(column.to_owned(), value);
            }
        };
        put("name", self.name.is_empty(), json!(self.name));
        put("refs", self.refs.is_empty(), references(&self.refs));
        put("opt", self.opt.is_none(), optional(self.opt));
        put("map", self.map.is_empty(), map(&self.map));
        Json::Object(row)
    }

    fn difference(&self, new: &Self) -> Json {
        let mut row = serde_json::Map::new();
        if self.name != new.name {
            row.insert("name".to_owned(), json!(new.name));
        }
        if self.refs != new.refs {
            row.insert(
                "refs".to_owned(),
                references(&self.refs.symmetric_difference(&new.refs).copied().collect()),
            );
        }
        if self.opt != new.opt {
            row.insert("opt".to_owned(), optional(new.opt));
        }
        if self.map != new.map {
            let gone = self
                .map
                .iter()
                .filter(|(key, _)| !new.map.contains_key(*key));
            let changed = new
                .map
                .iter()
                .filter(|(key, value)| self.map.get(*key) != Some(value));
            row.insert("map".to_owned(), map(gone.chain(changed)));
        }
        Json::Object(row)
    }
}

fn update2(old: &Rows, new: &Rows) -> String {
    let numbers: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let rows = numbers.into_iter().filter_map(|number| {
        let change = match (old.get(number), new.get(number)) {
            (None, Some(new)) => json!({ "insert": new.whole(true) }),
            (Some(_), None) => json!({ "delete": null }),
            (Some(old), Some(new)) if old != new => json!({ "modify": old.difference(new) }),
            _ => return None,
        };
        Some((uuid(*number).to_string(), change))
    });
    json!({ "T": rows.collect::<serde_json::Map<_, _>>() }).to_string()
}

fn update(old: &Rows, new: &Rows) -> String {
    let numbers: BTreeSet<_> = old.keys().chain(new.keys()).collect();
    let rows = numbers.into_iter().filter_map(|number| {
        let change = match (old.get(number), new.get(number)) {
            (None, Some(new)) => json!({ "new": new.whole(false) }),
            (Some(old), None) => json!({ "old": old.whole(false) }),
            (Some(old), Some(new)) if old != new => json!({ "old": {}, "new": new.whole(false) }),
            _ => return None,
        };
        Some((uuid(*number).to_string(), change))
    });
    json!({ "T": rows.collect::<serde_json::Map<_, _>>() }).to_string()
}

fn snapshot(rows: &Rows) -> String {
    let rows = rows.iter().map(|(number, row)| {
        (
            uuid(*number).to_string(),
            json!({ "initial": row.whole(true) }),
        )
    });
    json!({ "T": rows.collect::<serde_json::Map<_, _>>() }).to_string()
}

/// Rows, lookups and weight are those of the model.
fn assert_is(db: &Db, rows: &Rows) {
    assert_eq!(db.len("T"), rows.len());
    for (number, model) in rows {
        let row = db.row("T", uuid(*number)).unwrap();
        assert_eq!(row.str("name"), Some(&model.name[..]));
        assert_eq!(
            row.references("refs").collect::<Vec<_>>(),
            model.refs.iter().copied().map(uuid).collect::<Vec<_>>()
        );
        assert_eq!(row.integer("opt"), model.opt.map(i64::from));
        assert!(
            row.map("map")
                .strings()
                .eq(model.map.iter().map(|(key, value)| (&key[..], &value[..])))
        );
        assert_eq!(row.column("missing").map(Value::is_empty), Some(true));
    }
    let found = |index, atom: Atom| {
        db.find("T", index, atom)
            .map(|row| row.uuid())
            .collect::<Vec<_>>()
    };
    let those = |has: &dyn Fn(&Model) -> bool| {
        rows.iter()
            .filter(|(_, row)| has(row))
            .map(|(number, _)| uuid(*number))
            .collect::<Vec<_>>()
    };
    for text in ["", "a", "b"] {
        assert_eq!(found(NAME, text.into()), those(&|row| row.name == text));
        assert_eq!(
            found(KEY, text.into()),
            those(&|row| row.map.get("k").is_some_and(|value| value == text))
        );
    }
    for number in 0..6 {
        assert_eq!(
            found(REFERENCES, uuid(number).into()),
            those(&|row| row.refs.contains(&number))
        );
    }
    for number in -1..3 {
        assert_eq!(
            found(OPTIONAL, number.into()),
            those(&|row| row.opt == Some(number))
        );
    }
    let fresh: usize = db
        .tables
        .iter()
        .flat_map(|table| table.rows().map(|row| table::weigh(row.cells)))
        .sum();
    assert_eq!(db.tables.iter().map(Table::weight).sum::<usize>(), fresh);
}

fn model() -> impl Strategy<Value = Model> {
    let text = || {
        prop_oneof![
            Just(String::new()),
            Just("a".to_owned()),
            Just("b".to_owned())
        ]
    };
    let key = prop_oneof![
        Just("k".to_owned()),
        Just("l".to_owned()),
        Just("j".to_owned())
    ];
    (
        text(),
        btree_set(0..6_u8, 0..5),
        option::of(-1..3),
        btree_map(key, text(), 0..3),
    )
        .prop_map(|(name, refs, opt, map)| Model {
            name,
            refs,
            opt,
            map,
        })
}

fn rows() -> impl Strategy<Value = Rows> {
    btree_map(0..5_u8, model(), 0..5)
}

proptest! {
    #[test]
    fn updates_of_both_kinds_lead_where_a_fresh_snapshot_is(states in vec(rows(), 1..6)) {
        let (mut conditional, mut plain) = (empty(), empty());
        let mut old = Rows::new();
        for new in states {
            let differing: BTreeSet<_> = old.keys().chain(new.keys())
                .filter(|number| old.get(number) != new.get(number)).map(|&number| uuid(number))
                    .collect();
            let changes = conditional.apply(MonitorMethod::Conditional, &update2(&old, &new))
                .unwrap();
            prop_assert_eq!(conditional.changed(&changes).map(|(_, uuid)| uuid)
                .collect::<BTreeSet<_>>(), differing);
            plain.apply(MonitorMethod::Plain, &update(&old, &new)).unwrap();
            for db in [&conditional, &plain] {
                assert_is(db, &new);
            }
            let mut fresh = empty();
            fresh.load(MonitorMethod::Conditional, &snapshot(&new)).unwrap();
            assert_is(&fresh, &new);
            old = new;
        }
    }

    #[test]
    fn a_snapshot_over_old_rows_changes_what_differs_and_nothing_else(old in rows(),
        new in rows()) {
        let mut db = empty();
        db.load(MonitorMethod::Conditional, &snapshot(&old)).unwrap();
        let changes = db.load(MonitorMethod::Conditional, &snapshot(&new)).unwrap();
        assert_is(&db, &new);
        let differing: Vec<_> = old.keys().chain(new.keys())
            .filter(|number| old.get(number) != new.get(number)).map(|&number| uuid(number))
                .collect::<BTreeSet<_>>().into_iter().collect();
        let mut changed: Vec<_> = db.changed(&changes).map(|(_, uuid)| uuid).collect();
        changed.sort();
        prop_assert_eq!(changed, differing);
        prop_assert!(db.load(MonitorMethod::Conditional, &snapshot(&new)).unwrap().is_empty());
    }

    #[test]
    fn no_update_makes_a_replica_panic_or_inconsistent(updates in vec(hostile_update(), 0..8)) {
        for method in [MonitorMethod::Conditional, MonitorMethod::Plain] {
            let mut db = empty();
            db.load(MonitorMethod::Conditional, r#"{"T":{}}"#).unwrap();
            for update in &updates {
                let _ = db.apply(method, update);
                let fresh: usize = db.tables.iter().flat_map(|table| table.rows()
                    .map(|row| table::weigh(row.cells))).sum();
                prop_assert_eq!(db.tables.iter().map(Table::weight).sum::<usize>(), fresh);
                for row in db.rows("T") {
                    prop_assert_eq!(db.find("T", NAME, row.str("name").unwrap())
                        .filter(|found| found.uuid() == row.uuid()).count(), 1);
                }
            }
        }
    }
}

/// Updates that are nearly right.
fn hostile_update() -> impl Strategy<Value = String> {
    let value = prop_oneof![
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        "[a-c]{0,2}".prop_map(Json::from),
        any::<bool>().prop_map(Json::from),
        Just(Json::Null),
        btree_set(0..6_u8, 0..5).prop_map(|refs| references(&refs)),
        vec("[a-c]{0,2}", 0..3).prop_map(|texts| json!(["set", texts])),
        vec(("[a-c]", "[a-c]"), 0..3).prop_map(|entries| json!(["map", entries])),
        Just(json!(["map", 1])),
        Just(json!(["uuid", "x"])),
        Just(json!({})),
    ];
    let column = prop_oneof![
        Just("name"),
        Just("refs"),
        Just("opt"),
        Just("map"),
        Just("missing")
    ];
    let kind = prop_oneof![
        Just("initial"),
        Just("insert"),
        Just("modify"),
        Just("delete"),
        Just("old"),
        Just("new")
    ];
    let row =
        (kind, btree_map(column, value, 0..4)).prop_map(|(kind, cells)| json!({ kind: cells }));
    let rows = btree_map(0..4_u8, row, 0..3);
    prop_oneof![
        9 => rows.prop_map(|rows| json!({ "T": rows.into_iter().map(|(number, row)| (uuid(number)
            .to_string(), row)).collect::<serde_json::Map<_, _>>() }).to_string()),
        1 => ".{0,40}",
    ]
}

#[test]
fn another_schema_forgets_the_rows_of_the_old_one() {
    let mut db = empty();
    let rows = Rows::from([(
        1,
        Model {
            name: "a".to_owned(),
            ..Model::default()
        },
    )]);
    db.load(MonitorMethod::Conditional, &snapshot(&rows))
        .unwrap();
    assert!(db.set_schema(&schema()).unwrap().is_empty());
    assert_is(&db, &rows);
    let other = Schema::parse(
        r#"{"tables":{"T":{"columns":{"name":{"type":{"key":"string","min":0,"max":5}}}}}}"#,
    )
    .unwrap();
    let changes = db.set_schema(&other).unwrap();
    assert_eq!(db.changed(&changes).collect::<Vec<_>>(), [("T", uuid(1))]);
    assert_eq!((db.len("T"), db.find("T", NAME, "a").count()), (0, 0));
    let none = Schema::parse(r#"{"tables":{}}"#).unwrap();
    assert!(matches!(
        db.set_schema(&none),
        Err(ReplicaError::NoTable("T"))
    ));
}

#[test]
fn a_schema_s_types_are_read_in_every_notation() {
    let column = |column_type: &str| {
        let schema =
            format!(r#"{{"tables":{{"T":{{"columns":{{"c":{{"type":{column_type}}}}}}}}}}}"#);
        Schema::parse(&schema).map(|schema| schema.column("T", "c").unwrap())
    };
    let known = |key, value, min, max| ColumnType {
        key,
        value,
        min,
        max,
    };
    use AtomType::{Boolean, Integer, Real, String, Uuid};
    assert_eq!(column(r#""boolean""#).unwrap(), known(Boolean, None, 1, 1));
    assert_eq!(
        column(r#"{"key":"real"}"#).unwrap(),
        known(Real, None, 1, 1)
    );
    assert_eq!(
        column(r#"{"key":{"type":"integer","minInteger":0},"min":0,"max":2}"#).unwrap(),
        known(Integer, None, 0, 2)
    );
    let map =
        r#"{"key":"string","value":{"type":"uuid","refTable":"X"},"min":0,"max":"unlimited"}"#;
    assert_eq!(column(map).unwrap(), known(String, Some(Uuid), 0, u64::MAX));
    for bad in [
        r#""text""#,
        "1",
        "{}",
        r#"{"key":"real","max":"many"}"#,
        r#"{"key":"real","min":-1}"#,
    ] {
        assert!(column(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_full_replica_takes_no_more_until_rows_go() {
    let row = |name: &str| Model {
        name: name.repeat(100),
        ..Model::default()
    };
    let mut db = empty().with_limit(2000);
    let (none, few) = (Rows::new(), Rows::from([(1, row("a")), (2, row("b"))]));
    db.apply(MonitorMethod::Conditional, &update2(&none, &few))
        .unwrap();
    let many: Rows = (0..50).map(|number| (number, row("c"))).collect();
    assert!(matches!(
        db.apply(MonitorMethod::Conditional, &update2(&few, &many)),
        Err(ReplicaError::TooLarge(2000))
    ));
    assert!(db.len("T") < 10);
    db.load(MonitorMethod::Conditional, &snapshot(&few))
        .unwrap();
    assert_is(&db, &few);
}
