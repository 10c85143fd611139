//! The protocol driven by hand: no stream, no runtime, and a clock that the test sets.

use std::time::Duration;

use super::*;
use crate::transact::{Columns, Condition};
use crate::value::Value;
use crate::vswitch;

const SCHEMA: &str = include_str!("../../tests/server/schema.json");

struct Driven {
    protocol: Protocol,
    now: Instant,
}

impl Driven {
    fn new(change: impl FnOnce(&mut ClientConfig)) -> Self {
        let remotes = Remote::parse_list("tcp:192.0.2.1:1,tcp:192.0.2.2:2").unwrap();
        let mut config = ClientConfig::new(remotes, vswitch::DATABASE, vswitch::tables());
        change(&mut config);
        let replica = Arc::new(RwLock::new(Db::new(&config.tables)));
        let now = Instant::now();
        Self {
            protocol: Protocol::new(config, replica, now),
            now,
        }
    }

    /// With a connection in sync.
    fn synced(change: impl FnOnce(&mut ClientConfig)) -> Self {
        let mut driven = Self::new(change);
        assert!(driven.connect().is_some());
        driven.receive(&reply(0, SCHEMA));
        driven.receive(&reply(1, "{}"));
        driven.sent();
        while driven.protocol.poll_event().is_some() {}
        driven
    }

    /// The remote of the attempt that is due, which succeeds.
    fn connect(&mut self) -> Option<String> {
        let remote = self.protocol.poll_connect(self.now)?.to_string();
        self.protocol.handle_connected(self.now);
        Some(remote)
    }

    fn receive(&mut self, text: &str) {
        self.protocol.handle_input(self.now, text.as_bytes());
    }

    /// All that waits to be sent.
    fn sent(&mut self) -> String {
        let sent = String::from_utf8(self.protocol.poll_transmit().to_vec()).unwrap();
        self.protocol.transmitted(sent.len());
        sent
    }

    /// Lets the time of the next timer come; says how long that took.
    fn timeout(&mut self) -> Duration {
        let due = self.protocol.poll_timeout();
        let waited = due.saturating_duration_since(self.now);
        self.now = due;
        self.protocol.handle_timeout(due);
        waited
    }

    fn loss(&mut self) -> Option<String> {
        std::iter::from_fn(|| self.protocol.poll_event()).find_map(|event| match event {
            Event::Disconnected { error, .. } => Some(error.to_string()),
            _ => None,
        })
    }

    fn answer(&mut self, ticket: Ticket) -> Option<Answer> {
        std::iter::from_fn(|| self.protocol.poll_event()).find_map(|event| match event {
            Event::Answered(answered, answer) if answered == ticket => Some(answer),
            _ => None,
        })
    }
}

