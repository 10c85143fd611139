//! A virtual machine with a disk of its own: the machine's root directory, read-only, below what
//! was changed there. systemd boots it, its NIC is on a network of the test's, and its power can be
//! lost: the process that emulates it is killed. It has the kernel's datapath.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use crate::TestNode;
use crate::binaries::workspace;
use crate::failure::{Failure, OrFail, Step, tail};
use crate::node::{DAEMON_LIMIT, SCHEMA};
use crate::process::Daemon;

/// Longer than a boot in an emulated machine, and than each command in it, on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Where the kernel is: `make test-kernel-gateway` fetches it.
const KERNEL: &str = "target/kernel";

/// What the machine's shell says of itself.
const SAID: &str = "vm: ";

/// Debian's units that it may have: what else the machine has that runs the tests is none of this
/// one's.
const DEBIANS: [&str; 17] = [
    "ovsdb-server.service",
    "ovs-vswitchd.service",
    "openvswitch-switch.service",
    "systemd-journald.service",
    "systemd-journald.socket",
    "systemd-journald-dev-log.socket",
    "systemd-networkd.service",
    "systemd-networkd.socket",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service",
    "dbus.service",
    "dbus.socket",
    "network.target",
    "network-pre.target",
    "local-fs.target",
];
/// The targets that systemd itself asks for.
const TARGETS: [&str; 7] = [
    "sysinit", "basic", "shutdown", "umount", "final", "sockets", "default",
];

const UNITS: [(&str, &str); 2] = [
    (
        "vm-shell.service",
        "[Unit]\nDefaultDependencies=no\nAfter=openvswitch-switch.service vm-network.service \
         systemd-networkd.service dbus.socket\n[Service]\nExecStart=/bin/bash /etc/vm/shell\n\
         KillMode=process\n",
    ),
    // Open vSwitch 3.1.0 that is started within the first ten seconds starts no handler.
    (
        "ovs-vswitchd.service.d/uptime.conf",
        "[Service]\nExecStartPre=/bin/bash -c 'while read -r up _ </proc/uptime && \
         (($${up%%%%.*} < 11)); do sleep 1; done'\n",
    ),
];

/// Reads command lines, and executes them.
const SHELL: &str = r#"
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root
exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
# Until a program has stopped, or has ended.
until_stopped() {
    while IFS= read -r said; do
        echo "$said"
        [[ $said != "stopped at "* ]] || return 0
    done < <("$@" 2>&1; echo "ended with $?")
}
systemctl start ovs-vswitchd
echo "vm: up"
while IFS= read -r line; do
    eval "$line"
    echo "vm: $?"
done
"#;

/// A machine that can be booted: its disk, and the network that it is on.
#[derive(Debug)]
pub struct Vm {
    network: TestNode,
    /// The other end of its NIC.
    tap: &'static str,
}

/// The machine while it has power.
#[derive(Debug)]
pub struct Running {
    daemon: Daemon,
    shell: BufReader<UnixStream>,
}

