//! The floor's OVSDB: one blocking connection that is open already, a request out, its reply in.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};

use crate::error::{Error, Step};
use crate::seat::Seat;

/// The path on every node.
pub const SOCKET: &str = "/run/openvswitch/db.sock";

/// An open connection.
pub struct Connection {
    stream: UnixStream,
    replies: serde_json::StreamDeserializer<
        'static,
        serde_json::de::IoRead<BufReader<UnixStream>>,
        Value,
    >,
}

/// What a port's transaction made.
#[derive(Clone, Debug)]
pub struct PortRow(String);

impl Connection {
    /// Connects; the calling thread must be on the node.
    ///
    /// # Errors
    /// Nothing listens.
    pub fn open() -> Result<Self, Error> {
        let stream = UnixStream::connect(SOCKET).step(|| format!("connect to {SOCKET}"))?;
        let read = stream.try_clone().step(|| "share a socket")?;
        let replies = serde_json::Deserializer::from_reader(BufReader::new(read)).into_iter();
        Ok(Self { stream, replies })
    }

    /// One transaction: interface, port, and the port put on the bridge.
    ///
    /// # Errors
    /// It was refused.
    pub fn add_port(&mut self, bridge: &str, seat: &Seat<'_>) -> Result<PortRow, Error> {
        let pod = &seat.pod;
        let ids = json!([
            "map",
            [
                ["attached_mac", seat.mac_text()],
                ["iface-id", seat.iface_id()],
                ["iface-id-ver", pod.uid],
                ["ip_addresses", seat.addresses().join(",")],
                ["k8s.ovn.org/network", "default"],
                ["pod-if-name", pod.interface],
                ["podwire.io/netns", pod.netns],
                ["podwire.io/network", "pods"],
                ["sandbox", pod.container],
            ]
        ]);
        let name = seat.host_name();
        let results = self.transact(
            "add port",
            &[
                json!({"op": "insert", "table": "Interface", "uuid-name": "i", "row": {"name": name,
                "external_ids": ids}}),
                json!({"op": "insert", "table": "Port", "uuid-name": "p", "row": {"name": name,
                "interfaces": ["named-uuid", "i"]}}),
                json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]],
                   "mutations": [["ports", "insert", ["named-uuid", "p"]]]}),
            ],
        )?;
        let uuid = results[1]["uuid"][1].as_str().unwrap_or_default();
        Ok(PortRow(uuid.to_owned()))
    }

    /// Takes a port off the bridge; its rows go with it.
    ///
    /// # Errors
    /// It was refused.
    pub fn del_port(&mut self, bridge: &str, port: &PortRow) -> Result<(), Error> {
        let mutation = json!(["ports", "delete", ["uuid", port.0]]);
        let operation = json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", bridge]],
                               "mutations": [mutation]});
        self.transact("delete port", &[operation]).map(drop)
    }

    fn transact(&mut self, step: &'static str, operations: &[Value]) -> Result<Vec<Value>, Error> {
        let mut params = vec![json!("Open_vSwitch")];
        params.extend_from_slice(operations);
        let request = json!({"method": "transact", "params": params, "id": 0}).to_string();
        self.stream
            .write_all(request.as_bytes())
            .step(|| "send an OVSDB request")?;
        let refused = |answer: String| Error::Ovsdb { step, answer };
        let reply = loop {
            match self.replies.next() {
                Some(Ok(reply)) if reply["method"] == "echo" => self.echo(&reply)?,
                Some(Ok(reply)) => break reply,
                Some(Err(error)) => return Err(refused(error.to_string())),
                None => return Err(refused("the connection was closed".into())),
            }
        };
        let results = reply["result"].as_array().cloned().unwrap_or_default();
        match results.len() >= operations.len()
            && results.iter().all(|result| result.get("error").is_none())
        {
            true => Ok(results),
            false => Err(refused(reply.to_string())),
        }
    }

    /// ovsdb-server asks an idle client every five seconds whether it lives.
    fn echo(&mut self, request: &Value) -> Result<(), Error> {
        let reply = json!({"id": request["id"], "result": request["params"], "error": null});
        self.stream
            .write_all(reply.to_string().as_bytes())
            .step(|| "answer an echo")
    }
}
