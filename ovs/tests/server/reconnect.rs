use std::sync::Arc;
use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, State};
use podwire_ovs::transact::{Columns, Condition, TransactError, Transaction};
use podwire_ovs::value::Uuid;
use tokio::time::Instant;

use crate::fixture::{Server, bridge, commit, config, dscps, insert_queue, port, soon};

async fn resynced(client: &Client, resyncs: u64) {
    let mut versions = client.subscribe();
    let resynced =
        versions.wait_for(|version| version.resyncs >= resyncs && version.state == State::Synced);
    tokio::time::timeout_at(soon(), resynced)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_client_started_before_its_server_gets_in_sync() {
    let mut server = Server::start();
    server.kill();
    let client = Client::start(server.config());
    assert!(
        client
            .synced(Instant::now() + Duration::from_millis(50))
            .await
            .is_err()
    );
    server.resume();
    client.synced(soon()).await.unwrap();
}

#[tokio::test]
async fn a_nudge_ends_the_pause_between_attempts() {
    let mut server = Server::start();
    server.client().await; // the socket is there
    let hour = Duration::from_secs(3600);
    let client = Client::start(ClientConfig {
        backoff_first: hour,
        backoff_max: hour,
        ..server.config()
    });
    client.synced(soon()).await.unwrap();
    server.kill();
    let gone = |version: &podwire_ovs::client::Version| match &version.state {
        State::Disconnected {
            last_error: Some(error),
            ..
        } => error.contains("No such file"),
        _ => false,
    };
    client.subscribe().wait_for(gone).await.unwrap();
    server.resume();
    server.client().await;
    client.nudge();
    client.synced(soon()).await.unwrap();
}

#[tokio::test]
async fn a_restart_with_the_same_database_changes_nothing() {
    let mut server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    port(&client, bridge, "p0").await;
    let before = client.subscribe().borrow().clone();
    server.restart();
    resynced(&client, 2).await;
    let after = client.subscribe().borrow().clone();
    assert_eq!((after.generation, after.resyncs), (before.generation, 2));
    port(&client, bridge, "p1").await;
    client.read(|db| assert_eq!(db.len("Port"), 3));
}

#[tokio::test]
async fn what_changed_during_an_outage_is_told_and_nothing_else() {
    let mut server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let (deleted_port, deleted) = port(&client, bridge, "deleted").await;
    let (_, changed) = port(&client, bridge, "changed").await;
    let (_, same) = port(&client, bridge, "same").await;
    server.kill();
    server.change_offline(&format!(
        r#"{{"op":"mutate","table":"Bridge","where":[],"mutations":[["ports","delete",["uuid","{deleted_port}"]]]}},
           {{"op":"update","table":"Interface","where":[["name","==","changed"]],"row":{{"ofport":7}}}}"#
    ));
    let mut looks_at_same = 0;
    let waits = async {
        tokio::join!(
            client.wait_row("Interface", deleted, soon(), |row| row
                .is_none()
                .then_some(())),
            client.wait_row("Interface", changed, soon(), |row| row?.integer("ofport")),
            client.wait_row("Interface", same, soon(), |row| {
                looks_at_same += 1;
                row.unwrap().integer("ofport")
            }),
        )
    };
    let restart = async {
        server.resume();
        resynced(&client, 2).await;
        client.read(|db| {
            assert_eq!(db.len("Interface"), 3);
            assert_eq!(
                db.bridge_of_port(deleted_port).map(|bridge| bridge.uuid()),
                None
            );
            assert!(db.interface_by_name("deleted").is_none());
        });
        // After the outage the third one is told of its own change.
        let columns = Columns::new().set("ofport", 9);
        commit(&client, |transaction| {
            transaction
                .update("Interface", Condition::uuid(same), columns)
                .expect_count(1);
        })
        .await
        .unwrap();
    };
    let ((deleted, changed, same), ()) = tokio::join!(waits, restart);
    assert_eq!((deleted, changed, same), (Ok(()), Ok(7), Ok(9)));
    // Out of sync it was not asked; then at the resync; then for its own change.
    assert!(looks_at_same <= 3, "{looks_at_same}");
}

#[tokio::test]
async fn an_empty_database_after_the_restart_empties_the_replica() {
    let mut server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge_before = bridge(&client, root, "br0").await;
    let (_, interface) = port(&client, bridge_before, "p0").await;
    server.kill();
    server.create_database();
    let gone = client.wait_row("Interface", interface, soon(), |row| {
        row.is_none().then_some(())
    });
    let (gone, ()) = tokio::join!(gone, async { server.resume() });
    gone.unwrap();
    client.read(|db| {
        for table in ["Open_vSwitch", "Bridge", "Port", "Interface"] {
            assert_eq!(db.len(table), 0, "{table}");
        }
        assert!(db.bridge_by_name("br0").is_none() && db.interface_by_name("p0").is_none());
    });
    // What was known of the old database is refused by count.
    let spec = podwire_ovs::vswitch::PortSpec {
        name: "p1".to_owned(),
        ..Default::default()
    };
    let add = podwire_ovs::vswitch::add_port(bridge_before, &spec, &[]);
    let error = client.transact(&add.transaction, soon()).await.unwrap_err();
    assert!(
        matches!(
            error,
            TransactError::Count {
                operation: "mutate",
                actual: 0,
                ..
            }
        ),
        "{error:?}"
    );
    client.read(|db| assert_eq!(db.len("Interface"), 0));
}

#[tokio::test]
async fn a_transaction_waits_for_the_server_to_come_back() {
    let mut server = Server::start();
    let client = server.client().await;
    server.kill();
    let insert = commit(&client, |transaction| insert_queue(transaction, 1));
    let (outcome, ()) = tokio::join!(insert, async { server.resume() });
    // The first connection may not have been given up yet when it was submitted; then nobody knows
    // what became of it.
    match outcome {
        Ok(_) => assert_eq!(dscps(&client), [1]),
        Err(TransactError::Disconnected { sent: true, .. }) => {}
        Err(error) => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_restarts_every_caller_has_an_outcome_and_the_replica_is_right() {
    let mut server = Server::start();
    let client = Arc::new(server.client().await);
    let mut callers = Vec::new();
    for caller in 0..8 {
        let client = Arc::clone(&client);
        callers.push(tokio::spawn(async move {
            let mut committed: Vec<Uuid> = Vec::new();
            let mut unknown = 0;
            while client.stats().resyncs < 6 {
                let mut transaction = Transaction::new();
                let name = transaction.insert("Queue", Columns::new().set("dscp", caller));
                match client.transact(&transaction, soon()).await {
                    Ok(outcome) => committed.push(outcome.uuid(name).unwrap()),
                    Err(TransactError::Disconnected { sent: true, .. }) => unknown += 1,
                    Err(error) => panic!("{error:?}"),
                }
            }
            (committed, unknown)
        }));
    }
    for resyncs in 1..6 {
        resynced(&client, resyncs).await;
        commit(&client, |transaction| insert_queue(transaction, 63))
            .await
            .ok();
        server.restart();
    }
    let (mut committed, mut unknown) = (Vec::new(), 0);
    for caller in callers {
        let (rows, lost) = caller.await.unwrap();
        committed.extend(rows);
        unknown += lost;
    }
    resynced(&client, 6).await;
    commit(&client, |transaction| insert_queue(transaction, 62))
        .await
        .unwrap();
    let rows: Vec<_> = client.read(|db| {
        db.rows("Queue")
            .filter(|row| row.integer("dscp") < Some(8))
            .map(|row| row.uuid())
            .collect()
    });
    // What was acknowledged is in the log file, and SIGKILL takes nothing from there.
    for uuid in &committed {
        assert!(rows.contains(uuid), "an acknowledged row is gone");
    }
    assert!(
        rows.len() <= committed.len() + unknown,
        "{} rows, {} acknowledged, {unknown} unknown",
        rows.len(),
        committed.len()
    );
    let fresh = server.client().await;
    assert_eq!(dscps(&fresh), dscps(&client));
}

#[tokio::test]
async fn the_connection_ends_with_the_last_handle() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("server.sock");
    let listener = tokio::net::UnixListener::bind(&socket).unwrap();
    // Not for the server's silence.
    let client = Client::start(ClientConfig {
        probe: Duration::from_secs(3600),
        ..config(&socket)
    });
    let (mut stream, _) = listener.accept().await.unwrap();
    let clone = client.clone();
    drop(client);
    drop(clone);
    let mut received = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut received);
    tokio::time::timeout_at(soon(), read)
        .await
        .unwrap()
        .unwrap();
}
