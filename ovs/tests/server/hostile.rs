//! Servers that break the protocol. Each has to end in an error that says how, in bounded memory,
//! and in another attempt.

use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, State};
use podwire_ovs::replica::MonitorMethod;
use podwire_ovs::wire::Limits;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::fixture::{config, soon};

const SCHEMA: &str = include_str!("schema.json");
const ROW: &str = "00000000-0000-0000-0000-000000000001";

/// A server that the test plays.
struct Fake {
    directory: TempDir,
    listener: UnixListener,
}

/// One connection to it.
struct Peer {
    stream: UnixStream,
    received: String,
}

impl Fake {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("db.sock")).unwrap();
        Self {
            directory,
            listener,
        }
    }

    fn config(&self) -> ClientConfig {
        let limits = Limits {
            message_bytes: 100_000,
            unsent_bytes: 10_000,
            ..Limits::default()
        };
        ClientConfig {
            limits,
            ..config(&self.directory.path().join("db.sock"))
        }
    }

    async fn accept(&self) -> Peer {
        let (stream, _) = tokio::time::timeout_at(soon(), self.listener.accept())
            .await
            .unwrap()
            .unwrap();
        Peer {
            stream,
            received: String::new(),
        }
    }

    /// A connection that has been served the schema and this snapshot.
    async fn accept_synced(&self, snapshot: &str) -> Peer {
        let mut peer = self.accept().await;
        peer.expect("get_schema").await;
        peer.reply(0, SCHEMA).await;
        peer.expect("monitor_cond").await;
        peer.reply(1, snapshot).await;
        peer
    }
}

