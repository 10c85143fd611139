use podwire_ovs::client::Client;
use podwire_ovs::transact::{Columns, Condition, Mutation, TransactError, Transaction};
use podwire_ovs::value::{Uuid, Value};
use podwire_ovs::vswitch::{self, BridgeSpec, PortRows, PortSpec, QosSpec, QueueSpec, StringMap};

use crate::fixture::{Server, bridge, commit, port, soon};

fn map(entries: &[(&str, &str)]) -> StringMap {
    entries
        .iter()
        .map(|&(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

fn pod_port(name: &str, iface_id: &str) -> PortSpec {
    PortSpec {
        name: name.to_owned(),
        external_ids: map(&[("iface-id", iface_id), ("sandbox", name)]),
        ..PortSpec::default()
    }
}

async fn add(
    client: &Client,
    bridge: Uuid,
    spec: &PortSpec,
    replaces: &[PortRows],
) -> Result<(Uuid, Uuid), TransactError> {
    let add = vswitch::add_port(bridge, spec, replaces);
    let outcome = client.transact(&add.transaction, soon()).await?;
    Ok((
        outcome.uuid(add.port).unwrap(),
        outcome.uuid(add.interface).unwrap(),
    ))
}

/// Makes a port, and returns its row and its interface's.
async fn added(client: &Client, bridge: Uuid, spec: &PortSpec) -> (Uuid, Uuid) {
    add(client, bridge, spec, &[]).await.unwrap()
}

/// A port with a queue, each of whose rows is of this owner.
fn with_qos(port: PortSpec, owner: &str) -> PortSpec {
    let queue = QueueSpec {
        external_ids: map(&[("owner", owner)]),
        ..QueueSpec::default()
    };
    let qos = QosSpec {
        qos_type: "linux-htb".to_owned(),
        external_ids: map(&[("owner", owner)]),
        queues: [(1, queue)].into(),
        ..QosSpec::default()
    };
    PortSpec {
        qos: Some(qos),
        ..port
    }
}

#[tokio::test]
async fn a_port_is_made_whole_and_found_by_every_way() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br-int").await;
    let spec = PortSpec {
        name: "0123456789abcde".to_owned(),
        interface_type: Some("internal".to_owned()),
        external_ids: map(&[
            ("iface-id", "ns_pod"),
            ("sandbox", "0123456789abcdef"),
            ("ip_addresses", "10.0.0.1/24,fd00::1/64"),
        ]),
        port_external_ids: map(&[("owner", "podwire")]),
        port_other_config: map(&[("priority-tags", "true")]),
        other_config: map(&[("pmd-rxq-affinity", "0:1")]),
        mtu_request: Some(1400),
        ofport_request: Some(70),
        tag: Some(7),
        trunks: vec![1, 2, 9],
        vlan_mode: Some("native-untagged".to_owned()),
        ingress_policing_rate: Some(1000),
        ingress_policing_burst: Some(100),
        qos: Some(QosSpec {
            qos_type: "linux-htb".to_owned(),
            other_config: map(&[("max-rate", "1000000")]),
            external_ids: map(&[("owner", "podwire")]),
            queues: [(
                0,
                QueueSpec {
                    other_config: map(&[("min-rate", "1")]),
                    external_ids: map(&[("owner", "podwire")]),
                },
            )]
            .into(),
        }),
    };
    let (port, interface) = added(&client, bridge, &spec).await;
    client.read(|db| {
        let found = db.interface(interface).unwrap();
        assert_eq!(found.name(), "0123456789abcde");
        assert_eq!(
            (found.interface_type(), found.mtu_request()),
            ("internal", Some(1400))
        );
        assert_eq!(
            (
                found.ingress_policing_rate(),
                found.row().integer("ingress_policing_burst")
            ),
            (1000, Some(100))
        );
        assert_eq!(
            (found.ofport(), found.error(), found.mtu()),
            (None, None, None)
        );
        assert_eq!(
            found.external_id("ip_addresses"),
            Some("10.0.0.1/24,fd00::1/64")
        );
        assert_eq!(found.other_config().str("pmd-rxq-affinity"), Some("0:1"));
        for by in [
            db.interface_by_name("0123456789abcde").unwrap(),
            db.interfaces_with("ns_pod").next().unwrap(),
            db.interfaces_with_sandbox("0123456789abcdef")
                .next()
                .unwrap(),
        ] {
            assert_eq!(by.uuid(), interface);
        }
        assert_eq!(db.port_of_interface(interface).unwrap().uuid(), port);
        assert_eq!(db.bridge_of_port(port).unwrap().name(), "br-int");
        let found = db.port_by_name("0123456789abcde").unwrap();
        assert_eq!(
            (found.tag(), found.external_id("owner")),
            (Some(7), Some("podwire"))
        );
        assert_eq!(found.trunks().collect::<Vec<_>>(), [1, 2, 9]);
        assert_eq!(found.vlan_mode(), Some("native-untagged"));
        assert_eq!(found.other_config().str("priority-tags"), Some("true"));
        let qos = db.qos(found.qos().unwrap()).unwrap();
        assert_eq!(
            (qos.row().str("type"), qos.other_config().str("max-rate")),
            (Some("linux-htb"), Some("1000000"))
        );
        let (number, queue) = qos.queues().next().unwrap();
        assert_eq!(
            (
                number,
                db.queue(queue).unwrap().other_config().str("min-rate")
            ),
            (0, Some("1"))
        );
        assert_eq!(db.ports_with_qos(qos.uuid()).next().unwrap().uuid(), port);
    });
}

#[tokio::test]
async fn a_port_takes_the_place_of_another_even_under_its_name() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let (here, there) = (
        bridge(&client, root, "br-int").await,
        bridge(&client, root, "br-old").await,
    );
    let (same_name, old_interface) = added(&client, here, &pod_port("veth0", "ns_pod")).await;
    let (elsewhere, _) = added(&client, there, &pod_port("veth1", "ns_pod")).await;
    let (neighbour, _) = added(&client, here, &pod_port("veth2", "ns_other")).await;
    let replaces: Vec<_> = client.read(|db| {
        [same_name, elsewhere]
            .map(|port| db.port_rows(port, |_| true).unwrap())
            .into()
    });
    let (_, interface) = add(&client, here, &pod_port("veth0", "ns_pod"), &replaces)
        .await
        .unwrap();
    assert_ne!(interface, old_interface);
    client.read(|db| {
        let found: Vec<_> = db
            .interfaces_with("ns_pod")
            .map(|found| found.uuid())
            .collect();
        assert_eq!(found, [interface]);
        assert!(db.interface_by_name("veth1").is_none());
        assert_eq!(db.bridge_of_port(neighbour).unwrap().uuid(), here);
        // Two local ports, the neighbour, ours.
        assert_eq!((db.len("Port"), db.len("Interface")), (4, 4));
    });
}

#[tokio::test]
async fn a_port_on_a_bridge_that_is_gone_is_an_error_and_leaves_no_rows() {
    let server = Server::start();
    let (client, _) = server.initialised().await;
    let spec = PortSpec {
        qos: Some(QosSpec {
            qos_type: "linux-htb".to_owned(),
            ..QosSpec::default()
        }),
        ..pod_port("veth0", "ns_pod")
    };
    let error = add(&client, Uuid::from_bytes([3; 16]), &spec, &[])
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TransactError::Commit { error, .. } if error == "referential integrity \
            violation"),
        "{error:?}"
    );
    client.read(|db| {
        assert_eq!(
            (db.len("Port"), db.len("Interface"), db.len("QoS")),
            (0, 0, 0)
        );
    });
}

