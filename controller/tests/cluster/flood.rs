//! Isolated pods under a flood from a pod of their own node and one of another: nothing comes
//! through while they start, in whatever order the objects come, and while anything restarts.

use std::collections::BTreeMap;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::{self, Scope};
use std::time::Duration;

use nix::sys::signal::Signal;
use podwire_tests::Pod;
use podwire_tests::apiserver::Request;
use serde_json::json;
use tokio::task::block_in_place;

use crate::fixture::Running;
use crate::packets::Network;
use crate::policies::{TESTS, labelled, policy};

/// Each sends by so many connections in turn.
const SOCKETS: usize = 16;
/// How many pods start at the same time.
const AT_ONCE: usize = 6;
const LIMIT: Duration = Duration::from_secs(60);

/// What is sent to addresses, whether anybody has them or not, until it ends.
struct Flood<'n> {
    from: [&'n Pod<'n>; 2],
    network: &'n Network,
    state: Mutex<State>,
    sent: Condvar,
}

#[derive(Default)]
struct State {
    targets: BTreeMap<String, IpAddr>,
    /// By sender: how often it has sent to all targets.
    rounds: [usize; 2],
    has_ended: bool,
}

/// Ends the flood, also when a test fails.
struct Ending<'f, 'n>(&'f Flood<'n>);

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().has_ended = true;
    }
}

impl<'n> Flood<'n> {
    fn of(network: &'n Network, from: [&'n Pod<'n>; 2]) -> Self {
        Self {
            from,
            network,
            state: Mutex::default(),
            sent: Condvar::new(),
        }
    }

    fn start<'s>(&'s self, scope: &'s Scope<'s, '_>) -> Ending<'s, 'n> {
        for (sender, pod) in self.from.into_iter().enumerate() {
            let bind = || UdpSocket::bind("0.0.0.0:0").unwrap();
            let sockets = pod.place().run(|| [(); SOCKETS].map(|()| bind()));
            scope.spawn(move || {
                for socket in sockets.iter().cycle() {
                    let targets = {
                        let state = self.state.lock().unwrap();
                        if state.has_ended {
                            return;
                        }
                        state.targets.clone()
                    };
                    for address in targets.values() {
                        // An address that nobody has yet may be refused.
                        let _ = socket.send_to(b"flood", (*address, 9));
                    }
                    self.state.lock().unwrap().rounds[sender] += 1;
                    self.sent.notify_all();
                    thread::sleep(Duration::from_micros(500));
                }
            });
        }
        Ending(self)
    }

    /// Adds a pod that is yet to be wired.
    fn aim(&self, name: &str, address: IpAddr, mac: &str) {
        // Asked before it is wired, nobody would answer for a second.
        let dev = self.network.primary.map_or("eth0", |_| "ovn-udn1");
        let neighbour = format!("neigh replace {address} lladdr {mac} dev {dev} nud permanent");
        self.from[0].run("ip", neighbour);
        let mut state = self.state.lock().unwrap();
        state.targets.insert(name.to_owned(), address);
    }

    fn spare(&self, name: &str) {
        self.state.lock().unwrap().targets.remove(name);
    }

    /// Waits until both have sent by each of their connections twice more.
    fn pass(&self) {
        let state = self.state.lock().unwrap();
        let goal = state.rounds.map(|rounds| rounds + 2 * SOCKETS);
        let behind = |state: &mut State| (0..2).any(|it| state.rounds[it] < goal[it]);
        let waited = self.sent.wait_timeout_while(state, LIMIT, behind);
        assert!(!waited.unwrap().1.timed_out(), "the flood stands still");
    }

    /// Waits until an open pod receives more than it had.
    fn await_arrival(&self, pod: &Pod<'_>) {
        let before = received(pod);
        let state = self.state.lock().unwrap();
        let waits = |_: &mut State| received(pod) == before;
        let waited = self.sent.wait_timeout_while(state, LIMIT, waits);
        assert!(!waited.unwrap().1.timed_out(), "the flood does not arrive");
    }

    /// Starts a pod under the flood.
    fn pod(&self, name: &str, app: &str) -> Pod<'n> {
        let (pod, address) = self.network.announced(0, name, app);
        self.aim(name, address, &mac(address));
        pod.add().success();
        pod
    }
}

