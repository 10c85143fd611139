use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use podwire_ovs::client::{Client, WaitError};
use podwire_ovs::transact::{Columns, Condition, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{BY_IFACE_ID, StringMap, set_keys};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::fixture::{Server, bridge, commit, port, soon};

#[tokio::test]
async fn five_hundred_waiters_are_each_woken_by_their_own_row_alone() {
    const WAITERS: usize = 500;
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let mut interfaces = Vec::new();
    for number in 0..WAITERS {
        interfaces.push(port(&client, bridge, &format!("p{number}")).await.1);
    }
    let looks = Arc::new(AtomicUsize::new(0));
    let started = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for interface in &interfaces {
        let (client, interface) = (client.clone(), *interface);
        let (looks, started) = (Arc::clone(&looks), Arc::clone(&started));
        waiters.spawn(async move {
            let mut first = true;
            let wait = client.wait_row("Interface", interface, soon(), |row| {
                looks.fetch_add(1, Ordering::Relaxed);
                if std::mem::take(&mut first) {
                    started.fetch_add(1, Ordering::Relaxed);
                }
                row?.integer("ofport")
            });
            (interface, wait.await)
        });
    }
    while started.load(Ordering::Relaxed) < WAITERS {
        tokio::task::yield_now().await;
    }
    // Another client plays ovs-vswitchd, a row at a time.
    let vswitchd = server.client().await;
    for (number, interface) in (1..).zip(&interfaces) {
        set_ofport(&vswitchd, *interface, number).await;
    }
    while let Some(waiter) = waiters.join_next().await {
        let (interface, ofport) = waiter.unwrap();
        let expected = interfaces.iter().position(|one| *one == interface).unwrap() + 1;
        assert_eq!(ofport, Ok(expected as i64));
    }
    assert_eq!(looks.load(Ordering::Relaxed), 2 * WAITERS);
}

#[tokio::test]
async fn a_wait_for_the_only_row_is_woken_by_a_second_one_and_by_no_other_change() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let (_, mine) = port(&client, bridge, "mine").await;
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let waiting = {
        let client = client.clone();
        tokio::spawn(async move {
            let same_id = (BY_IFACE_ID, "ns_pod");
            let wait = client.wait_row_and_index("Interface", mine, same_id, soon(), |db| {
                counted.fetch_add(1, Ordering::Relaxed);
                db.interfaces_with("ns_pod")
                    .next()
                    .map(|other| other.uuid())
            });
            wait.await
        })
    };
    while looks.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    port(&client, bridge, "other").await;
    let (_, thief) = port(&client, bridge, "thief").await;
    set_iface_id(&client, thief, "ns_other").await;
    set_iface_id(&client, thief, "ns_pod").await;
    assert_eq!(waiting.await.unwrap(), Ok(thief));
    assert_eq!(looks.load(Ordering::Relaxed), 2);
}

async fn set_iface_id(client: &Client, interface: Uuid, iface_id: &str) {
    let ids = StringMap::from([("iface-id".to_owned(), iface_id.to_owned())]);
    commit(client, |transaction| {
        set_keys(transaction, "Interface", interface, "external_ids", &ids);
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_change_before_the_wait_begins_is_not_missed() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let (_, interface) = port(&client, bridge, "p0").await;
    set_ofport(&client, interface, 5).await;
    let now = Instant::now();
    assert_eq!(
        client
            .wait_row("Interface", interface, now, |row| row?.integer("ofport"))
            .await,
        Ok(5)
    );
}

#[tokio::test]
async fn a_deleted_row_wakes_those_who_wait_for_it() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let (port, interface) = port(&client, bridge, "p0").await;
    let rows = client.read(|db| db.port_rows(port, |_| true)).unwrap();
    let delete = podwire_ovs::vswitch::del_ports(&[rows]);
    let wait = client.wait_row("Interface", interface, soon(), |row| {
        row.is_none().then_some("gone")
    });
    let (outcome, deleted) = tokio::join!(wait, client.transact(&delete, soon()));
    deleted.unwrap();
    assert_eq!(outcome, Ok("gone"));
}

#[tokio::test]
async fn a_wait_that_ends_at_its_deadline_says_what_was_seen() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let (_, interface) = port(&client, bridge, "p0").await;
    let deadline = Instant::now() + Duration::from_millis(20);
    let error = client
        .wait_row::<()>("Interface", interface, deadline, |_| None)
        .await
        .unwrap_err();
    let WaitError::Timeout {
        awaited,
        waited,
        seen,
    } = &error
    else {
        panic!("{error:?}")
    };
    assert_eq!(awaited, &format!("a change of Interface {interface}"));
    assert!(*waited >= Duration::from_millis(20));
    assert!(seen.contains("name=p0"), "{seen}");

    let error = client
        .wait::<()>("the bridge br1", deadline, |_| None)
        .await
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("for the bridge br1; seen instead: a replica in sync"),
        "{error}"
    );
    let error = client
        .wait_row::<()>("Manager", interface, deadline, |_| None)
        .await
        .unwrap_err();
    assert_eq!(error, WaitError::NotWatched("Manager".to_owned()));
}

#[tokio::test]
async fn a_wait_on_the_whole_replica_ends_by_another_client_s_change() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let other = server.client().await;
    let wait = client.wait("the bridge br0", soon(), |db| {
        Some(db.bridge_by_name("br0")?.uuid())
    });
    let (found, made) = tokio::join!(wait, bridge(&other, root, "br0"));
    assert_eq!(found, Ok(made));
}

#[tokio::test]
async fn subscribers_hear_of_changes_and_of_nothing_else() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let mut versions = client.subscribe();
    versions.mark_unchanged();
    let set = |column, value: Value| {
        commit(&client, move |transaction| {
            let columns = Columns::new().set(column, value);
            let update = transaction.update("Open_vSwitch", Condition::uuid(root), columns);
            update.expect_count(1);
        })
    };
    // A column that is not watched: each transaction of ovs-vsctl changes it.
    set("next_cfg", Value::from(1)).await.unwrap();
    assert!(!versions.has_changed().unwrap());
    let types = || Value::set(["netdev"]);
    set("datapath_types", types()).await.unwrap();
    assert!(versions.has_changed().unwrap());
    versions.mark_unchanged();
    // The same value again is no change.
    set("datapath_types", types()).await.unwrap();
    assert!(!versions.has_changed().unwrap());
}

async fn set_ofport(client: &podwire_ovs::client::Client, interface: Uuid, ofport: i64) {
    let mut transaction = Transaction::new();
    let columns = Columns::new().set("ofport", ofport);
    transaction
        .update("Interface", Condition::uuid(interface), columns)
        .expect_count(1);
    client.transact(&transaction, soon()).await.unwrap();
}