fn reply(id: u64, result: &str) -> String {
    format!(r#"{{"id":{id},"error":null,"result":{result}}}"#)
}

fn insert() -> Transaction {
    let mut transaction = Transaction::new();
    transaction.insert("Queue", Columns::new());
    transaction
}

#[test]
fn a_silent_server_is_asked_after_the_probe_interval_and_given_up_after_another() {
    let mut driven = Driven::synced(|_| {});
    assert_eq!(driven.timeout(), Duration::from_secs(5));
    assert_eq!(driven.sent(), r#"{"id":2,"method":"echo","params":[]}"#);
    driven.receive(&reply(2, "[]"));
    assert_eq!(driven.timeout(), Duration::from_secs(5));
    driven.sent();
    assert!(driven.protocol.is_connected());
    assert_eq!(driven.timeout(), Duration::from_secs(5));
    assert!(!driven.protocol.is_connected());
    let loss = driven.loss().unwrap();
    assert!(
        loss.contains("within 5000 ms of an echo request"),
        "{loss:?}"
    );
}

#[test]
fn a_server_may_take_its_time_for_the_database_s_contents() {
    let mut driven = Driven::new(|config| config.sync_probe = Duration::from_secs(60));
    assert!(driven.connect().is_some());
    driven.receive(&reply(0, SCHEMA));
    driven.sent();
    assert_eq!(driven.timeout(), Duration::from_secs(60));
    assert!(driven.protocol.is_connected());
    driven.receive(&reply(1, "{}"));
    assert_eq!(driven.timeout(), Duration::from_secs(5));
}

#[test]
fn an_attempt_that_takes_too_long_gives_way_to_the_next_remote() {
    let mut driven = Driven::new(|_| {});
    assert!(driven.protocol.poll_connect(driven.now).is_some());
    assert!(driven.protocol.poll_connect(driven.now).is_none());
    assert_eq!(driven.timeout(), Duration::from_secs(5));
    let loss = driven.loss().unwrap();
    assert_eq!(
        loss,
        "connecting to tcp:192.0.2.1:1 took longer than 5000 ms"
    );
    assert_eq!(driven.connect().as_deref(), Some("tcp:192.0.2.2:2"));
}

#[test]
fn every_remote_is_tried_before_there_is_a_pause_and_pauses_grow_by_round() {
    let mut driven = Driven::new(|_| {});
    let mut pauses = Vec::new();
    for turn in 0..8 {
        let pause = driven.timeout();
        pauses.push(pause.as_millis());
        let remote = driven.connect().unwrap();
        assert_eq!(remote.ends_with(":1"), turn % 2 == 0, "{remote}");
        driven
            .protocol
            .handle_disconnected(driven.now, ConnectionError::Closed);
    }
    let at_once: Vec<_> = pauses.iter().map(|pause| *pause == 0).collect();
    assert_eq!(
        at_once,
        [true, true, true, false, true, false, true, false],
        "{pauses:?}"
    );
    assert!(
        (37..=50).contains(&pauses[3]) && (75..=100).contains(&pauses[5]),
        "{pauses:?}"
    );
    driven.protocol.nudge(driven.now);
    assert!(driven.connect().is_some());
}

#[test]
fn another_connection_takes_over_once_nothing_is_in_flight_and_loses_no_transaction() {
    let mut driven = Driven::synced(|_| {});
    let first = driven.protocol.submit(&insert()).unwrap();
    assert!(driven.sent().contains("transact"));
    driven.protocol.reconnect(driven.now);
    assert!(driven.protocol.is_connected(), "its outcome would be lost");
    driven.protocol.submit(&insert()).unwrap();
    assert_eq!(driven.sent(), "");
    driven.receive(&reply(
        2,
        r#"[{"uuid":["uuid","00000000-0000-0000-0000-000000000001"]}]"#,
    ));
    let mut ended = None;
    let mut answer = None;
    while let Some(event) = driven.protocol.poll_event() {
        match event {
            Event::Answered(ticket, outcome) if ticket == first => answer = Some(outcome),
            Event::Disconnected { failures, .. } => ended = Some(failures),
            _ => {}
        }
    }
    assert!(answer.unwrap().is_ok());
    assert_eq!(ended, Some(0), "nothing has failed");
    assert_eq!(driven.connect().as_deref(), Some("tcp:192.0.2.1:1"));
    driven.receive(&reply(0, SCHEMA));
    driven.receive(&reply(1, "{}"));
    assert!(driven.sent().contains("transact"));
}

#[test]
fn an_attempt_that_began_before_a_reconnect_is_given_up() {
    let mut driven = Driven::new(|_| {});
    assert!(driven.protocol.poll_connect(driven.now).is_some());
    driven.protocol.reconnect(driven.now);
    assert!(!driven.protocol.is_connecting());
    assert_eq!(driven.connect().as_deref(), Some("tcp:192.0.2.1:1"));
}

#[test]
fn only_the_leader_of_a_cluster_will_do_and_its_successor_is_sought_at_once() {
    let database = |leader: bool| {
        let row = format!(r#"{{"name":"Open_vSwitch","connected":true,"leader":{leader}}}"#);
        let uuid = "00000000-0000-0000-0000-000000000001";
        format!(r#"{{"Database":{{"{uuid}":{{"initial":{row}}}}}}}"#)
    };
    let mut driven = Driven::new(|config| config.leader_only = true);
    assert_eq!(driven.connect().as_deref(), Some("tcp:192.0.2.1:1"));
    assert!(driven.sent().contains(r#"["_Server","podwire-server","#));
    driven.receive(&reply(0, &database(false)));
    let loss = driven.loss().unwrap();
    assert_eq!(
        loss,
        "the server is not the leader of the cluster of Open_vSwitch"
    );

    assert_eq!(driven.connect().as_deref(), Some("tcp:192.0.2.2:2"));
    driven.receive(&reply(0, &database(true)));
    assert!(driven.sent().contains("get_schema"));
    driven.receive(&reply(1, SCHEMA));
    driven.receive(&reply(2, "{}"));
    driven.sent();
    let ticket = driven.protocol.submit(&insert()).unwrap();
    assert!(driven.sent().contains("transact"));
    driven.now += Duration::from_secs(10);
    let update = r#"{"id":null,"method":"update2","params":["podwire-server",{"Database":
        {"00000000-0000-0000-0000-000000000001":{"modify":{"leader":false}}}}]}"#;
    driven.receive(update);
    let answer = driven.answer(ticket).unwrap();
    assert!(matches!(
        answer,
        Err(TransactError::Disconnected { sent: true, .. })
    ));
    assert_eq!(driven.connect().as_deref(), Some("tcp:192.0.2.1:1"));

    driven.receive(&reply(0, r#"{"Database":{}}"#));
    assert_eq!(
        driven.loss().as_deref(),
        Some("the server has no database Open_vSwitch")
    );
    // One that knows no `_Server` is older than clusters.
    assert_eq!(driven.timeout(), Duration::ZERO);
    assert!(driven.connect().is_some());
    driven.receive(r#"{"id":0,"error":"unknown database","result":null}"#);
    assert!(driven.sent().contains("get_schema"));
}

#[test]
fn the_fence_begins_each_request_and_where_it_breaks_everybody_is_told() {
    let mut driven = Driven::synced(|_| {});
    let mut fence = Transaction::new();
    let epoch = Condition::includes("external_ids", Value::map([("epoch", "7")]));
    fence.guard("Open_vSwitch", epoch);
    driven.protocol.set_fence(&fence).unwrap();

    let both = [insert(), insert()].map(|one| driven.protocol.submit(&one).unwrap());
    let sent = driven.sent();
    assert_eq!(sent.matches(r#""op":"wait""#).count(), 1, "{sent}");
    assert!(
        sent.contains(r#"["Open_vSwitch",{"op":"wait","table":"Open_vSwitch","where":[["external_ids","includes",["map",[["epoch","7"]]]]]"#),
        "{sent}"
    );
    let row = r#"{"uuid":["uuid","00000000-0000-0000-0000-000000000001"]}"#;
    driven.receive(&reply(2, &format!("[{{}},{row},{row}]")));
    for ticket in both {
        assert!(driven.answer(ticket).unwrap().is_ok());
    }

    // A member's own failure is told apart from the fence's.
    let both = [insert(), insert()].map(|one| driven.protocol.submit(&one).unwrap());
    driven.sent();
    driven.receive(&reply(
        3,
        &format!(r#"[{{}},{row},{{"error":"resources exhausted"}},null]"#),
    ));
    assert!(matches!(
        driven.answer(both[1]),
        Some(Err(TransactError::Operation { index: 0, .. }))
    ));
    assert!(driven.sent().contains("insert"));
    driven.receive(&reply(4, r#"[{"error":"timed out"},null]"#));
    assert!(matches!(
        driven.answer(both[0]),
        Some(Err(TransactError::Fenced { .. }))
    ));

    driven.protocol.set_fence(&Transaction::new()).unwrap();
    driven.protocol.submit(&insert()).unwrap();
    assert!(!driven.sent().contains("wait"));
}

#[test]
fn a_transaction_whose_caller_left_in_flight_is_not_sent_again() {
    let mut driven = Driven::synced(|_| {});
    let tickets = [insert(), insert()].map(|one| driven.protocol.submit(&one).unwrap());
    driven.sent();
    assert!(!driven.protocol.withdraw(tickets[0]));
    driven.receive(&reply(2, r#"[null,{"error":"resources exhausted"}]"#));
    assert_eq!(driven.sent(), "");
}