#[tokio::test]
async fn ports_are_deleted_with_what_is_theirs_and_nothing_else() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let (one, two) = (
        bridge(&client, root, "br0").await,
        bridge(&client, root, "br1").await,
    );
    let ours = with_qos(pod_port("a", "ns_a"), "podwire");
    let (ours, _) = added(&client, one, &ours).await;
    let theirs = with_qos(pod_port("b", "ns_b"), "admin");
    let (theirs, _) = added(&client, two, &theirs).await;
    let (stays, _) = port(&client, one, "c").await;
    let rows: Vec<_> = client.read(|db| {
        let ours_only = |row: &podwire_ovs::replica::Row<'_>| {
            row.map("external_ids").str("owner") == Some("podwire")
        };
        [ours, theirs]
            .map(|port| db.port_rows(port, ours_only).unwrap())
            .into()
    });
    assert_eq!((rows[0].queues.len(), rows[1].queues.len()), (1, 0));
    let delete = vswitch::del_ports(&rows);
    client.transact(&delete, soon()).await.unwrap();
    client.read(|db| {
        assert_eq!(
            db.rows("Port")
                .filter(|row| [ours, theirs].contains(&row.uuid()))
                .count(),
            0
        );
        assert!(db.interface_by_name("a").is_none() && db.interface_by_name("b").is_none());
        assert_eq!(db.bridge_of_port(stays).unwrap().uuid(), one);
        assert_eq!(
            db.rows("QoS")
                .map(|row| row.map("external_ids").str("owner"))
                .collect::<Vec<_>>(),
            [Some("admin")]
        );
        assert_eq!(db.len("Queue"), 1);
    });
    // Again, and for a bridge that is gone.
    client.transact(&delete, soon()).await.unwrap();
    let gone = PortRows {
        bridge: Uuid::from_bytes([3; 16]),
        port: ours,
        qos: None,
        queues: Vec::new(),
    };
    client
        .transact(&vswitch::del_ports(&[gone]), soon())
        .await
        .unwrap();
}

