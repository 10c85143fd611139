use podwire_ovs::transact::{Columns, Condition, Mutation, Transaction};
use podwire_ovs::value::Value;

use crate::fixture::{Server, commit, dscps, insert_queue, soon};

#[tokio::test]
async fn each_operation_does_what_it_says_and_reports_it() {
    let server = Server::start();
    let client = server.client().await;

    let mut insert = Transaction::new();
    let config = Value::map([("max-rate", "1000"), ("burst", "7")]);
    let queue = insert.insert(
        "Queue",
        Columns::new().set("dscp", 3).set("other_config", config),
    );
    insert.comment("made by a test");
    let outcome = client.transact(&insert, soon()).await.unwrap();
    let queue = outcome.uuid(queue).unwrap();

    let mut change = Transaction::new();
    let update = change
        .update(
            "Queue",
            Condition::uuid(queue),
            Columns::new().set("dscp", 5),
        )
        .expect_count(1)
        .index();
    let mutations = Mutation::delete("other_config", "burst");
    let mutate = change
        .mutate("Queue", Condition::uuid(queue), mutations)
        .expect_count(1)
        .index();
    let select = change.select(
        "Queue",
        Condition::includes("other_config", Value::map([("max-rate", "1000")])),
        &["dscp", "other_config"],
    );
    let select = select.expect_count(1).index();
    let none = change
        .select("Queue", Condition::equal("dscp", 3), &[])
        .index();
    let outcome = client.transact(&change, soon()).await.unwrap();
    assert_eq!(
        (outcome.count(update), outcome.count(mutate)),
        (Some(1), Some(1))
    );
    assert_eq!(outcome.rows(none), []);
    let [row] = outcome.rows(select) else {
        panic!("{outcome:?}")
    };
    assert_eq!(row.column("dscp"), Some(&Value::from(5)));
    assert_eq!(
        row.column("other_config"),
        Some(&Value::map([("max-rate", "1000")]))
    );

    let outcome = commit(&client, |transaction| {
        transaction
            .delete("Queue", Condition::uuid(queue))
            .expect_count(1);
    });
    assert_eq!(outcome.await.unwrap().count(0), Some(1));
    assert!(dscps(&client).is_empty());
}

#[tokio::test]
async fn guards_that_hold_let_the_transaction_through() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let outcome = commit(&client, |transaction| {
        transaction.guard("Open_vSwitch", Condition::uuid(root));
        transaction.guard("Open_vSwitch", []);
        insert_queue(transaction, 1);
    });
    outcome.await.unwrap();
    assert_eq!(dscps(&client), [1]);
}

#[tokio::test]
async fn every_kind_of_value_comes_back_as_it_was_sent() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let text = "ü \" \\ \u{1} \u{1f980} </script> \u{7f}";
    let external_ids = Value::map([("key", text), ("", "empty key")]);
    let types = Value::set(["a", "b", text]);
    let columns = Columns::new()
        .set("external_ids", external_ids.clone())
        .set("datapath_types", types.clone());
    commit(&client, |transaction| {
        transaction
            .update(
                "Open_vSwitch",
                Condition::uuid(root),
                columns.set("next_cfg", i64::MIN),
            )
            .expect_count(1);
        let columns = Columns::new()
            .set("name", "m")
            .set("output_vlan", 7)
            .set("statistics", Value::map([("n", i64::MAX)]));
        let mirror = transaction.insert("Mirror", columns);
        let columns = Columns::new()
            .set("name", "br0")
            .set("mirrors", mirror)
            .set("stp_enable", true)
            .set("flood_vlans", Value::set([1, 2]));
        let bridge = transaction.insert("Bridge", columns);
        transaction
            .mutate(
                "Open_vSwitch",
                Condition::uuid(root),
                Mutation::insert("bridges", bridge),
            )
            .expect_count(1);
    })
    .await
    .unwrap();
    let outcome = commit(&client, |transaction| {
        transaction.select(
            "Open_vSwitch",
            [],
            &["external_ids", "datapath_types", "next_cfg"],
        );
        transaction.select("Bridge", [], &["stp_enable", "flood_vlans", "mirrors"]);
        transaction.select("Mirror", [], &["_uuid", "output_vlan", "statistics"]);
    });
    let outcome = outcome.await.unwrap();
    let row = |index: usize| outcome.rows(index).first().unwrap();
    assert_eq!(row(0).column("external_ids"), Some(&external_ids));
    assert_eq!(row(0).column("datapath_types"), Some(&types));
    assert_eq!(row(0).column("next_cfg"), Some(&Value::from(i64::MIN)));
    assert_eq!(row(1).column("stp_enable"), Some(&Value::from(true)));
    assert_eq!(row(1).column("flood_vlans"), Some(&Value::set([1, 2])));
    assert_eq!(row(1).column("mirrors"), row(2).column("_uuid"));
    assert_eq!(
        row(2).column("statistics"),
        Some(&Value::map([("n", i64::MAX)]))
    );
    client.read(|db| {
        let root = db.open_vswitch().unwrap();
        assert_eq!(root.external_id("key"), Some(text));
        let types = root.row().column("datapath_types").unwrap().atoms();
        let types: Vec<_> = types.filter_map(|it| it.as_str()).collect();
        assert_eq!(types, ["a", "b", text]);
    });
}

#[tokio::test]
async fn when_a_transaction_returns_its_changes_are_in_the_replica() {
    let server = Server::start();
    let client = server.client().await;
    for dscp in 0..64 {
        let mut transaction = Transaction::new();
        let queue = transaction.insert("Queue", Columns::new().set("dscp", dscp));
        let queue = client
            .transact(&transaction, soon())
            .await
            .unwrap()
            .uuid(queue)
            .unwrap();
        client.read(|db| assert_eq!(db.row("Queue", queue).unwrap().integer("dscp"), Some(dscp)));
        commit(&client, |transaction| {
            transaction
                .delete("Queue", Condition::uuid(queue))
                .expect_count(1);
        })
        .await
        .unwrap();
        client.read(|db| assert!(db.row("Queue", queue).is_none()));
    }
}
