//! One node that `podwire node run` keeps, whose services have endpoints on hosts alone.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use podwire_tests::apiserver::ApiServer;
use podwire_tests::ovn::{Central, OvnNode};
use podwire_tests::{NodeRun, Place, agent_binary};
use serde_json::Value;

use crate::LIMIT;

/// An nft that keeps the scripts that it runs and its other command lines, and refuses scripts with
/// the words of a file.
const NFT: &str = r##"#!/bin/sh
case " $* " in
*" -f - "*) ;;
*)
    echo "$*" >>/run/nft/lists
    exec /usr/sbin/nft "$@"
    ;;
esac
script=$(mktemp /run/nft/given.XXXXXX)
cat >"$script"
if [ -s /run/nft/refused ] && grep -q -F -f /run/nft/refused "$script"; then
    echo "/dev/stdin:1:1-2: Error: Could not process rule: File exists" >&2
    exit 1
fi
case " $* " in
*" -c "*) ;;
*) cat "$script" >>/run/nft/scripts ;;
esac
exec /usr/sbin/nft "$@" <"$script"
"##;

/// A machine, and the outside.
pub(crate) fn machine() -> (Central, OvnNode) {
    let central = Central::start();
    let node = central.bare_node("node-a", 1);
    for (net, by) in [
        ("203.0.113.0/24", "172.31.0.2"),
        ("2001:db8:113::/64", "fd00:31::2"),
    ] {
        central
            .machine()
            .run("ip", ["route", "add", net, "via", by]);
    }
    (central, node)
}

pub(crate) struct Host<'n> {
    pub(crate) central: &'n Central,
    pub(crate) node: &'n OvnNode,
    pub(crate) server: ApiServer,
    pub(crate) run: NodeRun,
}

impl<'n> Host<'n> {
    /// Starts it with these objects, and waits until its services follow them.
    pub(crate) fn start((central, node): &'n (Central, OvnNode), objects: &[Value]) -> Self {
        Self::start_by((central, node), objects, Command::new(agent_binary()), "")
    }

    /// The same, with the start of the command line, and nft's refusal of what has these words.
    pub(crate) fn start_by(
        (central, node): (&'n Central, &'n OvnNode),
        objects: &[Value],
        mut command: Command,
        refused: &str,
    ) -> Self {
        let server = ApiServer::start_in(node.place());
        for object in objects {
            server.apply(object.clone());
        }
        server.apply(node.api_object());
        let directory = node.path("/run/nft");
        fs::create_dir(&directory).unwrap();
        let nft = directory.join("nft");
        fs::write(&nft, NFT).unwrap();
        fs::set_permissions(&nft, PermissionsExt::from_mode(0o755)).unwrap();
        fs::write(directory.join("refused"), refused).unwrap();
        let path = std::env::var("PATH").unwrap();
        command.env("PATH", format!("/run/nft:{path}"));
        command.args(node.host_arguments("run", Some(&server)));
        command.args(["--metrics-address", "127.0.0.1:9477"]);
        let run = NodeRun::launch_by(node, command);
        run.await_state("READY=1");
        run.await_log("services follow the cluster", 1);
        Self {
            central,
            node,
            server,
            run,
        }
    }

    /// Applies an object once the node has taken it up.
    pub(crate) fn apply_and_wait(&self, object: Value) {
        let count = self.run.count("services follow the cluster");
        self.server.apply(object);
        self.run.await_log("services follow the cluster", count + 1);
    }

    /// The scripts that nft has run since the last call.
    pub(crate) fn scripts(&self) -> String {
        self.kept("scripts")
    }

    /// How nft was asked for what there is since the last call.
    pub(crate) fn lists(&self) -> String {
        self.kept("lists")
    }

    fn kept(&self, name: &str) -> String {
        let file = self.node.path("/run/nft").join(name);
        let kept = fs::read_to_string(&file).unwrap();
        fs::write(file, "").unwrap();
        kept
    }

    pub(crate) fn place(&self) -> &Place {
        self.node.place()
    }

    pub(crate) fn outside(&self) -> &Place {
        self.central.machine().place()
    }

    pub(crate) fn end(self) {
        assert!(self.run.stop().success());
        Self::clean(self.node);
    }

    /// Kills the role first, as one in a pid namespace of its own can't be stopped from here.
    pub(crate) fn end_by_kill(self) {
        self.run.kill();
        Self::clean(self.node);
    }

    fn clean(node: &OvnNode) {
        node.podwire("node cleanup --wait")
            .success("podwire node cleanup");
        assert_eq!(node.run("nft", "list ruleset"), "");
        node.leftovers().assert_none();
    }
}

/// A server of one protocol.
pub(crate) enum Server {
    Tcp(TcpListener),
    Udp(UdpSocket),
}

impl Server {
    pub(crate) fn tcp(at: &Place, address: &str) -> Self {
        let address: SocketAddr = address.parse().unwrap();
        Self::Tcp(at.run(|| TcpListener::bind(address)).unwrap())
    }

    pub(crate) fn udp(at: &Place, address: &str) -> Self {
        Self::Udp(udp(at, address))
    }
}

/// A socket that waits for so long and no longer.
pub(crate) fn udp(at: &Place, address: &str) -> UdpSocket {
    let address: SocketAddr = address.parse().unwrap();
    let socket = at.run(|| UdpSocket::bind(address)).unwrap();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket
}

/// Which of the servers a new connection of this client, or its datagram, reaches.
pub(crate) fn reached(from: &Place, client: &str, to: &str, servers: &[Server; 2]) -> usize {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::os::fd::{AsFd as _, BorrowedFd};

    let to: SocketAddr = to.parse().unwrap();
    let fds: [BorrowedFd<'_>; 2] = servers.each_ref().map(|server| match server {
        Server::Tcp(listener) => listener.as_fd(),
        Server::Udp(socket) => socket.as_fd(),
    });
    let stream = match servers[0] {
        Server::Tcp(_) => Some(from.run(|| TcpStream::connect_timeout(&to, LIMIT)).unwrap()),
        Server::Udp(_) => {
            // A new one each time: it is a new connection for the kernel.
            udp(from, client).send_to(b"x", to).unwrap();
            None
        }
    };
    let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap();
    let end = fds.iter().position(|fd| fd.any() == Some(true));
    let end = end.expect("a server is reached");
    match &servers[end] {
        Server::Tcp(listener) => drop(listener.accept().unwrap()),
        Server::Udp(socket) => drop(socket.recv(&mut [0; 8]).unwrap()),
    }
    drop(stream);
    end
}
