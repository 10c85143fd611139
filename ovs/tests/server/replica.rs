//! Whatever happens in the database, every way to follow it ends in the same replica.

use podwire_ovs::client::{Client, ClientConfig};
use podwire_ovs::replica::{Db, MonitorMethod, Only, TableSpec};
use podwire_ovs::transact::{Columns, Condition, Mutation, Outcome, TransactError, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{self, PortSpec, QosSpec, QueueSpec, StringMap};

use crate::fixture::{Server, bridge, commit, soon};

/// Everything in the replica, and every index's answer, as text.
fn dump(client: &Client) -> Vec<String> {
    client.read(|db| {
        let mut lines = Vec::new();
        for table in vswitch::tables() {
            lines.extend(db.rows(table.name).map(|row| row.to_string()));
        }
        for port in db.rows("Port").map(|row| row.uuid()) {
            lines.push(format!(
                "{port} on {:?}",
                db.bridge_of_port(port).map(|bridge| bridge.uuid())
            ));
            lines.extend(db.port_rows(port, |_| true).map(|rows| format!("{rows:?}")));
        }
        for interface in db.interfaces() {
            lines.push(format!(
                "{} of {:?}",
                interface.uuid(),
                db.port_of_interface(interface.uuid())
                    .map(|port| port.uuid())
            ));
        }
        for number in 0..8 {
            let uuids = |interfaces: Vec<vswitch::Interface<'_>>| {
                interfaces.iter().map(|one| one.uuid()).collect::<Vec<_>>()
            };
            let (iface_id, sandbox) = (format!("id{number}"), format!("box{number}"));
            lines.push(format!(
                "{iface_id} {:?}",
                uuids(db.interfaces_with(&iface_id).collect())
            ));
            lines.push(format!(
                "{sandbox} {:?}",
                uuids(db.interfaces_with_sandbox(&sandbox).collect())
            ));
            let name = format!("p{number}");
            lines.push(format!(
                "{name} {:?} {:?}",
                db.port_by_name(&name).map(|one| one.uuid()),
                db.interface_by_name(&name).map(|one| one.uuid())
            ));
        }
        lines.sort();
        lines
    })
}

/// A transaction of the client's own, whose reply comes after every update that the server has for
/// it.
async fn echo(client: &Client) -> Result<Outcome, TransactError> {
    commit(client, |transaction| {
        transaction.comment("here?");
    })
    .await
}

/// A reproducible sequence of numbers below a bound.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn external_ids(dice: &mut Dice) -> StringMap {
    let mut ids = StringMap::from([("iface-id".to_owned(), format!("id{}", dice.below(8)))]);
    if dice.below(2) == 0 {
        ids.insert("sandbox".to_owned(), format!("box{}", dice.below(8)));
    }
    ids
}

fn random_change(client: &Client, bridges: [Uuid; 2], dice: &mut Dice) -> Transaction {
    let ports: Vec<Uuid> = client.read(|db| {
        db.rows("Port")
            .filter(|row| row.str("name").is_some_and(|name| name.starts_with('p')))
            .map(|row| row.uuid())
            .collect()
    });
    let mut transaction = Transaction::new();
    let name = format!("p{}", dice.below(8));
    let bridge = bridges[dice.below(2) as usize];
    let picked = (!ports.is_empty()).then(|| ports[dice.below(ports.len() as u64) as usize]);
    match (dice.below(6), picked) {
        (0 | 1, _) | (_, None) => {
            let old = client.read(|db| db.port_rows(db.port_by_name(&name)?.uuid(), |_| true));
            let queues = (0..dice.below(3) as u32)
                .map(|number| (number, QueueSpec::default()))
                .collect();
            let spec = PortSpec {
                name,
                external_ids: external_ids(dice),
                mtu_request: (dice.below(2) == 0).then_some(1400),
                qos: (dice.below(3) == 0).then(|| QosSpec {
                    qos_type: "linux-htb".to_owned(),
                    queues,
                    ..QosSpec::default()
                }),
                ..PortSpec::default()
            };
            return vswitch::add_port(bridge, &spec, old.as_slice()).transaction;
        }
        (2, Some(port)) => {
            return vswitch::del_ports(client.read(|db| db.port_rows(port, |_| true)).as_slice());
        }
        (3, Some(port)) => {
            // To the other bridge, in one transaction.
            let from = client.read(|db| db.bridge_of_port(port).unwrap().uuid());
            transaction
                .mutate(
                    "Bridge",
                    Condition::uuid(from),
                    Mutation::delete("ports", port),
                )
                .expect_count(1);
            transaction
                .mutate(
                    "Bridge",
                    Condition::uuid(bridge),
                    Mutation::insert("ports", port),
                )
                .expect_count(1);
        }
        (4, Some(port)) => {
            let interface = client.read(|db| db.port(port).unwrap().interfaces().next().unwrap());
            vswitch::set_keys(
                &mut transaction,
                "Interface",
                interface,
                "external_ids",
                &external_ids(dice),
            );
            let ofport = if dice.below(2) == 0 {
                Value::empty()
            } else {
                Value::from(dice.below(100) as i64)
            };
            transaction
                .update(
                    "Interface",
                    Condition::uuid(interface),
                    Columns::new().set("ofport", ofport),
                )
                .expect_count(1);
        }
        (_, Some(port)) => {
            let interface = client.read(|db| db.port(port).unwrap().interfaces().next().unwrap());
            vswitch::unset_keys(
                &mut transaction,
                "Interface",
                interface,
                "external_ids",
                &["iface-id", "other"],
            );
        }
    }
    transaction
}

