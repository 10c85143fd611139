//! The reference `bridge` plugin with `static` ipam, of Debian's containernetworking-plugins: the
//! least that a user of the CNI project's own plugins has.

use std::process::Command;

use serde_json::{Value, json};

use super::{Subject, Worker};
use crate::error::Error;
use crate::exec::exec;
use crate::sample::Sample;
use crate::seat::{MTU, Seat};

/// Where Debian has it.
const BINARY: &str = "/usr/lib/cni/bridge";

/// The plugin, on a bridge of its own that stays from the first ADD on.
#[derive(Debug, Default)]
pub struct BridgePlugin;

impl Subject for BridgePlugin {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, Error> {
        Ok(Box::new(BridgeWorker))
    }
}

struct BridgeWorker;

impl Worker for BridgeWorker {
    fn add(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        run("ADD", seat)
    }

    fn del(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        run("DEL", seat)
    }
}

fn run(verb: &str, seat: &Seat<'_>) -> Result<Sample, Error> {
    let mut plugin = Command::new(BINARY);
    plugin.current_dir("/").envs(seat.pod.environment(verb));
    let run = exec(
        &mut plugin,
        conf(seat).to_string().as_bytes(),
        &format!("bridge {verb}"),
        seat.number,
    )?;
    Ok(Sample::whole(&seat.pod.container, run.took))
}

fn conf(seat: &Seat<'_>) -> Value {
    let addresses: Vec<Value> = seat
        .addresses()
        .into_iter()
        .zip(seat.gateways())
        .map(|(address, gateway)| json!({"address": address, "gateway": gateway}))
        .collect();
    let mut routes = vec![json!({"dst": "0.0.0.0/0"})];
    if addresses.len() > 1 {
        routes.push(json!({"dst": "::/0"}));
    }
    json!({
        "cniVersion": "1.0.0",
        "name": "bench-bridge",
        "type": "bridge",
        "bridge": "bench0",
        "mtu": MTU,
        "ipam": {"type": "static", "addresses": addresses, "routes": routes},
    })
}
