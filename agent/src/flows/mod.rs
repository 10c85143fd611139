//! Port security, and the delivery of ARP and ND requests to one port, as flows of the switch in
//! plain mode; with OVN, what its own port security lets pass.
//!
//! [`rules`] is pure: ports in, flows out. [`Flows`] keeps them in the switch: those of existing
//! rows, and those of ports that an ADD is about to create. An ADD reserves its port's number first
//! ([`Flows::reserve`]), so that the flows exist before the port does and no packet of the pod
//! passes without them. When a row is removed, by whomever, its flows are removed with the same
//! update. Each change is one atomic bundle. If ovs-vswitchd ends or the bridge is re-created, the
//! connection closes, and everything is sent again over the next one.

pub mod rules;
mod sync;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use macaddr::MacAddr6;
use podwire_ovs::openflow::OpenFlowError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::config::{Config, Live};
use crate::ports::{Ports, SecuredPort};
use sync::{Command, FlowSync};

/// The port numbers used: above those that ovs-vswitchd counts up from 1, below the reserved ones
/// (OFPP_MAX).
const NUMBERS: std::ops::Range<u16> = 0x4000..0xff00;

/// Why a port's flows are missing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FlowsError {
    /// The switch refused them.
    #[error(
        "port security of {mac}: {source} (to do without it, set \"portSecurity\": false in the \
         network configuration)"
    )]
    Refused {
        /// The pod's MAC address.
        mac: String,
        /// Its error.
        source: Arc<OpenFlowError>,
    },
    /// The time is up.
    #[error("port security of {mac}: waited {} ms for ovs-vswitchd to accept its flows; {seen}",
        waited.as_millis())]
    Late {
        /// The pod's MAC address.
        mac: String,
        /// How long the ADD waited.
        waited: Duration,
        /// The state of the connection.
        seen: String,
    },
}

/// The flows of the bridge's ports; cheap to clone.
#[derive(Debug, Clone)]
pub struct Flows {
    commands: mpsc::UnboundedSender<Command>,
    numbers: Arc<Mutex<Numbers>>,
    problem: watch::Receiver<Option<Arc<OpenFlowError>>>,
}

/// The port numbers in use.
#[derive(Debug)]
struct Numbers {
    used: HashSet<u16>,
    reserved: HashMap<u16, Arc<SecuredPort>>,
    next: u16,
}

/// What is known of a port because this agent created it.
#[derive(Debug, Clone, Copy)]
struct Origin {
    /// Before the port existed.
    born: Instant,
    /// Ports born later can't know the port's addresses by another MAC address; None if any may.
    known_until: Option<Instant>,
}

/// A port's number and its flows, while its row may not exist yet. When dropped, the flows stay if
/// the row exists.
#[derive(Debug)]
pub struct Reservation {
    flows: Flows,
    ofport: u16,
    port: Arc<SecuredPort>,
    origin: Origin,
    installed: oneshot::Receiver<Result<(), Arc<OpenFlowError>>>,
}

impl Flows {
    /// Starts the task, on the current tokio runtime.
    pub fn keep(ports: Ports, config: &Config, live: watch::Receiver<Live>) -> Self {
        let (commands, received) = mpsc::unbounded_channel();
        let numbers = Arc::new(Mutex::new(Numbers::default()));
        let (problem, seen) = watch::channel(None);
        let sync = FlowSync::new(ports, config.clone(), live, Arc::clone(&numbers), problem);
        tokio::spawn(sync.run(received));
        Self {
            commands,
            numbers,
            problem: seen,
        }
    }

    /// Chooses a number for a port that is about to be created, and requests its flows. Ports that
    /// are created after `known_until` can't know its addresses by another MAC address, and don't
    /// hear it announce them; with None, all do.
    pub fn reserve(&self, port: SecuredPort, known_until: Option<Instant>) -> Reservation {
        let port = Arc::new(port);
        let ofport = lock(&self.numbers).reserve(&port);
        let origin = Origin {
            born: Instant::now(),
            known_until,
        };
        let installed = self.install(ofport, &port, origin);
        Reservation {
            flows: self.clone(),
            ofport,
            port,
            origin,
            installed,
        }
    }