impl Peer {
    async fn reply(&mut self, id: u32, result: &str) {
        self.send(&format!(r#"{{"id":{id},"error":null,"result":{result}}}"#))
            .await;
    }

    async fn update(&mut self, method: &str, params: &str) {
        self.send(&format!(
            r#"{{"id":null,"method":"{method}","params":{params}}}"#
        ))
        .await;
    }

    async fn send(&mut self, text: &str) {
        // The client may have hung up on what came before; then that is what the test is about.
        let _ = self.stream.write_all(text.as_bytes()).await;
    }

    /// Reads until the client has sent this text.
    async fn expect(&mut self, text: &str) {
        let mut chunk = vec![0; 4096];
        while !self.received.contains(text) {
            let read = tokio::time::timeout_at(soon(), self.stream.read(&mut chunk)).await;
            let count = read
                .unwrap_or_else(|_| panic!("no {text} in {}", self.received))
                .unwrap();
            assert!(
                count > 0,
                "the client hung up; no {text} in {}",
                self.received
            );
            self.received
                .push_str(std::str::from_utf8(&chunk[..count]).unwrap());
        }
        self.received.clear();
    }

    async fn expect_hang_up(&mut self) {
        let mut chunk = vec![0; 4096];
        // A reset is a hang-up too: the client left bytes of ours unread.
        while tokio::time::timeout_at(soon(), self.stream.read(&mut chunk))
            .await
            .unwrap()
            .is_ok_and(|count| count > 0)
        {}
    }
}

/// The client drops the connection with an error that holds `reason`, and connects again.
async fn assert_dropped(fake: &Fake, client: &Client, peer: &mut Peer, reason: &str) {
    let mut versions = client.subscribe();
    let dropped = async {
        loop {
            if let State::Disconnected {
                last_error: Some(error),
                ..
            } = &versions.borrow_and_update().state
            {
                break error.to_string();
            }
            versions.changed().await.unwrap();
        }
    };
    let error = tokio::time::timeout_at(soon(), dropped)
        .await
        .unwrap_or_else(|_| panic!("not dropped for {reason:?}"));
    assert!(error.contains(reason), "{error:?} instead of {reason:?}");
    peer.expect_hang_up().await;
    let mut again = fake.accept().await;
    again.expect("get_schema").await;
}

/// What the server sends at once, and why that ends the connection.
#[tokio::test]
async fn bytes_that_are_no_protocol_end_the_connection() {
    let huge = format!(r#"{{"id":0,"result":"{}"#, "x".repeat(200_000));
    let deep = format!(r#"{{"id":0,"result":{}"#, "[".repeat(200));
    for (bytes, reason) in [
        (
            "HTTP/1.1 400 Bad Request\r\n",
            "where a message should begin",
        ),
        ("[]", "where a message should begin"),
        ("{]", "closes no bracket"),
        ("{}", "a reply to no request"),
        (r#"{"id":0,"result":nonsense}"#, "not JSON-RPC"),
        (r#"{"id":0,"result":{},"result":{}}"#, "not JSON-RPC"),
        (
            r#"{"id":7,"result":{}}"#,
            "a reply to no request of ours, id 7",
        ),
        (r#"{"id":"0","result":{}}"#, "a reply to no request"),
        (
            r#"{"id":0,"error":"unknown database"}"#,
            "refused get_schema",
        ),
        (r#"{"id":0,"result":[]}"#, "schema"),
        (
            r#"{"id":0,"result":{"tables":{}}}"#,
            "has no table Open_vSwitch",
        ),
        (
            r#"{"id":null,"method":"monitor_canceled","params":["podwire"]}"#,
            "cancelled",
        ),
        (&huge, "longer than the 100000 bytes"),
        (&deep, "deeper than the 32 levels"),
    ] {
        let fake = Fake::new();
        let client = Client::start(fake.config());
        let mut peer = fake.accept().await;
        peer.expect("get_schema").await;
        peer.send(bytes).await;
        assert_dropped(&fake, &client, &mut peer, reason).await;
    }
}

#[tokio::test]
async fn half_a_message_and_the_end_is_a_lost_connection() {
    let fake = Fake::new();
    let client = Client::start(fake.config());
    let mut peer = fake.accept().await;
    peer.send(r#"{"id":0,"result":{"tab"#).await;
    peer.stream.shutdown().await.unwrap();
    assert_dropped(&fake, &client, &mut peer, "closed the connection").await;
}

#[tokio::test]
async fn updates_that_do_not_fit_the_schema_end_the_connection() {
    let row =
        |table: &str, change: &str| format!(r#"["podwire",{{"{table}":{{"{ROW}":{change}}}}}]"#);
    for (params, reason) in [
        ("7".to_owned(), "can't be read"),
        (r#"["podwire"]"#.to_owned(), "can't be read"),
        (r#"["podwire",[]]"#.to_owned(), "object of table updates"),
        (
            r#"["podwire",{"Interface":{"no-uuid":{"insert":{}}}}]"#.to_owned(),
            "not a uuid",
        ),
        (row("Manager", r#"{"insert":{}}"#), "was not asked for"),
        (row("Interface", "{}"), "an empty row update"),
        (row("Interface", r#"{"explode":{}}"#), "unknown kind"),
        (
            row("Interface", r#"{"insert":{"nonsense":1}}"#),
            "was not asked for",
        ),
        (
            row("Interface", r#"{"insert":{"name":1}}"#),
            "column name: an integer where a value of type string belongs",
        ),
        (
            row("Interface", r#"{"insert":{"name":["set",[]]}}"#),
            "a wrong number of elements",
        ),
        (
            row("Interface", r#"{"insert":{"ofport":["set",[1,2]]}}"#),
            "a wrong number of elements",
        ),
        (
            row("Interface", r#"{"insert":{"ofport":1.5}}"#),
            "floating point",
        ),
        (
            row("Interface", r#"{"insert":{"ofport":18446744073709551615}}"#),
            "does not fit 64 bits",
        ),
        (
            row("Interface", r#"{"insert":{"external_ids":"x"}}"#),
            "a set where",
        ),
        (
            row(
                "Interface",
                r#"{"insert":{"external_ids":["map",[["a","b"],["a","c"]]]}}"#,
            ),
            "a key comes twice",
        ),
        (
            row(
                "Interface",
                r#"{"insert":{"external_ids":["map",[["a",["set",[]]]]]}}"#,
            ),
            "where an atom belongs",
        ),
        (
            row("Interface", r#"{"insert":{"name":["named-uuid","r0_0"]}}"#),
            "named-uuid",
        ),
        (
            row("Bridge", r#"{"insert":{"ports":["set",["a","b"]]}}"#),
            "column ports: a string where a value of type uuid belongs",
        ),
        (
            row("Bridge", r#"{"insert":{"ports":["uuid","1"]}}"#),
            "not a uuid",
        ),
        (
            row("Interface", r#"{"modify":{"ofport":1}}"#),
            "which is not known",
        ),
        (row("Interface", r#"{"delete":null}"#), "which is not known"),
    ] {
        let fake = Fake::new();
        let client = Client::start(fake.config());
        let mut peer = fake.accept_synced("{}").await;
        client.synced(soon()).await.unwrap();
        peer.update("update2", &params).await;
        assert_dropped(&fake, &client, &mut peer, reason).await;
    }
}

#[tokio::test]
async fn a_server_that_sends_rows_without_end_is_cut_off() {
    let fake = Fake::new();
    let client = Client::start(ClientConfig {
        replica_bytes: 1 << 20,
        ..fake.config()
    });
    let mut peer = fake.accept_synced("{}").await;
    client.synced(soon()).await.unwrap();
    let flood = async {
        let value = "x".repeat(10_000);
        for number in 0..200 {
            let update = format!(
                r#"["podwire",{{"Interface":{{"{number:08x}-0000-0000-0000-000000000000":{{"insert":{{"name":"{value}"}}}}}}}}]"#
            );
            peer.update("update2", &update).await;
        }
        peer
    };
    let mut peer = flood.await;
    assert_dropped(&fake, &client, &mut peer, "more than the 1048576 bytes").await;
    client.read(|db| assert!(db.len("Interface") < 110));
}

#[tokio::test]
async fn echoes_are_answered_and_a_peer_that_reads_no_answer_is_cut_off() {
    let fake = Fake::new();
    let client = Client::start(fake.config());
    let mut peer = fake.accept_synced("{}").await;
    peer.send(r#"{"id":"echo","method":"echo","params":["a",{"b":1}]}"#)
        .await;
    peer.expect(r#"{"id":"echo","result":["a",{"b":1}],"error":null}"#)
        .await;
    peer.send(r#"{"id":3,"method":"steal","params":[]}"#).await;
    peer.expect(r#"{"id":3,"result":null,"error":"unknown method"}"#)
        .await;
    let echo = format!(
        r#"{{"id":"echo","method":"echo","params":["{}"]}}"#,
        "x".repeat(50_000)
    );
    let flood = async {
        // Until both socket buffers are full, and the client has had enough.
        while peer.stream.write_all(echo.as_bytes()).await.is_ok() {}
    };
    tokio::time::timeout_at(soon(), flood).await.unwrap();
    assert_dropped(&fake, &client, &mut peer, "bytes wait to be sent").await;
}

#[tokio::test]
async fn a_silent_server_is_asked_and_then_given_up() {
    let fake = Fake::new();
    let client = Client::start(ClientConfig {
        probe: Duration::from_millis(30),
        ..fake.config()
    });
    let mut peer = fake.accept_synced("{}").await;
    peer.expect(r#"{"id":2,"method":"echo","params":[]}"#).await;
    peer.send(r#"{"id":2,"result":[],"error":null}"#).await;
    // An answer keeps the connection, so there is another question.
    peer.expect(r#"{"id":3,"method":"echo","params":[]}"#).await;
    assert_dropped(&fake, &client, &mut peer, "not a byte from the server").await;
}

#[tokio::test]
async fn a_reply_that_does_not_fit_its_transaction_is_told_to_the_caller() {
    for reply in [
        r#"[]"#,
        r#"[{},{}]"#,
        r#"[{"uuid":["set",[]]}]"#,
        r#"[null]"#,
        r#"{}"#,
        r#"[{},null,{"error":"late"}]"#,
    ] {
        let fake = Fake::new();
        let client = Client::start(fake.config());
        let mut peer = fake.accept_synced("{}").await;
        let insert = crate::fixture::commit(&client, |transaction| {
            crate::fixture::insert_queue(transaction, 1)
        });
        let answer = async {
            peer.expect("transact").await;
            peer.reply(2, reply).await;
        };
        let (outcome, ()) = tokio::join!(insert, answer);
        let disconnected = matches!(
            &outcome,
            Err(podwire_ovs::transact::TransactError::Disconnected { sent: true, .. })
        );
        assert!(disconnected, "{reply}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_server_without_monitor_cond_is_asked_for_a_plain_monitor() {
    let fake = Fake::new();
    let client = Client::start(fake.config());
    let mut peer = fake.accept().await;
    peer.expect("get_schema").await;
    peer.reply(0, SCHEMA).await;
    peer.expect("monitor_cond").await;
    peer.send(r#"{"id":1,"error":{"error":"unknown method"},"result":null}"#)
        .await;
    peer.expect(r#""method":"monitor","#).await;
    let first = format!(r#"{{"Interface":{{"{ROW}":{{"new":{{"name":"p0"}}}}}}}}"#);
    peer.reply(2, &first).await;
    client.synced(soon()).await.unwrap();
    let uuid = ROW.parse().unwrap();
    client.read(|db| assert_eq!(db.interface(uuid).unwrap().name(), "p0"));
    let old = r#"{"old":{"ofport":["set",[]]},"new":{"name":"p0","ofport":3}}"#;
    let row = |change: &str| format!(r#"["podwire",{{"Interface":{{"{ROW}":{change}}}}}]"#);
    peer.update("update", &row(old)).await;
    assert_eq!(
        client
            .wait_row("Interface", uuid, soon(), |row| row?.integer("ofport"))
            .await,
        Ok(3)
    );
    // Said again it is no change; the echo's answer shows that it was taken.
    let generation = client.subscribe().borrow().generation;
    let again = r#"{"old":{},"new":{"name":"p0","ofport":3}}"#;
    peer.update("update", &row(again)).await;
    peer.send(r#"{"id":"echo","method":"echo","params":[]}"#)
        .await;
    peer.expect(r#""id":"echo""#).await;
    assert_eq!(client.subscribe().borrow().generation, generation);
    peer.update("update", &row(r#"{"old":{}}"#)).await;
    client
        .wait_row("Interface", uuid, soon(), |row| row.is_none().then_some(()))
        .await
        .unwrap();

    // A server that has neither says so.
    let fake = Fake::new();
    let client = Client::start(ClientConfig {
        monitor: MonitorMethod::Plain,
        ..fake.config()
    });
    let mut peer = fake.accept().await;
    peer.expect("get_schema").await;
    peer.reply(0, SCHEMA).await;
    peer.expect(r#""method":"monitor","#).await;
    peer.send(r#"{"id":1,"error":"unknown method","result":null}"#)
        .await;
    assert_dropped(&fake, &client, &mut peer, "refused monitor").await;
}