impl Vm {
    /// A machine that was never booted, with these files, and these programs in /usr/bin. It starts
    /// Open vSwitch, and these units. Its NIC is the other end of this link of the network.
    #[track_caller]
    pub fn new(
        (network, tap): (TestNode, &'static str),
        starts: &[&str],
        files: &[(&str, &str)],
        programs: &[&Path],
    ) -> Self {
        let vm = Self { network, tap };
        vm.make_disk(starts, files, programs).or_fail();
        vm.network.run("ip", format!("tuntap add {tap} mode tap"));
        vm.network.run("ip", format!("link set {tap} up"));
        vm
    }

    /// Where the network is.
    pub fn network(&self) -> &TestNode {
        &self.network
    }

    fn make_disk(
        &self,
        starts: &[&str],
        files: &[(&str, &str)],
        programs: &[&Path],
    ) -> Result<(), Failure> {
        let root = self.network.path("/run/disk");
        let write = |path: &str, text: &str| {
            let path = root.join("new").join(path.trim_start_matches('/'));
            let directory = path.parent().unwrap_or(&path);
            let done = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
            done.step(|| format!("write {}", path.display()))
        };
        for name in DEBIANS {
            let path = Path::new("/lib/systemd/system").join(name);
            let text = fs::read_to_string(&path).step(|| format!("read {}", path.display()))?;
            write(&format!("/etc/vm/units/{name}"), &text)?;
        }
        for name in TARGETS {
            let text = "[Unit]\nDefaultDependencies=no\n";
            write(&format!("/etc/vm/units/{name}.target"), text)?;
        }
        for (name, text) in UNITS {
            write(&format!("/etc/vm/units/{name}"), text)?;
        }
        let wanted = starts.join(" ");
        let target = format!(
            "[Unit]\nDefaultDependencies=no\nWants=systemd-journald.service vm-shell.service \
             openvswitch-switch.service ovs-vswitchd.service {wanted}\n"
        );
        write("/etc/vm/units/vm.target", &target)?;
        write("/etc/vm/shell", SHELL)?;
        write("/etc/machine-id", "0123456789abcdef0123456789abcdef\n")?;
        // Not what the host has.
        write("/etc/openvswitch/system-id.conf", "a-chassis\n")?;
        write("/etc/default/openvswitch-switch", "")?;
        write("/etc/fstab", "")?;
        for (path, text) in files {
            write(path, text)?;
        }
        for program in programs {
            let name = program.file_name().unwrap_or_default();
            let directory = root.join("new/usr/bin");
            fs::create_dir_all(&directory).step(|| "make the disk's /usr/bin")?;
            fs::copy(program, directory.join(name)).step(|| "copy a program to the disk")?;
        }
        let database = ["create", "/run/disk/new/etc/openvswitch/conf.db"];
        let database = [&database[..], &[SCHEMA]].concat();
        self.network.run("ovsdb-tool", &database[..]);
        self.network.run("chmod", "755 /run/disk /run/disk/new");
        let make = "-q -F -m 0 -E root_owner=0:0 -d /run/disk /run/disk.raw 512M";
        self.network.run("mkfs.ext4", make);
        self.network.run("rm", "-r /run/disk");
        Ok(())
    }

    /// Boots it, and waits until systemd has started all.
    #[track_caller]
    pub fn boot(&self) -> Running {
        self.start().or_fail()
    }

    fn start(&self) -> Result<Running, Failure> {
        let kernel = workspace().join(KERNEL);
        let socket = self.network.path("/run/shell.sock");
        // That of a machine before.
        let _ = fs::remove_file(&socket);
        let listener = UnixListener::bind(&socket).step(|| "listen to the machine's shell")?;
        let words = format!(
            "console=ttyS0 panic=-1 mitigations=off no5lvl no_timer_check audit=0 \
             net.ifnames=0 \
             podwire.run={} podwire.kernel={} podwire.disk=/dev/vda systemd.unit=vm.target \
             systemd.journald.forward_to_console=1 systemd.show_status=no",
            workspace().join(".ci/vm/systemd").display(),
            kernel.display()
        );
        let mut command = Command::new("qemu-system-x86_64");
        // As .ci/vm/start does.
        let line = "-machine q35 -accel tcg -cpu max -smp 1 -m 1536 -nodefaults -display none \
             -no-reboot -serial stdio -serial unix:/run/shell.sock \
             -drive file=/run/disk.raw,format=raw,if=virtio,cache=writethrough \
             -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";
        command.args(line.split_whitespace());
        let tap = format!("tap,id=nic,ifname={},script=no,downscript=no", self.tap);
        command.args(["-netdev", &tap]);
        command.args(["-device", "virtio-net-pci,netdev=nic,mac=52:54:00:00:00:11"]);
        command.arg("-kernel").arg(kernel.join("vmlinuz"));
        command.arg("-initrd").arg(kernel.join("initramfs"));
        command.args(["-append", &words]);
        let daemon = self.network.start_bare(&command, "console")?;
        let shell = accepted(&listener, &daemon).step(|| "wait for the machine's shell")?;
        let limited = shell.set_read_timeout(Some(LIMIT));
        limited.step(|| "limit how long to wait for the machine's shell")?;
        let mut running = Running {
            daemon,
            shell: BufReader::new(shell),
        };
        running.read()?;
        Ok(running)
    }
}

/// The emulator's connection, which it makes before it starts the machine.
fn accepted(listener: &UnixListener, daemon: &Daemon) -> io::Result<UnixStream> {
    listener.set_nonblocking(true)?;
    let mut fds = [listener.as_fd(), daemon.end()].map(|it| PollFd::new(it, PollFlags::POLLIN));
    poll(
        &mut fds,
        PollTimeout::try_from(DAEMON_LIMIT).unwrap_or(PollTimeout::MAX),
    )?;
    listener.accept().map(|(shell, _)| shell)
}

impl Running {
    /// Executes a command line in the machine, which must succeed; gives what it says.
    #[track_caller]
    pub fn run(&mut self, line: &str) -> String {
        let (code, said) = self.finish(line);
        assert_eq!(code, "0", "{line}: {said}");
        said
    }

    /// Executes a command line in the machine; gives its exit code and what it says.
    #[track_caller]
    pub fn finish(&mut self, line: &str) -> (String, String) {
        let sent = writeln!(self.shell.get_mut(), "{line}");
        sent.step(|| format!("send `{line}` to the machine"))
            .and_then(|()| self.read())
            .or_fail()
    }

    /// What it says until it is done, and how it ended.
    fn read(&mut self) -> Result<(String, String), Failure> {
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let read = self.shell.read_line(&mut line);
            let console = || fs::read_to_string(self.daemon.log()).unwrap_or_default();
            let step = || format!("read from the machine: {said}\n{}", tail(&console()));
            if read.step(step)? == 0 {
                let gone = io::Error::other("the machine is gone");
                return Err(gone).step(step);
            }
            let line = line.trim_end_matches(['\r', '\n']);
            match line.strip_prefix(SAID) {
                Some(code) => return Ok((code.to_owned(), said)),
                None => said.extend([line, "\n"]),
            }
        }
    }

    /// Takes its power: what is not on the disk by now is lost.
    #[track_caller]
    pub fn lose_power(self) {
        self.daemon
            .end_by(Signal::SIGKILL, DAEMON_LIMIT)
            .map(drop)
            .or_fail();
    }
}
