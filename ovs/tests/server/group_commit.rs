use std::future::poll_fn;
use std::task::Poll;

use podwire_ovs::client::{Client, ClientConfig, GroupCommit};
use podwire_ovs::transact::{Columns, Condition, Mutation, TransactError, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{self, BridgeSpec};

use crate::fixture::{Server, commit, dscps, insert_queue, soon, transact_all};

fn queue(dscp: i64) -> Transaction {
    let mut transaction = Transaction::new();
    insert_queue(&mut transaction, dscp);
    transaction
}

fn queues(dscps: impl IntoIterator<Item = i64>) -> Vec<Transaction> {
    dscps.into_iter().map(queue).collect()
}

/// A client that groups so, after ten queues that were inserted at once.
async fn after_ten(server: &Server, group: GroupCommit) -> Client {
    let client = Client::start(ClientConfig {
        group,
        ..server.config()
    });
    client.synced(soon()).await.unwrap();
    for outcome in transact_all(&client, &queues(0..10)).await {
        outcome.unwrap();
    }
    client
}

/// The most that the database takes is 63.
const REFUSED: i64 = 64;

#[tokio::test]
async fn transactions_that_come_together_go_together_and_each_has_its_own_outcome() {
    let server = Server::start();
    let client = server.client().await;
    let mut transactions = Vec::new();
    let mut names = Vec::new();
    for dscp in 0..40 {
        let mut transaction = Transaction::new();
        // The same row names in every transaction.
        names.push(transaction.insert("Queue", Columns::new().set("dscp", dscp)));
        let queues = Value::map([(0, names[0])]);
        transaction.insert(
            "QoS",
            Columns::new()
                .set("type", "linux-htb")
                .set("queues", queues),
        );
        transactions.push(transaction);
    }
    let outcomes = transact_all(&client, &transactions).await;
    for ((dscp, outcome), name) in (0..40).zip(outcomes).zip(names) {
        let queue = outcome.unwrap().uuid(name).unwrap();
        client.read(|db| {
            assert_eq!(db.row("Queue", queue).unwrap().integer("dscp"), Some(dscp));
            assert!(db.rows("QoS").any(|qos| {
                qos.map("queues")
                    .iter()
                    .any(|(_, value)| value.as_uuid() == Some(queue))
            }));
        });
    }
    let stats = client.stats();
    assert_eq!(
        (stats.requests, stats.transactions, stats.largest_request),
        (1, 40, 40)
    );
}

#[tokio::test]
async fn a_group_is_bounded_by_count_and_by_bytes() {
    let server = Server::start();
    let group = GroupCommit {
        transactions: 4,
        bytes: 1 << 20,
    };
    let client = after_ten(&server, group).await;
    assert_eq!(client.stats().request_sizes, [0, 3, 0, 0]);

    // Each is 65 bytes or so.
    let group = GroupCommit {
        transactions: 64,
        bytes: 150,
    };
    let client = after_ten(&server, group).await;
    assert_eq!(client.stats().requests, 5);
}

#[tokio::test]
async fn switched_off_each_transaction_is_a_request() {
    let server = Server::start();
    let client = after_ten(&server, GroupCommit::OFF).await;
    assert_eq!(client.stats().request_sizes, [10, 0, 0, 0]);
    assert_eq!(dscps(&client), (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_failing_caller_gets_its_error_and_the_others_their_commit() {
    let server = Server::start();
    let client = server.client().await;
    let outcomes = transact_all(&client, &queues([0, 1, REFUSED, 3, REFUSED, 5])).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            2 | 4 => assert!(
                matches!(
                    outcome,
                    Err(TransactError::Operation {
                        index: 0,
                        operation: "insert",
                        ..
                    })
                ),
                "{outcome:?}"
            ),
            _ => assert!(outcome.is_ok(), "{outcome:?}"),
        }
    }
    assert_eq!(dscps(&client), [0, 1, 3, 5]);
    let stats = client.stats();
    assert_eq!(
        (
            stats.requests,
            stats.transactions,
            stats.retries,
            stats.failures
        ),
        (3, 6, 5 + 4, 2)
    );
}

#[tokio::test]
async fn an_operation_s_index_is_the_caller_s_own() {
    let server = Server::start();
    let client = server.client().await;
    let mut failing = queue(1);
    insert_queue(&mut failing, 2);
    insert_queue(&mut failing, REFUSED);
    let mut miscounting = queue(3);
    miscounting.delete("Bridge", []).expect_count(7);
    let outcomes = transact_all(&client, &[queue(0), failing, queue(4), miscounting]).await;
    assert!(
        matches!(outcomes[1], Err(TransactError::Operation { index: 2, .. })),
        "{outcomes:?}"
    );
    assert!(
        matches!(
            outcomes[3],
            Err(TransactError::Count {
                index: 1,
                expected: 7,
                actual: 0,
                ..
            })
        ),
        "{outcomes:?}"
    );
    assert_eq!(dscps(&client), [0, 3, 4]);
}

#[tokio::test]
async fn when_only_the_commit_fails_each_is_tried_alone() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let before = client.stats();
    let add = |name: &str| {
        vswitch::add_bridge(
            root,
            &BridgeSpec {
                name: name.to_owned(),
                ..BridgeSpec::default()
            },
        )
        .transaction
    };
    let transactions = [add("br0"), queue(1), add("br1"), add("br0"), queue(2)];
    let outcomes = transact_all(&client, &transactions).await;
    for (at, outcome) in outcomes.iter().enumerate() {
        match at {
            3 => assert!(
                matches!(outcome, Err(TransactError::Commit { .. })),
                "{outcome:?}"
            ),
            _ => assert!(outcome.is_ok(), "{outcome:?}"),
        }
    }
    client.read(|db| assert_eq!(db.len("Bridge"), 2));
    assert_eq!(dscps(&client), [1, 2]);
    assert_eq!(client.stats().requests - before.requests, 6);
}

#[tokio::test]
async fn a_guard_that_does_not_hold_is_its_own_caller_s_error() {
    let server = Server::start();
    let client = server.client().await;
    let mut broken = queue(3);
    broken.guard("Bridge", Condition::uuid(Uuid::from_bytes([1; 16])));
    let outcomes = transact_all(&client, &[queue(0), broken, queue(1)]).await;
    assert!(
        matches!(outcomes[1], Err(TransactError::Guard { index: 1, .. })),
        "{outcomes:?}"
    );
    assert!(outcomes[0].is_ok() && outcomes[2].is_ok(), "{outcomes:?}");
    assert_eq!(dscps(&client), [0, 1]);
}

#[tokio::test]
async fn transactions_take_effect_in_the_order_of_their_submission() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let set = |value: i64| {
        let mut transaction = Transaction::new();
        transaction.select("Open_vSwitch", [], &["next_cfg"]);
        transaction
            .update(
                "Open_vSwitch",
                Condition::uuid(root),
                Columns::new().set("next_cfg", value),
            )
            .expect_count(1);
        // Some fail by operation, some at commit, which sends the rest again in both ways.
        if value % 7 == 3 {
            transaction.insert("Queue", Columns::new().set("dscp", REFUSED));
        }
        if value % 11 == 5 {
            transaction.insert(
                "Bridge",
                Columns::new()
                    .set("name", "dangling")
                    .set("ports", Uuid::from_bytes([9; 16])),
            );
        }
        transaction
    };
    let transactions: Vec<_> = (1..=100).map(set).collect();
    let outcomes = transact_all(&client, &transactions).await;
    let mut last = 0;
    for (value, outcome) in (1..).zip(outcomes) {
        let Ok(outcome) = outcome else { continue };
        assert_eq!(
            outcome.rows(0)[0].column("next_cfg"),
            Some(&Value::from(last))
        );
        last = value;
    }
    assert_eq!(last, 100);
}

