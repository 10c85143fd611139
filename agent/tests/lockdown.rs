//! What a locked-down process can and can't do, each shown by a process that locks itself down and
//! tries.
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
use podwire::config::Seccomp;
use podwire::lockdown::{self, Needs};

/// Says to this program that it is the process that tries, and what.
const ATTEMPT: &str = "PODWIRE_LOCKDOWN_ATTEMPT";

/// What is tried; the answer is the error number.
type Attempt = fn() -> Result<(), Errno>;

enum Outcome {
    Works,
    Fails(Errno),
    EndsTheProcess,
}

use Outcome::{EndsTheProcess, Fails, Works};

const TESTS: &[(&str, Attempt, Outcome)] = &[
    ("a_thread_can_be_started", start_a_thread, Works),
    ("a_link_can_be_asked_for", ask_the_kernel, Works),
    (
        "starting_a_program_ends_the_process",
        start_a_program,
        EndsTheProcess,
    ),
    (
        "entering_a_new_namespace_ends_the_process",
        make_a_namespace,
        EndsTheProcess,
    ),
    (
        "becoming_another_user_ends_the_process",
        become_nobody,
        EndsTheProcess,
    ),
    (
        "another_mount_namespace_is_closed",
        enter_a_mount_namespace,
        Fails(Errno::ENOSYS),
    ),
    (
        "a_device_can_not_be_made",
        make_a_fifo,
        Fails(Errno::ENOSYS),
    ),
    (
        "a_file_can_not_be_given_away",
        give_a_file_away,
        Fails(Errno::ENOSYS),
    ),
    (
        "a_socket_of_another_family_is_refused",
        open_a_vsock,
        Fails(Errno::ENOSYS),
    ),
    (
        "another_users_file_stays_closed",
        read_anothers_file,
        Fails(Errno::EACCES),
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

fn make_a_namespace() -> Result<(), Errno> {
    unshare(CloneFlags::CLONE_NEWNS)
}

fn become_nobody() -> Result<(), Errno> {
    nix::unistd::setuid(65534.into())
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

fn open_a_vsock() -> Result<(), Errno> {
    socket(
        AddressFamily::Vsock,
        SockType::Stream,
        SockFlag::empty(),
        None,
    )
    .map(drop)
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
    let chosen = TESTS.iter().filter(|(name, ..)| {
        !has("--ignored")
            && (named.is_empty()
                || named.iter().any(|wanted| {
                    if has("--exact") {
                        wanted == name
                    } else {
                        name.contains(wanted.as_str())
                    }
                }))
    });
    let mut failed = 0;
    for (name, _, expected) in chosen {
        if has("--list") {
            println!("{name}: test");
            continue;
        }
        let said = match holds(name, expected) {
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
fn holds(name: &str, expected: &Outcome) -> Result<(), String> {
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
        Fails(errno) => status.code() == Some(*errno as i32),
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
    let (_, attempt, _) = TESTS.iter().find(|(test, ..)| *test == name).unwrap();
    lockdown::apply(&Needs::default(), Seccomp::Enforce).unwrap();
    match attempt() {
        Ok(()) => ExitCode::SUCCESS,
        Err(errno) => ExitCode::from(u8::try_from(errno as i32).unwrap_or(u8::MAX)),
    }
}