#[tokio::test]
async fn a_bridge_is_made_with_its_local_port() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let spec = BridgeSpec {
        name: "br-int".to_owned(),
        datapath_type: Some("netdev".to_owned()),
        fail_mode: Some("secure".to_owned()),
        other_config: map(&[("hwaddr", "02:00:00:00:00:01")]),
        external_ids: map(&[("owner", "podwire")]),
        mtu_request: Some(1400),
    };
    let add = vswitch::add_bridge(root, &spec);
    let outcome = client.transact(&add.transaction, soon()).await.unwrap();
    client.read(|db| {
        let bridge = db.bridge_by_name("br-int").unwrap();
        assert_eq!(Some(bridge.uuid()), outcome.uuid(add.bridge));
        assert_eq!(
            (bridge.datapath_type(), bridge.fail_mode()),
            ("netdev", Some("secure"))
        );
        assert_eq!(
            bridge.other_config().str("hwaddr"),
            Some("02:00:00:00:00:01")
        );
        assert_eq!(bridge.external_id("owner"), Some("podwire"));
        let local = db.interface(outcome.uuid(add.interface).unwrap()).unwrap();
        assert_eq!(
            (local.name(), local.interface_type(), local.mtu_request()),
            ("br-int", "internal", Some(1400))
        );
        assert_eq!(
            db.open_vswitch().unwrap().bridges().collect::<Vec<_>>(),
            [bridge.uuid()]
        );
    });
    let nowhere = vswitch::add_bridge(
        Uuid::from_bytes([3; 16]),
        &BridgeSpec {
            name: "br1".to_owned(),
            ..BridgeSpec::default()
        },
    );
    let error = client
        .transact(&nowhere.transaction, soon())
        .await
        .unwrap_err();
    assert!(matches!(error, TransactError::Count { .. }), "{error:?}");
}

