//! What a locked-down process can and can't do, each shown by a process that locks itself down as a
//! daemon and tries.
//!
//! A harness of its own: the usual one has threads, and the lock-down refuses to be done beside
//! any. It knows the few arguments by which cargo and nextest list and choose tests.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode, ExitStatus};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns, unshare};
use nix::sys::resource::{Resource, setrlimit};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::sys::stat::Mode;
use podwire_daemon::lockdown::{Calls, Capability, Privileges, Seccomp};

/// Says to this program that it is the process that tries, and what.
const ATTEMPT: &str = "PODWIRE_LOCKDOWN_ATTEMPT";

/// What is tried; the answer is the error number.
type Attempt = fn() -> Result<(), Errno>;

#[derive(Clone, Copy)]
enum Outcome {
    Works,
    Fails(Errno),
    EndsTheProcess,
}

use Outcome::{EndsTheProcess, Fails, Works};

/// A daemon's privileges, as its crate has them.
type Daemon = fn() -> Privileges;

fn agent() -> Privileges {
    Privileges {
        capabilities: vec![
            Capability::CAP_NET_ADMIN,
            Capability::CAP_SYS_ADMIN,
            Capability::CAP_NET_RAW,
        ],
        calls: Calls::Namespaces,
    }
}

fn node_role() -> Privileges {
    Privileges {
        capabilities: vec![Capability::CAP_NET_ADMIN],
        calls: Calls::Programs,
    }
}

fn controller() -> Privileges {
    Privileges {
        capabilities: Vec::new(),
        calls: Calls::Common,
    }
}

const ALL: [(&str, Daemon); 3] = [
    ("agent", agent),
    ("node_role", node_role),
    ("controller", controller),
];

/// What is tried as each daemon, and the outcome for agent, node role and controller.
const TESTS: &[(&str, Attempt, [Outcome; 3])] = &[
    ("starting_a_thread", start_a_thread, [Works, Works, Works]),
    ("asking_for_a_link", ask_the_kernel, [Works, Works, Works]),
    (
        "starting_a_program",
        start_a_program,
        [EndsTheProcess, Works, EndsTheProcess],
    ),
    (
        "what_a_started_program_has",
        have_a_program_tell_its_privileges,
        [EndsTheProcess, Works, EndsTheProcess],
    ),
    (
        "what_a_started_program_may_not",
        have_a_program_enter_a_namespace,
        [EndsTheProcess, Works, EndsTheProcess],
    ),
    (
        "making_a_namespace",
        make_a_namespace,
        [EndsTheProcess, EndsTheProcess, EndsTheProcess],
    ),
    (
        "becoming_another_user",
        become_nobody,
        [EndsTheProcess, EndsTheProcess, EndsTheProcess],
    ),
    (
        "entering_a_network_namespace",
        enter_a_network_namespace,
        [Works, Fails(Errno::ENOSYS), Fails(Errno::ENOSYS)],
    ),
    (
        "entering_a_mount_namespace",
        enter_a_mount_namespace,
        [
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
        ],
    ),
    (
        "making_a_device",
        make_a_fifo,
        [
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
        ],
    ),
    (
        "giving_a_file_away",
        give_a_file_away,
        [
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
        ],
    ),
    (
        "opening_a_packet_socket",
        open_a_packet_socket,
        [Works, Fails(Errno::ENOSYS), Fails(Errno::ENOSYS)],
    ),
    (
        "opening_a_socket_of_another_family",
        open_a_vsock,
        [
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
            Fails(Errno::ENOSYS),
        ],
    ),
    (
        "reading_another_users_file",
        read_anothers_file,
        [
            Fails(Errno::EACCES),
            Fails(Errno::EACCES),
            Fails(Errno::EACCES),
        ],
    ),
];

fn start_a_thread() -> Result<(), Errno> {
    std::thread::spawn(|| {}).join().map_err(|_| Errno::EIO)
}

fn ask_the_kernel() -> Result<(), Errno> {
    nix::net::if_::if_nametoindex("lo").map(drop)
}

fn start_a_program() -> Result<(), Errno> {
    Command::new("/bin/true").status().map(drop).map_err(errno)
}

/// A program of root's has the daemon's capabilities and no other, and its filters.
fn have_a_program_tell_its_privileges() -> Result<(), Errno> {
    let status = fs::read_to_string("/proc/self/status").map_err(errno)?;
    let program = Command::new("cat").arg("/proc/self/status").output();
    let program = String::from_utf8(program.map_err(errno)?.stdout).unwrap();
    for field in ["CapEff:", "CapPrm:", "CapBnd:", "NoNewPrivs:", "Seccomp:"] {
        let of = |status: &str| {
            let line = status.lines().find(|line| line.starts_with(field));
            line.map(str::to_owned)
        };
        if of(&program) != of(&status) {
            return Err(Errno::EPERM);
        }
    }
    Ok(())
}