#[tokio::test]
async fn who_leaves_before_sending_is_taken_out() {
    let server = Server::start();
    let client = server.client().await;
    let (left, stays) = (queue(1), queue(2));
    let mut leaving = Box::pin(client.transact(&left, soon()));
    let mut staying = Box::pin(client.transact(&stays, soon()));
    poll_fn(|context| {
        assert!(leaving.as_mut().poll(context).is_pending());
        assert!(staying.as_mut().poll(context).is_pending());
        Poll::Ready(())
    })
    .await;
    drop(leaving);
    staying.await.unwrap();
    assert_eq!(dscps(&client), [2]);
    assert_eq!(client.stats().transactions, 1);
}

#[tokio::test]
async fn who_leaves_after_sending_has_it_done_all_the_same() {
    let server = Server::start();
    let client = server.client().await;
    server.freeze();
    let transaction = queue(1);
    let sent = async {
        while client.stats().requests == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        outcome = client.transact(&transaction, soon()) => panic!("{outcome:?}"),
        () = sent => {}
    }
    server.thaw();
    commit(&client, |transaction| insert_queue(transaction, 2))
        .await
        .unwrap();
    assert_eq!(dscps(&client), [1, 2]);
}

#[tokio::test]
async fn a_row_s_own_keys_survive_others_that_write_the_same_map() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let set = |key: &'static str| {
        let mut transaction = Transaction::new();
        let mutation = Mutation::insert("external_ids", Value::map([(key, key)]));
        transaction
            .mutate("Open_vSwitch", Condition::uuid(root), mutation)
            .expect_count(1);
        transaction
    };
    let outcomes = transact_all(&client, &["a", "b", "c"].map(set)).await;
    assert!(outcomes.iter().all(Result::is_ok));
    client.read(|db| assert_eq!(db.open_vswitch().unwrap().external_ids().len(), 3));
}