#[tokio::test]
async fn differences_whole_rows_and_a_fresh_snapshot_agree() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridges = [
        bridge(&client, root, "br0").await,
        bridge(&client, root, "br1").await,
    ];
    let plain = Client::start(ClientConfig {
        monitor: MonitorMethod::Plain,
        ..server.config()
    });
    plain.synced(soon()).await.unwrap();
    let mut dice = Dice(7);
    for round in 0..300 {
        let change = random_change(&client, bridges, &mut dice);
        client
            .transact(&change, soon())
            .await
            .unwrap_or_else(|error| panic!("round {round}: {error} {change:?}"));
        // The reply to a transaction of its own comes after the update.
        echo(&plain).await.unwrap();
        assert_eq!(dump(&client), dump(&plain), "round {round}");
        if round % 30 == 0 {
            assert_eq!(dump(&client), dump(&server.client().await), "round {round}");
        }
    }
}

#[tokio::test]
async fn a_snapshot_over_an_old_replica_equals_a_fresh_one() {
    let mut server = Server::start();
    let (client, root) = server.initialised().await;
    let bridges = [
        bridge(&client, root, "br0").await,
        bridge(&client, root, "br1").await,
    ];
    let mut dice = Dice(8);
    for _ in 0..8 {
        for _ in 0..10 {
            client
                .transact(&random_change(&client, bridges, &mut dice), soon())
                .await
                .unwrap();
        }
        let behind = Client::start(ClientConfig { ..server.config() });
        behind.synced(soon()).await.unwrap();
        let resyncs = behind.stats().resyncs;
        server.kill();
        server.change_offline(&format!(
            r#"{{"op":"mutate","table":"Bridge","where":[["name","==","br{}"]],"mutations":[["external_ids","insert",["map",[["n{}","x"]]]]]}},
               {{"op":"delete","table":"QoS","where":[["type","==","none"]]}},
               {{"op":"update","table":"Interface","where":[["name","==","p{}"]],"row":{{"external_ids":["map",[["iface-id","id{}"]]]}}}}"#,
            dice.below(2),
            dice.below(1000),
            dice.below(8),
            dice.below(8)
        ));
        server.resume();
        let fresh = server.client().await;
        for old in [&behind, &client] {
            let mut versions = old.subscribe();
            let resynced = versions.wait_for(|version| {
                version.resyncs > resyncs && version.state == podwire_ovs::client::State::Synced
            });
            tokio::time::timeout_at(soon(), resynced)
                .await
                .unwrap()
                .unwrap();
        }
        assert_eq!(dump(&behind), dump(&fresh));
        server.client().await;
        // `client` has seen many snapshots, and its last one may still be on the way: a transaction
        // of its own comes after it.
        echo(&client).await.unwrap();
        assert_eq!(dump(&client), dump(&fresh));
    }
}

#[tokio::test]
async fn of_a_table_only_the_rows_of_a_condition_are_watched_as_they_change() {
    const SNOOPS: &str = "mcast_snooping_enable";
    let server = Server::start();
    let (client, root) = server.initialised().await;
    for name in ["br-a", "br-b"] {
        bridge(&client, root, name).await;
    }
    let mut config = server.config();
    config.tables = vec![TableSpec {
        name: "Bridge",
        columns: &["name", SNOOPS],
        indexes: &[],
    }];
    config.only = vec![Only {
        table: "Bridge",
        column: SNOOPS,
        is: true,
    }];
    let some = Client::start(config);
    some.synced(soon()).await.unwrap();
    let names = |db: &Db| {
        let rows = db.rows("Bridge");
        rows.map(|row| row.str("name").unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert!(some.read(names).is_empty());
    for snoops in [true, false] {
        let columns = || Columns::new().set(SNOOPS, snoops);
        let is_it = || Condition::equal("name", "br-a");
        commit(&client, |it| {
            it.update("Bridge", is_it(), columns());
        })
        .await
        .unwrap();
        let wanted: &[&str] = if snoops { &["br-a"] } else { &[] };
        some.wait("the rows", soon(), |db| (names(db) == wanted).then_some(()))
            .await
            .unwrap();
    }
}