#[tokio::test]
async fn keys_are_set_and_unset_beside_those_of_others() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let bridge = bridge(&client, root, "br0").await;
    let (_, interface) = added(&client, bridge, &pod_port("veth0", "ns_pod")).await;
    // OVN writes its own.
    commit(&client, |transaction| {
        let mutation = Mutation::insert("external_ids", Value::map([("ovn-installed", "true")]));
        transaction
            .mutate("Interface", Condition::uuid(interface), mutation)
            .expect_count(1);
    })
    .await
    .unwrap();
    let entries = map(&[("iface-id", "ns_pod2"), ("new", "value")]);
    commit(&client, |transaction| {
        vswitch::set_keys(
            transaction,
            "Interface",
            interface,
            "external_ids",
            &entries,
        );
    })
    .await
    .unwrap();
    let ids = || {
        client.read(|db| {
            db.interface(interface)
                .unwrap()
                .external_ids()
                .strings()
                .map(|(k, v)| format!("{k}={v}"))
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(
        ids(),
        [
            "iface-id=ns_pod2",
            "new=value",
            "ovn-installed=true",
            "sandbox=veth0"
        ]
    );
    client.read(|db| {
        assert_eq!(db.interfaces_with("ns_pod").count(), 0);
        assert_eq!(db.interfaces_with("ns_pod2").count(), 1);
    });
    commit(&client, |transaction| {
        vswitch::unset_keys(
            transaction,
            "Interface",
            interface,
            "external_ids",
            &["iface-id", "absent"],
        );
        vswitch::unset_keys(
            transaction,
            "Interface",
            interface,
            "external_ids",
            &["new"],
        );
    })
    .await
    .unwrap();
    assert_eq!(ids(), ["ovn-installed=true", "sandbox=veth0"]);
    client.read(|db| assert_eq!(db.interfaces_with("ns_pod2").count(), 0));

    let gone = Uuid::from_bytes([3; 16]);
    let outcome = commit(&client, |transaction| {
        vswitch::set_keys(
            transaction,
            "Interface",
            gone,
            "external_ids",
            &map(&[("a", "b")]),
        );
    });
    assert!(matches!(outcome.await, Err(TransactError::Count { .. })));
    let outcome = commit(&client, |transaction| {
        vswitch::unset_keys(transaction, "Interface", gone, "external_ids", &["a"]);
    });
    outcome.await.unwrap();
}

#[tokio::test]
async fn a_schema_without_a_column_reads_it_as_absent() {
    let server = Server::start();
    let mut tables = vswitch::tables();
    tables[5].columns = &["dscp", "a_column_of_the_future"];
    let client = Client::start(podwire_ovs::client::ClientConfig {
        tables,
        ..server.config()
    });
    let mut transaction = Transaction::new();
    let queue = transaction.insert("Queue", Columns::new().set("dscp", 4));
    let queue = client
        .transact(&transaction, soon())
        .await
        .unwrap()
        .uuid(queue)
        .unwrap();
    client.read(|db| {
        let row = db.row("Queue", queue).unwrap();
        assert_eq!(
            (row.integer("dscp"), row.str("a_column_of_the_future")),
            (Some(4), None)
        );
    });
}

#[tokio::test]
async fn a_port_for_a_bridge_that_is_gone_is_not_made_and_replaces_nothing() {
    let server = Server::start();
    let (client, root) = server.initialised().await;
    let gone = bridge(&client, root, "br-gone").await;
    let there = bridge(&client, root, "br-int").await;
    let (old, _) = added(&client, there, &pod_port("old", "ns_pod")).await;
    let replaces = client.read(|db| db.port_rows(old, |_| true)).unwrap();
    commit(&client, |transaction| {
        let bridges = Mutation::delete("bridges", gone);
        transaction.mutate("Open_vSwitch", Condition::uuid(root), bridges);
    })
    .await
    .unwrap();

    let spec = PortSpec {
        qos: Some(QosSpec {
            qos_type: "linux-htb".to_owned(),
            external_ids: map(&[("sandbox", "new")]),
            ..QosSpec::default()
        }),
        ..pod_port("new", "ns_pod")
    };
    let error = add(&client, gone, &spec, &[replaces]).await.unwrap_err();
    assert!(error.is_dangling_reference(), "{error:?}");
    client.read(|db| {
        assert!(
            db.port(old).is_some(),
            "the port that it was to replace is gone"
        );
        assert_eq!(db.qos_with_sandbox("new").count(), 0);
        assert!(db.interface_by_name("new").is_none());
    });
}