    /// Whether a port that is about to be created has this MAC address.
    pub fn is_reserved(&self, mac: MacAddr6) -> bool {
        let numbers = lock(&self.numbers);
        numbers.reserved.values().any(|port| port.mac == mac)
    }

    /// Why no flows can be installed now, although the switch may work.
    pub fn problem(&self) -> Option<Arc<OpenFlowError>> {
        self.problem.borrow().clone()
    }

    fn install(
        &self,
        ofport: u16,
        port: &Arc<SecuredPort>,
        origin: Origin,
    ) -> oneshot::Receiver<Result<(), Arc<OpenFlowError>>> {
        let (done, installed) = oneshot::channel();
        let command = Command::Install {
            ofport,
            port: Arc::clone(port),
            origin,
            done,
        };
        // The task lives as long as the runtime; without it, the receiver finds its sender
        // dropped.
        let _ = self.commands.send(command);
        installed
    }
}

impl Reservation {
    /// The number for the port to request.
    pub fn ofport(&self) -> u16 {
        self.ofport
    }

    /// Waits until the switch has the flows.
    ///
    /// # Errors
    /// See [`FlowsError`].
    pub async fn installed(&mut self, patience: Duration) -> Result<(), FlowsError> {
        let began = Instant::now();
        let late = |seen: String| FlowsError::Late {
            mac: crate::plan::mac_text(self.port.mac),
            waited: began.elapsed(),
            seen,
        };
        match tokio::time::timeout(patience, &mut self.installed).await {
            Ok(Ok(Ok(()))) => Ok(()),
            Ok(Ok(Err(source))) => Err(FlowsError::Refused {
                mac: crate::plan::mac_text(self.port.mac),
                source,
            }),
            Ok(Err(_)) => Err(late("the agent is ending".to_owned())),
            Err(_) => Err(late(match self.flows.problem() {
                Some(problem) => problem.to_string(),
                None => "the connection is open, but ovs-vswitchd does not answer".to_owned(),
            })),
        }
    }

    /// Requests the flows for another number: the switch may have assigned one that was not
    /// requested.
    pub fn move_to(&mut self, ofport: u16) {
        if self.ofport != ofport {
            self.release();
            self.ofport = ofport;
            self.installed = self.flows.install(ofport, &self.port, self.origin);
        }
    }

    fn release(&self) {
        lock(&self.flows.numbers).reserved.remove(&self.ofport);
        let _ = self.flows.commands.send(Command::Release(self.ofport));
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release();
    }
}

impl Default for Numbers {
    fn default() -> Self {
        // Numbers do not restart from the beginning: a packet in flight to a number used a moment
        // ago must not reach another pod.
        let random = RandomState::new().hash_one(std::process::id());
        let span = u64::from(NUMBERS.end - NUMBERS.start);
        Self {
            used: HashSet::new(),
            reserved: HashMap::new(),
            next: NUMBERS.start + (random % span) as u16,
        }
    }
}

impl Numbers {
    /// The next unused number. There are more numbers than a bridge has ports.
    fn reserve(&mut self, port: &Arc<SecuredPort>) -> u16 {
        for _ in NUMBERS {
            let number = self.next;
            self.next = match number + 1 {
                after if NUMBERS.contains(&after) => after,
                _ => NUMBERS.start,
            };
            if !self.used.contains(&number) && !self.reserved.contains_key(&number) {
                self.reserved.insert(number, Arc::clone(port));
                return number;
            }
        }
        NUMBERS.start
    }
}

fn lock(numbers: &Mutex<Numbers>) -> std::sync::MutexGuard<'_, Numbers> {
    numbers.lock().unwrap_or_else(PoisonError::into_inner)
}