fn have_a_program_enter_a_namespace() -> Result<(), Errno> {
    let mut program = Command::new("unshare");
    let status = program.args(["--mount", "true"]).status().map_err(errno)?;
    match status.signal() {
        Some(signal) if signal == Signal::SIGSYS as i32 => Ok(()),
        _ => Err(Errno::EPERM),
    }
}

fn make_a_namespace() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWNS)
}

fn become_nobody() -> Result<(), Errno> {
    nix::unistd::setuid(65534.into())
}

fn enter_a_network_namespace() -> Result<(), Errno> {
    let own = File::open("/proc/self/ns/net").map_err(errno)?;
    setns(own, CloneFlags::CLONE_NEWNET)
}

fn enter_a_mount_namespace() -> Result<(), Errno> {
    let own = File::open("/proc/self/ns/mnt").map_err(errno)?;
    setns(own, CloneFlags::CLONE_NEWNS)
}

fn make_a_fifo() -> Result<(), Errno> {
    let path = std::env::temp_dir().join(format!("podwire-fifo-{}", std::process::id()));
    nix::unistd::mkfifo(&path, Mode::S_IRUSR)
}

fn give_a_file_away() -> Result<(), Errno> {
    chown(anothers_file(), Some(0), None).map_err(errno)
}

fn open_a_packet_socket() -> Result<(), Errno> {
    open(AddressFamily::Packet, SockType::Raw)
}

fn open_a_vsock() -> Result<(), Errno> {
    open(AddressFamily::Vsock, SockType::Stream)
}

fn open(family: AddressFamily, kind: SockType) -> Result<(), Errno> {
    socket(family, kind, SockFlag::empty(), None).map(drop)
}

fn read_anothers_file() -> Result<(), Errno> {
    File::open(anothers_file()).map(drop).map_err(errno)
}

/// The file of another user that the testing process made and handed over.
fn anothers_file() -> String {
    std::env::var("PODWIRE_LOCKDOWN_FILE").unwrap()
}

fn errno(error: io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(ATTEMPT) {
        return attempt(&name);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let named: Vec<&String> = arguments
        .iter()
        .enumerate()
        .filter(|(at, argument)| {
            !argument.starts_with('-')
                && (*at == 0
                    || !arguments[at - 1].starts_with("--skip") && arguments[at - 1] != "--format")
        })
        .map(|(_, argument)| argument)
        .collect();
    let all = TESTS.iter().flat_map(|(name, _, outcomes)| {
        let daemons = ALL.iter().zip(outcomes);
        daemons.map(move |((daemon, _), outcome)| (format!("{name}::{daemon}"), *outcome))
    });
    let chosen = all.filter(|(name, _)| {
        !has("--ignored")
            && (named.is_empty()
                || named.iter().any(|wanted| {
                    if has("--exact") {
                        *wanted == name
                    } else {
                        name.contains(wanted.as_str())
                    }
                }))
    });
    let mut failed = 0;
    for (name, expected) in chosen {
        if has("--list") {
            println!("{name}: test");
            continue;
        }
        let said = match holds(&name, expected) {
            Ok(()) => "ok".to_owned(),
            Err(seen) => {
                failed += 1;
                format!("FAILED: {seen}")
            }
        };
        println!("test {name} ... {said}");
    }
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Has a process of its own try it.
fn holds(name: &str, expected: Outcome) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
    chown(file.path(), Some(4242), Some(4242)).unwrap();
    let status = Command::new(std::env::current_exe().unwrap())
        .env(ATTEMPT, name)
        .env("PODWIRE_LOCKDOWN_FILE", file.path())
        .status()
        .unwrap();
    let right = match expected {
        Works => status.success(),
        Fails(errno) => status.code() == Some(errno as i32),
        EndsTheProcess => status.signal() == Some(Signal::SIGSYS as i32),
    };
    if right { Ok(()) } else { Err(seen(status)) }
}

fn seen(status: ExitStatus) -> String {
    match status.code() {
        Some(0) => "it worked".to_owned(),
        Some(code) => format!("it failed with {}", Errno::from_raw(code)),
        None => status.to_string(),
    }
}

/// The trying process. Its exit code is the error number.
fn attempt(name: &str) -> ExitCode {
    // A process that the filter ends leaves no core behind.
    setrlimit(Resource::RLIMIT_CORE, 0, 0).unwrap();
    let (name, daemon) = name.split_once("::").unwrap();
    let (_, attempt, _) = TESTS.iter().find(|(test, ..)| *test == name).unwrap();
    let (_, privileges) = ALL.iter().find(|(it, _)| *it == daemon).unwrap();
    privileges().keep(Seccomp::Enforce).unwrap();
    match attempt() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => ExitCode::from(u8::try_from(errno as i32).unwrap_or(u8::MAX)),
    }
}
