//! What the machine and the two servers take of a pod's time: a thread that follows pods of its
//! own, commits a port for each, and then annotates it, with nothing to compute. Its steps are
//! those of the controller, at the same time on the same machine.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::thread;

use podwire_tests::apiserver::{self, ApiServer};
use podwire_tests::ovn::Central;
use podwire_tests::{Failure, Step as _};
use serde_json::{Deserializer, Value, json};

use crate::cluster::NETWORKS;

/// The node and the switch of its pods. The controller leaves them alone: they are on their node's
/// network, and it has no such node.
const NAME: &str = "floor";

pub(crate) struct Floor;

impl Floor {
    /// Follows pods until the API server ends.
    pub(crate) fn start(central: &Central, server: &ApiServer) -> Result<Self, Failure> {
        let mut database = Database::northbound(central)?;
        database.commit(&[
            json!({ "op": "insert", "table": "Logical_Switch", "row": { "name": NAME } }),
        ])?;
        let place = central.machine().place();
        let connect = || place.run(|| TcpStream::connect(("127.0.0.1", server.port())));
        let (mut watch, api) = (
            connect().step(|| "reach the API server")?,
            connect().step(|| "reach the API server")?,
        );
        api.set_nodelay(true).step(|| "send without delay")?;
        let path = format!("/api/v1/pods?watch=1&fieldSelector=spec.nodeName={NAME}");
        write!(watch, "GET {path} HTTP/1.1\r\nHost: api\r\n\r\n").step(|| "watch pods")?;
        thread::spawn(move || follow(watch, &mut database, BufReader::new(api)));
        Ok(Self)
    }

    /// A pod of its own.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Value {
        let mut pod = apiserver::pod(NAME, namespace, name, name, json!({}));
        pod["spec"]["hostNetwork"] = true.into();
        pod
    }
}

/// The server's end ends it.
fn follow(
    watch: TcpStream,
    database: &mut Database,
    mut api: BufReader<TcpStream>,
) -> Result<(), Failure> {
    for line in BufReader::new(watch).lines() {
        let line = line.step(|| "read an event")?;
        let Ok(event) = serde_json::from_str::<Value>(&line) else {
            continue; // the length of a chunk
        };
        if event["type"] == "ADDED" {
            let metadata = &event["object"]["metadata"];
            let word = |name: &str| metadata[name].as_str().unwrap_or_default().to_owned();
            let (namespace, name) = (word("namespace"), word("name"));
            let port = ["named-uuid", "port"];
            let address = "0a:58:0a:80:00:03 10.128.0.3";
            database.commit(&[
                json!({ "op": "insert", "table": "Logical_Switch_Port", "uuid-name": "port",
                    "row": {
                    "name": format!("{namespace}_{name}"), "addresses": address,
                    "port_security": address,
                } }),
                json!({ "op": "mutate", "table": "Logical_Switch", "where": [["name", "==", NAME]],
                    "mutations": [["ports", "insert", port]] }),
            ])?;
            annotate(&mut api, &namespace, &name)?;
        }
    }
    Ok(())
}

fn annotate(api: &mut BufReader<TcpStream>, namespace: &str, name: &str) -> Result<(), Failure> {
    let patch = json!({ "metadata": { "annotations": { NETWORKS: "{}" } } }).to_string();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{name}/status");
    let head = "Content-Type: application/merge-patch+json";
    let length = patch.len();
    let request =
        format!("PATCH {path} HTTP/1.1\r\n{head}\r\nContent-Length: {length}\r\n\r\n{patch}");
    let sent = api.get_mut().write_all(request.as_bytes());
    sent.step(|| "send a patch")?;
    let mut length = 0;
    loop {
        let mut line = String::new();
        api.read_line(&mut line).step(|| "read an answer")?;
        match line.trim_end().split_once(": ") {
            Some(("Content-Length", text)) => length = text.parse().unwrap_or(0),
            None if line.trim().is_empty() => break,
            _ => {}
        }
    }
    let mut body = vec![0; length];
    api.read_exact(&mut body).step(|| "read an answer")
}

/// The northbound database, on one connection.
pub(crate) struct Database(UnixStream);

impl Database {
    pub(crate) fn northbound(central: &Central) -> Result<Self, Failure> {
        let socket = central.machine().path("/run/ovn/ovnnb_db.sock");
        let database = UnixStream::connect(socket).step(|| "reach the northbound database")?;
        Ok(Self(database))
    }

    /// The operations' results; an error among them is none of this function's.
    pub(crate) fn commit(&mut self, operations: &[Value]) -> Result<Value, Failure> {
        let params = [&[json!("OVN_Northbound")], operations].concat();
        let request = json!({ "method": "transact", "params": params, "id": 0 }).to_string();
        self.0
            .write_all(request.as_bytes())
            .step(|| "send a transaction")?;
        let mut answers = Deserializer::from_reader(&self.0).into_iter::<Value>();
        let answer = answers.next().transpose();
        let answer = answer.map_err(std::io::Error::from);
        let answer = answer.step(|| "read a transaction's answer")?;
        Ok(answer.unwrap_or_default()["result"].take())
    }
}
