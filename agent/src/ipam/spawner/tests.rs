//! Every test has a spawner process of its own: this very test binary, told to run one test.

use std::io::Write;
use std::os::fd::AsFd;
use std::process::Stdio;
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::fixture::{
    AS_SPAWNER, Fifo, LONG, SHELL, children_of, directories, shell, soon, spawner, spawner_command,
    start,
};
use super::wire::{self, Request};
use super::*;

#[test]
fn the_process_behind_these_tests() {
    match std::env::var(AS_SPAWNER).as_deref() {
        Ok("supervisor") => supervise(spawner_command("worker")).unwrap(),
        Ok(_) => main_loop(&directories()).unwrap(),
        Err(_) => {}
    }
}

#[tokio::test]
async fn a_program_gets_its_input_and_only_the_environment_given() {
    let mut exec = shell("cat; echo oops >&2; env | grep -v -e ^PWD= -e ^SHLVL= -e ^_= | sort");
    exec.stdin = "fed ".to_owned();
    // The others would have it run or read what they name.
    for name in ["A", "PATH", "LD_PRELOAD", "GLIBC_TUNABLES", "BASH_ENV"] {
        exec.env.push((name.to_owned(), "b=c".to_owned()));
    }
    let script = exec.env[0].1.clone();
    let output = spawner().run(exec).await.unwrap();
    assert_eq!(output.exit, Exit::Status(0));
    assert_eq!(output.stderr, "oops\n");
    let expected = format!("fed A=b=c\nCNI_ARGS={script}\nPATH={PATH}\n");
    assert_eq!(output.stdout, expected);
}

#[tokio::test]
async fn what_is_in_no_plugin_directory_is_not_run() {
    let spawner = spawner();
    let around = format!("{SHELL}/../../testdata/shell-ipam");
    for path in ["/bin/true", "shell-ipam", "../../bin/true", "", &around] {
        let exec = Exec {
            path: path.to_owned(),
            ..shell("")
        };
        let error = spawner.run(exec).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("{path} could not be started: it is in no plugin directory")
        );
    }
}

#[tokio::test]
async fn the_exit_status_and_the_signal_are_told() {
    let spawner = spawner();
    assert_eq!(
        spawner.run(shell("exit 7")).await.unwrap().exit,
        Exit::Status(7)
    );
    assert_eq!(
        spawner.run(shell("kill -TERM $$")).await.unwrap().exit,
        Exit::Signal(15)
    );
}

#[tokio::test]
async fn programs_run_side_by_side() {
    let (spawner, fifo) = (spawner(), Fifo::new());
    // Either end of the pipe opens only once the other does.
    let path = fifo.path().display();
    let reader = spawner.run(shell(&format!("read word <{path}; echo $word")));
    let writer = spawner.run(shell(&format!("echo met >{path}")));
    let (reader, writer) = tokio::join!(reader, writer);
    assert_eq!(reader.unwrap().stdout, "met\n");
    writer.unwrap();
}

#[tokio::test]
async fn each_of_many_gets_its_own_reply_and_none_stays_a_zombie() {
    let process = start();
    let pid = process.id();
    let spawner = process.connect().unwrap();
    let runs: Vec<_> = (0..64)
        .map(|n| {
            let spawner = spawner.clone();
            tokio::spawn(async move {
                spawner
                    .run(shell(&format!("echo {n}")))
                    .await
                    .unwrap()
                    .stdout
            })
        })
        .collect();
    for (n, run) in runs.into_iter().enumerate() {
        assert_eq!(run.await.unwrap(), format!("{n}\n"));
    }
    assert_eq!(children_of(worker_of(pid)), "");
}

#[tokio::test]
async fn a_megabyte_goes_through_a_program_that_reads_and_writes_at_once() {
    let stdin = "0123456789abcdef".repeat(OUTPUT_MAX / 16);
    let exec = Exec {
        stdin: stdin.clone(),
        ..shell("tee /dev/stderr")
    };
    let output = spawner().run(exec).await.unwrap();
    assert!(output.stdout == stdin && output.stderr == stdin);
}

#[tokio::test]
async fn a_program_need_not_read_its_input() {
    let exec = Exec {
        stdin: "x".repeat(OUTPUT_MAX),
        ..shell("exec 0<&-; echo deaf")
    };
    assert_eq!(spawner().run(exec).await.unwrap().stdout, "deaf\n");
}

#[tokio::test]
async fn output_that_is_not_utf8_is_replaced() {
    let output = spawner().run(shell(r"printf 'a\377b'")).await.unwrap();
    assert_eq!(output.stdout, "a\u{fffd}b");
}