/// As the controller gives it to a pod.
fn mac(address: IpAddr) -> String {
    let IpAddr::V4(address) = address else {
        panic!("{address}");
    };
    let [a, b, c, d] = address.octets();
    format!("0a:58:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
}

/// The number of IPv4 packets that a pod has received, by any of its links.
pub(crate) fn received(pod: &Pod<'_>) -> u64 {
    let snmp = pod
        .place()
        .run(|| std::fs::read_to_string("/proc/thread-self/net/snmp"));
    let snmp = snmp.unwrap();
    let counts = snmp
        .lines()
        .filter(|line| line.starts_with("Ip:"))
        .nth(1)
        .unwrap();
    counts.split_whitespace().nth(3).unwrap().parse().unwrap()
}

/// How often a kind of objects was asked for.
fn asked(requests: &[Request], kind: &str) -> usize {
    let of_kind = requests.iter().filter(|it| it.path.ends_with(kind));
    of_kind.count()
}

/// Two policies that let nobody of this cluster in: one without rules, one for a namespace that
/// there is not.
pub(crate) fn close(network: &Network) {
    let server = &network.server;
    server.apply(policy(
        TESTS,
        "deny",
        json!({ "podSelector": labelled("closed-0") }),
    ));
    let others = json!({ "namespaceSelector": { "matchLabels": { "team": "none" } } });
    server.apply(policy(
        TESTS,
        "others",
        json!({ "podSelector": labelled("closed-1"), "ingress": [{ "from": [others] }] }),
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_a_policy_isolates_receives_nothing_from_its_first_packet_on() {
    let (network, controller) = Network::start(&[]);
    start_pods(&network, close, starts());
    controller.stop().await.unwrap();
}

/// How many pods the tests start: `make test-policy-starts` has more of them.
pub(crate) fn starts() -> usize {
    std::env::var("POLICY_STARTS").map_or(200, |count| count.parse().unwrap())
}

/// Many pods of `closed-0` and `closed-1`, for which nothing is to pass once they are closed.
pub(crate) fn start_pods(network: &Network, close: fn(&Network), starts: usize) {
    let agents = network.start_agents();
    let (near, _) = network.labelled_pod(0, "near", "client");
    let (far, _) = network.labelled_pod(1, "far", "client");
    close(network);
    let flood = Flood::of(network, [&near, &far]);
    let next = AtomicUsize::new(0);
    block_in_place(|| {
        thread::scope(|scope| {
            let _ending = flood.start(scope);
            let workers = [(); AT_ONCE].map(|()| {
                scope.spawn(|| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= starts {
                            return;
                        }
                        // One of fifty is open, which shows that the flood arrives.
                        let app = match number % 50 {
                            0 => "open".to_owned(),
                            _ => format!("closed-{}", number % 2),
                        };
                        let name = format!("pod-{number}");
                        let pod = flood.pod(&name, &app);
                        match number % 50 {
                            0 => flood.await_arrival(&pod),
                            _ => {
                                flood.pass();
                                assert_eq!(received(&pod), 0, "{app} pod {number}");
                            }
                        }
                        flood.spare(&name);
                        pod.del().success();
                        network.server.delete(&pod.namespace, &pod.name);
                    }
                })
            });
            for worker in workers {
                worker.join().unwrap();
            }
        })
    });
    drop(agents);
}

/// The identity of the first that leads.
pub(crate) const FIRST: [&str; 2] = ["--identity", "first"];

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_restarts_and_no_order_of_objects_opens_what_is_closed() {
    let (network, controller) = Network::start(&FIRST);
    let kinds = ["networkpolicies", "namespaces", "pods", "nodes"];
    let last = restart_everything(&network, controller, close, &kinds).await;
    last.stop().await.unwrap();
}

/// Pods of `closed-0` and `closed-1`, while everything restarts; then a new one for each kind of
/// objects that is listed as the last one. Returns who leads at the end.
pub(crate) async fn restart_everything(
    network: &Network,
    mut controller: Running,
    close: fn(&Network),
    kinds: &[&'static str],
) -> Running {
    let agents = network.start_agents();
    let (near, _) = network.labelled_pod(0, "near", "client");
    let (far, _) = network.labelled_pod(1, "far", "client");
    close(network);
    controller.idle().await;
    let flood = Flood::of(network, [&near, &far]);
    let runtime = tokio::runtime::Handle::current();
    let last = block_in_place(|| {
        thread::scope(|scope| {
            let _ending = flood.start(scope);
            let open = flood.pod("open", "open");
            let mut closed = vec![
                flood.pod("closed-0", "closed-0"),
                flood.pod("closed-1", "closed-1"),
            ];
            let check = |closed: &[Pod<'_>], what: &str| {
                network.central.sync();
                flood.await_arrival(&open);
                flood.pass();
                let counts: Vec<u64> = closed.iter().map(received).collect();
                assert!(counts.iter().all(|count| *count == 0), "{what}: {counts:?}");
            };
            check(&closed, "at first");
            let node = &network.nodes[0];
            for signal in [Signal::SIGKILL, Signal::SIGTERM] {
                node.end_controller(signal);
                flood.pass();
                node.start_controller();
                network.central.await_chassis(&node.name);
                check(&closed, "ovn-controller has started again");
            }
            network.central.end_northd();
            flood.pass();
            network.central.start_northd();
            check(&closed, "ovn-northd has started again");

            // Another leads.
            let start = |flags: &[&str]| {
                let _context = runtime.enter();
                Running::start(&network.central, &network.server, flags)
            };
            let mut second = start(&["--identity", "second"]);
            runtime.block_on(controller.stop()).unwrap();
            runtime.block_on(second.idle());
            check(&closed, "another leads");

            // A pod that nobody was there to see, and each kind listed as the last.
            for &kind in kinds {
                runtime.block_on(second.stop()).unwrap();
                flood.pass();
                network.server.withhold(Some(kind));
                let before = asked(&network.server.requests(), kind);
                second = start(&[]);
                let is_asked = |requests: &[Request]| asked(requests, kind) > before;
                network.server.await_requests(kind, is_asked);
                let name = format!("closed-1-after-{kind}");
                let flood = &flood;
                let starting = scope.spawn(move || flood.pod(&name, "closed-1"));
                flood.pass();
                network.server.withhold(None);
                closed.push(starting.join().unwrap());
                runtime.block_on(second.idle());
                check(&closed, kind);
            }
            second
        })
    });
    drop(agents);
    last
}
