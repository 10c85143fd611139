//! What group commit gains: the ports of a burst given to podwire's OVSDB client all at once, once
//! as it ships and once with one request for each transaction. Their devices are there before, so
//! that nothing but OVSDB and the switch is measured.

use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use podwire_ovs::client::{Client, ClientConfig, GroupCommit, Remote};
use podwire_ovs::transact::TransactError;
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch::{self, PortSpec, StringMap};
use podwire_tests::TestNode;
use serde::Serialize;

use crate::error::{Error, Step};
use crate::netlink::{Way, Wirer};
use crate::ovsdb::SOCKET;
use crate::run::settle;
use crate::sample::micros;
use crate::seat::Seat;

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(60);

/// One burst, in microseconds from its beginning.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Burst {
    /// Until ovsdb-server had answered every transaction.
    pub answered: f64,
    /// Until the last port had its ofport.
    pub last_ofport: f64,
}

/// Both ways, as often as asked.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Comparison {
    /// Ports in a burst.
    pub ports: usize,
    /// With group commit.
    pub grouped: Vec<Burst>,
    /// One transaction in each request.
    pub single: Vec<Burst>,
}

/// Measures both ways in turn.
///
/// # Errors
/// A link or a port could not be made.
pub fn compare(
    node: &TestNode,
    bridge: &str,
    seats: &[Seat<'_>],
    rounds: usize,
) -> Result<Comparison, Error> {
    let links = node.place().run(|| {
        let mut wirer = Wirer::open()?;
        let attach = |seat| wirer.attach(seat, Way::Batched);
        seats
            .iter()
            .map(attach)
            .collect::<Result<Vec<u32>, Error>>()
    })?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .step(|| "start tokio")?;
    let mut comparison = Comparison {
        ports: seats.len(),
        ..Comparison::default()
    };
    for round in 0..rounds {
        for turn in 0..2 {
            let is_grouped = (round + turn) % 2 == 0;
            let group = match is_grouped {
                true => GroupCommit::default(),
                false => GroupCommit::OFF,
            };
            let burst = runtime.block_on(burst(node, bridge, seats, group))?;
            match is_grouped {
                true => comparison.grouped.push(burst),
                false => comparison.single.push(burst),
            }
            settle(node)?;
        }
    }
    node.place().run(|| {
        let mut wirer = Wirer::open()?;
        links.into_iter().try_for_each(|link| wirer.delete(link))
    })?;
    Ok(comparison)
}

async fn burst(
    node: &TestNode,
    bridge: &str,
    seats: &[Seat<'_>],
    group: GroupCommit,
) -> Result<Burst, Error> {
    let deadline = || tokio::time::Instant::now() + PATIENCE;
    let failed = |step: &'static str| move |answer: String| Error::Ovsdb { step, answer };
    let remote = Remote::Unix(node.path(SOCKET));
    let mut config = ClientConfig::new(remote, vswitch::DATABASE, vswitch::tables());
    config.group = group;
    let client = Client::start(config);
    client
        .synced(deadline())
        .await
        .map_err(|error| failed("connect")(error.to_string()))?;
    let row = client.read(|db| db.bridge_by_name(bridge).map(|bridge| bridge.uuid()));
    let bridge = row.ok_or_else(|| failed("find bridge")(format!("no bridge {bridge}")))?;
    let ports: Vec<_> = seats
        .iter()
        .map(|seat| vswitch::add_port(bridge, &port(seat), &[]))
        .collect();

    let started = Instant::now();
    let sent = ports
        .iter()
        .map(|port| client.transact(&port.transaction, deadline()));
    let outcomes: Vec<Result<_, TransactError>> = join_all(sent).await;
    let answered = micros(started.elapsed());
    let mut interfaces: Vec<Uuid> = Vec::with_capacity(ports.len());
    let mut made: Vec<Uuid> = Vec::with_capacity(ports.len());
    for (outcome, port) in outcomes.into_iter().zip(&ports) {
        let outcome = outcome.map_err(|error| failed("add port")(error.to_string()))?;
        interfaces.extend(outcome.uuid(port.interface));
        made.extend(outcome.uuid(port.port));
    }
    let waits = interfaces.iter().map(|interface| {
        client.wait_row("Interface", *interface, deadline(), |row| {
            row?.integer("ofport").filter(|ofport| *ofport > 0)
        })
    });
    try_join_all(waits)
        .await
        .map_err(|error| failed("wait for ofport")(error.to_string()))?;
    let last_ofport = micros(started.elapsed());

    let rows: Vec<_> = client.read(|db| {
        made.iter()
            .filter_map(|port| db.port_rows(*port, |_| true))
            .collect()
    });
    client
        .transact(&vswitch::del_ports(&rows), deadline())
        .await
        .map_err(|error| failed("delete ports")(error.to_string()))?;
    Ok(Burst {
        answered,
        last_ofport,
    })
}

fn port(seat: &Seat<'_>) -> PortSpec {
    let pod = &seat.pod;
    let ids = [
        ("attached_mac", seat.mac_text()),
        ("iface-id", seat.iface_id()),
        ("iface-id-ver", pod.uid.clone()),
        ("ip_addresses", seat.addresses().join(",")),
        ("sandbox", pod.container.clone()),
    ];
    PortSpec {
        name: seat.host_name().to_owned(),
        external_ids: ids
            .into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect::<StringMap>(),
        ..PortSpec::default()
    }
}