#[tokio::test]
async fn a_program_that_writes_too_much_is_killed() {
    let spawner = spawner();
    let scripts = [
        ("exec cat /dev/zero", "output"),
        ("exec cat /dev/zero >&2", "error"),
        // One that does not end of a pipe that nobody reads.
        ("trap '' PIPE; cat /dev/zero; sleep 100", "output"),
    ];
    for (script, stream) in scripts {
        let error = spawner.run(shell(script)).await.unwrap_err();
        let expected = SpawnError::TooMuchOutput {
            path: SHELL.to_owned(),
            stream: stream.to_owned(),
        };
        assert_eq!(error, expected);
    }
    let error = spawner
        .run(shell(&format!("head -c {} /dev/zero", OUTPUT_MAX + 1)))
        .await
        .unwrap_err();
    assert!(matches!(error, SpawnError::TooMuchOutput { .. }), "{error}");
}

#[tokio::test]
async fn a_program_that_takes_too_long_is_killed_with_its_children() {
    let fifo = Fifo::new();
    let (_, ended) = fifo.read();
    let exec = fifo.endless_writers();
    let script = format!("echo stuck here >&2; {}", exec.env[0].1);
    let timeout = Duration::from_millis(300);
    let exec = Exec {
        timeout,
        ..shell(&script)
    };
    let error = spawner().run(exec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "{SHELL} did not end within 300 ms and was killed; \
             its standard error ends with \"stuck here\""
        )
    );
    soon(ended).await;
}

#[tokio::test]
async fn a_killed_program_does_not_stay_a_zombie() {
    let process = start();
    let pid = process.id();
    let spawner = process.connect().unwrap();
    let timeout = Duration::from_millis(50);
    let error = spawner
        .run(Exec {
            timeout,
            ..shell("exec sleep 100")
        })
        .await
        .unwrap_err();
    assert!(matches!(error, SpawnError::Timeout { .. }), "{error}");
    assert_eq!(children_of(worker_of(pid)), "");
}

#[tokio::test]
async fn a_grandchild_that_keeps_standard_output_open_delays_nothing() {
    let (spawner, fifo) = (spawner(), Fifo::new());
    let path = fifo.path().display();
    let script = format!("cat {path} & echo allocated; echo noted >&2");
    let output = spawner.run(shell(&script)).await.unwrap();
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str()),
        ("allocated\n", "noted\n")
    );
    // It was left alone, and ends when its input does.
    let path = fifo.path().to_owned();
    spawn_blocking(|| std::fs::File::options().write(true).open(path))
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_caller_that_goes_away_ends_its_program() {
    let (spawner, fifo) = (spawner(), Fifo::new());
    let (begun, ended) = fifo.read();
    let exec = fifo.endless_writers();
    let run = tokio::spawn({
        let spawner = spawner.clone();
        async move { spawner.run(exec).await }
    });
    soon(begun).await;
    run.abort();
    soon(ended).await;
    assert_eq!(
        spawner
            .run(shell("echo still serving"))
            .await
            .unwrap()
            .stdout,
        "still serving\n"
    );
}

#[tokio::test]
async fn a_program_that_cannot_be_started_is_an_error_with_the_systems_words() {
    let spawner = spawner();
    let not_executable = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ipam/testdata/README.md");
    for (path, errno, words) in [
        ("/usr/lib/cni/nonexistent", 2, "No such file"),
        (not_executable, 13, "Permission denied"),
    ] {
        let error = spawner
            .run(Exec {
                path: path.to_owned(),
                ..shell("")
            })
            .await
            .unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with(&format!("{path} could not be started: {words}")),
            "{error}"
        );
        assert!(matches!(error, SpawnError::Start { errno: Some(got), .. } if got == errno));
    }
}

#[tokio::test]
async fn a_request_larger_than_a_message_is_refused_and_harms_no_other() {
    let spawner = spawner();
    let exec = Exec {
        stdin: "x".repeat(wire::MESSAGE_MAX),
        ..shell("cat")
    };
    assert!(matches!(
        spawner.run(exec).await,
        Err(SpawnError::TooLarge { .. })
    ));
    assert_eq!(
        spawner.run(shell("echo fine")).await.unwrap().stdout,
        "fine\n"
    );
}

/// The worker of a supervisor. Two tests of nextest are two processes, so there is one.
fn worker_of(supervisor: u32) -> u32 {
    children_of(supervisor).trim().parse().unwrap()
}

