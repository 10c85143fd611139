use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, State};
use podwire_ovs::transact::{Columns, Condition, Mutation, TransactError, Transaction};
use podwire_ovs::value::Uuid;
use tokio::time::Instant;

use crate::fixture::{Server, bridge, commit, config, dscps, insert_queue, soon};

const NOBODY: Uuid = Uuid::from_bytes([7; 16]);

#[tokio::test]
async fn a_refused_operation_is_named_and_nothing_is_done() {
    let server = Server::start();
    let client = server.client().await;
    let outcome = commit(&client, |transaction| {
        insert_queue(transaction, 1);
        transaction.insert("Queue", Columns::new().set("dscp", 64));
        insert_queue(transaction, 2);
    });
    let error = outcome.await.unwrap_err();
    let TransactError::Operation {
        index: 1,
        operation: "insert",
        table,
        error,
        details: Some(details),
    } = &error
    else {
        panic!("{error:?}");
    };
    assert_eq!(
        (table.as_str(), error.as_str()),
        ("Queue", "constraint violation")
    );
    assert!(details.contains("64"), "{details}");
    assert!(dscps(&client).is_empty());
}

#[tokio::test]
async fn an_unknown_table_and_an_unknown_column_are_refused() {
    let server = Server::start();
    let client = server.client().await;
    for columns in [
        Columns::new().set("nonsense", 1),
        Columns::new().set("dscp", "a string"),
    ] {
        let error = commit(&client, |transaction| {
            transaction.insert("Queue", columns);
        });
        assert!(matches!(
            error.await,
            Err(TransactError::Operation { index: 0, .. })
        ));
    }
    let error = commit(&client, |transaction| {
        transaction.delete("Nonsense", []);
    });
    assert!(matches!(
        error.await,
        Err(TransactError::Operation {
            index: 0,
            operation: "delete",
            ..
        })
    ));
}

#[tokio::test]
async fn a_guard_that_does_not_hold_prevents_the_commit() {
    let server = Server::start();
    let client = server.client().await;
    let outcome = commit(&client, |transaction| {
        insert_queue(transaction, 1);
        transaction.guard("Bridge", Condition::uuid(NOBODY));
    });
    let error = outcome.await.unwrap_err();
    let table = "Bridge".to_owned();
    assert_eq!(error, TransactError::Guard { index: 1, table });
    assert!(dscps(&client).is_empty());
    // And one that no such row is there.
    let outcome = commit(&client, |transaction| {
        insert_queue(transaction, 1);
        transaction.guard_none("QoS", []);
    });
    outcome.await.unwrap();
    let outcome = commit(&client, |transaction| {
        insert_queue(transaction, 2);
        transaction.guard_none("Queue", Condition::equal("dscp", 1));
    });
    let error = outcome.await.unwrap_err();
    assert!(matches!(error, TransactError::Guard { index: 1, .. }));
    assert_eq!(dscps(&client), [1]);
}

#[tokio::test]
async fn a_duplicate_name_is_an_error_of_the_commit() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    bridge(&client, root, "br0").await;
    let add = podwire_ovs::vswitch::add_bridge(
        root,
        &podwire_ovs::vswitch::BridgeSpec {
            name: "br0".to_owned(),
            ..Default::default()
        },
    );
    let error = client.transact(&add.transaction, soon()).await.unwrap_err();
    let TransactError::Commit {
        error,
        details: Some(details),
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(error, "constraint violation");
    assert!(details.contains("br0"), "{details}");
}

#[tokio::test]
async fn a_mutation_that_matches_no_row_is_an_error() {
    let server = Server::start();
    let client = server.client().await;
    let outcome = commit(&client, |transaction| {
        insert_queue(transaction, 1);
        let mutation =
            Mutation::insert("external_ids", podwire_ovs::value::Value::map([("a", "b")]));
        transaction
            .mutate("Bridge", Condition::uuid(NOBODY), mutation)
            .expect_count(1);
    });
    let error = outcome.await.unwrap_err();
    let expected = TransactError::Count {
        index: 1,
        operation: "mutate",
        table: "Bridge".to_owned(),
        expected: 1,
        actual: 0,
    };
    assert_eq!(error, expected);
    // As documented: the rest is committed.
    assert_eq!(dscps(&client), [1]);
}

