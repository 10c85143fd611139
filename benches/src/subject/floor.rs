//! The floor: what the kernel and OVS themselves cost. A process that does nothing is spawned, the
//! netlink messages of the same end state are sent raw from one thread, and one OVSDB transaction
//! is made on an open connection. Nothing of podwire takes part.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Subject, Worker};
use crate::error::Error;
use crate::exec::exec;
use crate::netlink::{Way, Wirer};
use crate::ovsdb::{Connection, PortRow};
use crate::sample::{NETLINK, SPAWN, Sample, TOTAL, TRANSACTION, micros};
use crate::seat::Seat;

/// The floor under an ADD.
#[derive(Debug)]
pub struct Floor {
    empty: PathBuf,
    way: Way,
    bridge: String,
    made: Mutex<HashMap<usize, (u32, PortRow)>>,
}

impl Floor {
    /// With the binary that does nothing, and a way to send the messages.
    pub fn new(empty: PathBuf, way: Way, bridge: &str) -> Self {
        Self {
            empty,
            way,
            bridge: bridge.to_owned(),
            made: Mutex::default(),
        }
    }

    /// The same with another way.
    pub fn with_way(&self, way: Way) -> Self {
        Self::new(self.empty.clone(), way, &self.bridge)
    }

    /// How the messages are sent.
    pub fn way(&self) -> Way {
        self.way
    }

    fn made(&self) -> std::sync::MutexGuard<'_, HashMap<usize, (u32, PortRow)>> {
        // Every change is one insert or removal.
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn worker(&self) -> Result<Box<dyn Worker + '_>, Error> {
        Ok(Box::new(FloorWorker {
            floor: self,
            wirer: Wirer::open()?,
            ovsdb: Connection::open()?,
        }))
    }
}

struct FloorWorker<'a> {
    floor: &'a Floor,
    wirer: Wirer,
    ovsdb: Connection,
}

impl Worker for FloorWorker<'_> {
    fn add(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        let mut empty = Command::new(&self.floor.empty);
        empty.current_dir("/").envs(seat.pod.environment("ADD"));
        let spawned = exec(&mut empty, b"{}", "podwire-empty", seat.number)?.took;
        let wiring = Instant::now();
        let index = self.wirer.attach(seat, self.floor.way)?;
        let wired = wiring.elapsed();
        let committing = Instant::now();
        let row = self.ovsdb.add_port(&self.floor.bridge, seat)?;
        let committed = committing.elapsed();
        self.floor.made().insert(seat.number, (index, row));
        let mut sample = Sample::whole(&seat.pod.container, spawned + wired + committed);
        sample.set(SPAWN, micros(spawned));
        sample.set(NETLINK, micros(wired));
        sample.set(TRANSACTION, micros(committed));
        Ok(sample)
    }

    fn del(&mut self, seat: &Seat<'_>) -> Result<Sample, Error> {
        let made = self.floor.made().remove(&seat.number);
        let Some((index, row)) = made else {
            return Ok(Sample::whole(&seat.pod.container, Duration::ZERO));
        };
        let started = Instant::now();
        self.ovsdb.del_port(&self.floor.bridge, &row)?;
        self.wirer.delete(index)?;
        let mut sample = Sample::whole(&seat.pod.container, Duration::ZERO);
        sample.set(TOTAL, micros(started.elapsed()));
        Ok(sample)
    }
}
