//! Two clients, of which one has been replaced by the other, and one that is told which rows
//! change.

use podwire_ovs::client::Client;
use podwire_ovs::transact::{Condition, TransactError, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{StringMap, set_keys};

use crate::fixture::{Server, commit, dscps, insert_queue, soon, transact_all};

fn epoch(epoch: &str) -> Transaction {
    let mut fence = Transaction::new();
    let is_it = Condition::includes("external_ids", Value::map([("epoch", epoch)]));
    fence.guard("Open_vSwitch", is_it);
    fence
}

async fn take_over(client: &Client, root: Uuid, number: &str) {
    let mut transaction = Transaction::new();
    let ids = StringMap::from([("epoch".to_owned(), number.to_owned())]);
    set_keys(&mut transaction, "Open_vSwitch", root, "external_ids", &ids);
    client.transact(&transaction, soon()).await.unwrap();
    client.set_fence(&epoch(number)).unwrap();
}

fn queue(dscp: i64) -> Transaction {
    let mut transaction = Transaction::new();
    insert_queue(&mut transaction, dscp);
    transaction
}

#[tokio::test]
async fn a_client_that_was_replaced_writes_nothing() {
    let server = Server::start();
    let (first, root) = server.initialised().await;
    let second = server.client().await;
    take_over(&first, root, "1").await;
    let outcomes = transact_all(&first, &[queue(1), queue(2)]).await;
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");

    take_over(&second, root, "2").await;
    let outcomes = transact_all(&first, &[queue(3), queue(4)]).await;
    for outcome in &outcomes {
        assert!(
            matches!(outcome, Err(TransactError::Fenced { .. })),
            "{outcomes:?}"
        );
    }
    transact_all(&second, &[queue(5)]).await[0]
        .as_ref()
        .unwrap();
    assert_eq!(dscps(&second), [1, 2, 5]);
    // In its turn again, it writes again.
    first.set_fence(&Transaction::new()).unwrap();
    take_over(&first, root, "3").await;
    transact_all(&first, &[queue(6)]).await[0].as_ref().unwrap();
}

#[tokio::test]
async fn a_follower_is_told_of_each_row_that_changed_and_of_a_resync() {
    let mut server = Server::start();
    let client = server.client().await;
    let mut follower = client.follow();
    let other = server.client().await;
    let mut transaction = Transaction::new();
    let name = transaction.insert(
        "Queue",
        podwire_ovs::transact::Columns::new().set("dscp", 1),
    );
    let row = other.transact(&transaction, soon()).await.unwrap();
    let row = row.uuid(name).unwrap();
    let changed = tokio::time::timeout_at(soon(), follower.next()).await;
    let changed = changed.unwrap().unwrap();
    assert_eq!(changed.rows, [("Queue", row)].into());
    assert!(!changed.resynced);

    commit(&other, |transaction| {
        transaction.delete("Queue", Condition::uuid(row));
    })
    .await
    .unwrap();
    server.restart();
    let mut rows = std::collections::HashSet::new();
    loop {
        let changed = tokio::time::timeout_at(soon(), follower.next()).await;
        let changed = changed.unwrap().unwrap();
        rows.extend(changed.rows);
        if changed.resynced {
            break;
        }
    }
    assert_eq!(rows, [("Queue", row)].into());
    drop(client);
    assert_eq!(follower.next().await, None);
}
