//! An ovsdb-server of the test's own: a child process on a socket in a temporary directory. It
//! needs no privilege and no network.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::task::Poll;
use std::time::Duration;

use podwire_ovs::client::{Client, ClientConfig, Remote};
use podwire_ovs::transact::{Columns, Outcome, TransactError, Transaction};
use podwire_ovs::value::Uuid;
use podwire_ovs::vswitch;
use tempfile::TempDir;
use tokio::time::Instant;

/// Where the openvswitch-common package keeps it.
pub(crate) const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";

pub(crate) struct Server {
    directory: TempDir,
    process: Option<Child>,
    flags: Vec<String>,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(|_| Vec::new())
    }

    /// A server with further flags, which may name files of its directory.
    pub(crate) fn start_with(flags: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("podwire-ovs-")
            .tempdir()
            .unwrap();
        let mut server = Self {
            flags: flags(directory.path()),
            directory,
            process: None,
        };
        server.create_database();
        server.resume();
        server
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("db.sock")
    }

    pub(crate) fn config(&self) -> ClientConfig {
        config(&self.socket())
    }

    /// A client in sync.
    pub(crate) async fn client(&self) -> Client {
        let client = Client::start(self.config());
        client.synced(soon()).await.unwrap();
        client
    }

    /// A client in sync, and the only row of `Open_vSwitch`, just made.
    pub(crate) async fn initialised(&self) -> (Client, Uuid) {
        let client = self.client().await;
        let root = init(&client).await;
        (client, root)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        // What a killed server leaves behind would refuse connections, as if it were there.
        let _ = std::fs::remove_file(self.socket());
    }

    pub(crate) fn resume(&mut self) {
        let process = daemon("ovsdb-server")
            .arg(self.path().join("conf.db"))
            .arg(format!("--remote=punix:{}", self.socket().display()))
            .args(["--no-chdir", "--pidfile", "-vconsole:off", "-vsyslog:off"])
            .args(&self.flags)
            .env("OVS_RUNDIR", self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("ovsdb-server of the package openvswitch-switch");
        self.process = Some(process);
    }

    pub(crate) fn restart(&mut self) {
        self.kill();
        self.resume();
    }

    /// Replaces the database by an empty one. The server has to be dead.
    pub(crate) fn create_database(&self) {
        let database = self.path().join("conf.db");
        let _ = std::fs::remove_file(&database);
        run(Command::new("ovsdb-tool")
            .arg("create")
            .arg(database)
            .arg(SCHEMA));
    }

    /// Commits a transaction, given as JSON operations, with no server. The server has to be dead.
    pub(crate) fn change_offline(&self, operations: &str) {
        let transaction = format!(r#"["Open_vSwitch",{operations}]"#);
        run(Command::new("ovsdb-tool")
            .arg("transact")
            .arg(self.path().join("conf.db"))
            .arg(transaction));
    }

    /// Stops the server in its tracks: it keeps its socket and answers nothing.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    fn signal(&self, signal: &str) {
        let pid = self.process.as_ref().unwrap().id();
        run(Command::new("kill").arg(signal).arg(pid.to_string()));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A daemon that dies with the test's thread, however that ends.
pub(crate) fn daemon(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]);
    command
}

pub(crate) fn config(socket: &Path) -> ClientConfig {
    ClientConfig {
        backoff_first: Duration::from_millis(10),
        backoff_max: Duration::from_millis(100),
        ..ClientConfig::new(
            Remote::Unix(socket.into()),
            vswitch::DATABASE,
            vswitch::tables(),
        )
    }
}

/// A port that nobody has; the kernel gives it to nobody else for a while.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// A deadline that only a broken client meets.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub(crate) async fn init(client: &Client) -> Uuid {
    let mut transaction = Transaction::new();
    let root = transaction.insert("Open_vSwitch", Columns::new());
    client
        .transact(&transaction, soon())
        .await
        .unwrap()
        .uuid(root)
        .unwrap()
}

/// Makes a bridge that has only its local port.
pub(crate) async fn bridge(client: &Client, root: Uuid, name: &str) -> Uuid {
    let spec = vswitch::BridgeSpec {
        name: name.to_owned(),
        ..vswitch::BridgeSpec::default()
    };
    let add = vswitch::add_bridge(root, &spec);
    client
        .transact(&add.transaction, soon())
        .await
        .unwrap()
        .uuid(add.bridge)
        .unwrap()
}

/// Makes a port; returns the rows of `Port` and `Interface`.
pub(crate) async fn port(client: &Client, bridge: Uuid, name: &str) -> (Uuid, Uuid) {
    let spec = vswitch::PortSpec {
        name: name.to_owned(),
        ..vswitch::PortSpec::default()
    };
    let add = vswitch::add_port(bridge, &spec, &[]);
    let outcome = client.transact(&add.transaction, soon()).await.unwrap();
    (
        outcome.uuid(add.port).unwrap(),
        outcome.uuid(add.interface).unwrap(),
    )
}

/// Commits what `build` adds to a transaction.
pub(crate) async fn commit(
    client: &Client,
    build: impl FnOnce(&mut Transaction),
) -> Result<Outcome, TransactError> {
    let mut transaction = Transaction::new();
    build(&mut transaction);
    client.transact(&transaction, soon()).await
}

/// A queue with this number as its `dscp`: a root row that needs nobody to refer to it.
pub(crate) fn insert_queue(transaction: &mut Transaction, dscp: i64) {
    transaction.insert("Queue", Columns::new().set("dscp", dscp));
}

pub(crate) fn dscps(client: &Client) -> Vec<i64> {
    let mut dscps: Vec<_> = client.read(|db| {
        db.rows("Queue")
            .filter_map(|row| row.integer("dscp"))
            .collect()
    });
    dscps.sort_unstable();
    dscps
}

pub(crate) fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Submits all before any is sent, for the client's task runs on the same thread; the outcomes come
/// in the same order.
pub(crate) async fn transact_all(
    client: &Client,
    transactions: &[Transaction],
) -> Vec<Result<Outcome, TransactError>> {
    let mut pending: Vec<_> = transactions
        .iter()
        .map(|one| Box::pin(client.transact(one, soon())))
        .collect();
    let mut outcomes: Vec<_> = transactions.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, outcome) in pending.iter_mut().zip(&mut outcomes) {
            if outcome.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *outcome = Some(ready);
            }
        }
        if outcomes.iter().all(Option::is_some) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    outcomes.into_iter().flatten().collect()
}