#[tokio::test]
async fn what_cannot_be_sent_is_refused_before_it_could_harm_others() {
    let server = Server::start();
    let client = Client::start(ClientConfig {
        transaction_bytes: 1000,
        ..server.config()
    });
    let outcome = commit(&client, |transaction| {
        transaction.comment("NUL: \0");
    });
    assert!(matches!(
        outcome.await,
        Err(TransactError::Invalid { index: 0, .. })
    ));
    let outcome = commit(&client, |transaction| {
        transaction.comment("x".repeat(1000));
    });
    assert!(matches!(
        outcome.await,
        Err(TransactError::TooLarge {
            bytes: 1029,
            limit: 1000
        })
    ));
    client.synced(soon()).await.unwrap();
    assert_eq!(client.stats().connects, 1);
}

#[tokio::test]
async fn without_a_server_the_deadline_ends_the_wait_and_nothing_was_sent() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::start(config(&directory.path().join("nobody.sock")));
    let mut transaction = Transaction::new();
    insert_queue(&mut transaction, 1);
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = client.transact(&transaction, deadline).await.unwrap_err();
    let TransactError::Timeout {
        sent: false, seen, ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(
        seen.contains("nobody.sock") && seen.contains("No such file"),
        "{seen}"
    );
    assert!(matches!(
        client.state(),
        State::Disconnected {
            last_error: Some(_),
            ..
        }
    ));
}

#[tokio::test]
async fn more_callers_than_allowed_are_turned_away_and_those_who_left_make_room() {
    let directory = tempfile::tempdir().unwrap();
    let client = Client::start(ClientConfig {
        queue: 2,
        ..config(&directory.path().join("nobody.sock"))
    });
    let mut transaction = Transaction::new();
    insert_queue(&mut transaction, 1);
    let now = Instant::now();
    {
        let mut first = Box::pin(client.transact(&transaction, soon()));
        let mut second = Box::pin(client.transact(&transaction, soon()));
        for waiting in [&mut first, &mut second] {
            assert!(tokio::time::timeout_at(now, waiting).await.is_err());
        }
        assert_eq!(
            client.transact(&transaction, soon()).await,
            Err(TransactError::Overloaded { queued: 2 })
        );
    }
    let error = client.transact(&transaction, now).await.unwrap_err();
    assert!(matches!(error, TransactError::Timeout { sent: false, .. }));
    let said = error.to_string();
    assert!(
        said.starts_with("no time was left to ask OVSDB: "),
        "{said}"
    );
}

#[tokio::test]
async fn a_server_that_stops_answering_leaves_the_outcome_open() {
    let mut server = Server::start();
    let client = server.client().await;
    server.freeze();
    let mut transaction = Transaction::new();
    insert_queue(&mut transaction, 1);
    let error = client
        .transact(&transaction, Instant::now() + Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransactError::Timeout { sent: true, .. }),
        "{error:?}"
    );
    // This one waits behind the first.
    let error = client
        .transact(&transaction, Instant::now() + Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(
        matches!(error, TransactError::Timeout { sent: false, .. }),
        "{error:?}"
    );
    server.kill();
}

#[tokio::test]
async fn a_connection_lost_after_sending_says_so() {
    let mut server = Server::start();
    let client = server.client().await;
    server.freeze();
    let mut transaction = Transaction::new();
    insert_queue(&mut transaction, 1);
    let kill = async {
        while client.stats().requests == 0 {
            tokio::task::yield_now().await;
        }
        server.kill();
    };
    let (outcome, ()) = tokio::join!(client.transact(&transaction, soon()), kill);
    assert!(
        matches!(outcome, Err(TransactError::Disconnected { sent: true, .. })),
        "{outcome:?}"
    );
}