fn kill_process(pid: u32) {
    kill(Pid::from_raw(i32::try_from(pid).unwrap()), Signal::SIGKILL).unwrap();
}

/// A run under way, and its end. Nobody is left to kill it when the worker dies, so it ends with
/// its input, which the worker held.
async fn run_under_way(
    spawner: &Spawner,
) -> (
    tokio::task::JoinHandle<Result<Output, SpawnError>>,
    oneshot::Receiver<()>,
) {
    let fifo = Fifo::new();
    let (begun, ended) = fifo.read();
    let script = format!("exec 3>{}; echo >&3; cat", fifo.path().display());
    let exec = Exec {
        stdin: "x".repeat(OUTPUT_MAX),
        ..shell(&script)
    };
    let spawner = spawner.clone();
    let run = tokio::spawn(async move { spawner.run(exec).await });
    soon(begun).await;
    (run, ended)
}

fn gone() -> SpawnError {
    SpawnError::Gone {
        path: SHELL.to_owned(),
    }
}

#[tokio::test]
async fn a_worker_that_is_killed_is_replaced_and_who_waits_for_it_is_told() {
    let process = start();
    let supervisor = process.id();
    let spawner = process.connect().unwrap();
    for _ in 0..2 {
        let (run, ended) = run_under_way(&spawner).await;
        kill_process(worker_of(supervisor));
        assert_eq!(run.await.unwrap(), Err(gone()));
        soon(ended).await;
        let output = spawner.run(shell("echo served")).await.unwrap();
        assert_eq!(output.stdout, "served\n");
    }
    assert!(spawner.is_alive());
}

#[tokio::test]
async fn when_supervisor_and_worker_die_all_who_wait_and_all_who_come_are_told() {
    let process = start();
    let supervisor = process.id();
    let spawner = process.connect().unwrap();
    let (run, ended) = run_under_way(&spawner).await;
    let worker = worker_of(supervisor);
    kill_process(supervisor);
    assert!(spawner.is_alive());
    kill_process(worker);
    assert_eq!(run.await.unwrap(), Err(gone()));
    spawner.ended().await;
    assert_eq!(spawner.run(shell("true")).await, Err(gone()));
    assert!(!spawner.is_alive());
    soon(ended).await;
}

#[tokio::test]
async fn when_the_agent_goes_away_the_spawner_kills_what_runs_and_ends() {
    let fifo = Fifo::new();
    let (begun, ended) = fifo.read();
    let (mut ours, theirs) = wire::pair().unwrap();
    let (returned, has_returned) = oneshot::channel();
    thread::spawn(move || returned.send(process::serve(&theirs, &directories())));
    let exec = fifo.endless_writers();
    wire::write(&mut ours, &Request::Run { id: 1, exec }).unwrap();
    soon(begun).await;
    drop(ours);
    soon(ended).await;
    soon(has_returned).await.unwrap();
}

#[test]
fn an_agent_that_goes_away_with_a_reply_unread_is_an_end_like_any_other() {
    let (mut ours, theirs) = wire::pair().unwrap();
    let served = thread::spawn(move || process::serve(&theirs, &directories()));
    wire::write(
        &mut ours,
        &Request::Run {
            id: 1,
            exec: shell("echo unread"),
        },
    )
    .unwrap();
    let mut reply = [PollFd::new(ours.as_fd(), PollFlags::POLLIN)];
    poll(&mut reply, PollTimeout::try_from(LONG).unwrap()).unwrap();
    drop(ours);
    served.join().unwrap().unwrap();
}

#[test]
fn nonsense_instead_of_a_request_ends_the_spawner_with_an_error() {
    for nonsense in [&[0xff; 8][..], b"\x03{}", b"\x03{\"run\":"] {
        let (mut ours, theirs) = wire::pair().unwrap();
        let served = thread::spawn(move || process::serve(&theirs, &directories()));
        ours.write_all(nonsense).unwrap();
        drop(ours);
        assert!(served.join().unwrap().is_err(), "{nonsense:?}");
    }
}

#[test]
fn started_by_hand_the_spawner_says_who_should() {
    let output = spawner_command("worker")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        stderr.contains("the spawner is started by the agent, over a socket"),
        "{stderr}"
    );
}

#[test]
fn last_words_are_the_end_of_what_was_said_at_most_400_bytes() {
    assert_eq!(last_words(""), "");
    assert_eq!(last_words(" \n"), "");
    let words = last_words(&format!("{}é{}", "a".repeat(1000), "b".repeat(399)));
    assert_eq!(
        words,
        format!("; its standard error ends with \"{}\"", "b".repeat(399))
    );
}
