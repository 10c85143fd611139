//! Every test has a spawner process of its own: this very test binary, told to run one test.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::thread;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::fixture::{AS_SPAWNER, Fifo, LONG, children_of, shell, soon, spawner, spawner_command};
use super::wire::{self, Request};
use super::*;

#[test]
fn the_process_behind_these_tests() {
    if std::env::var_os(AS_SPAWNER).is_some() {
        main_loop().unwrap();
    }
}

#[tokio::test]
async fn a_program_gets_its_arguments_its_input_and_only_the_environment_given() {
    let exec = Exec {
        path: "/usr/bin/env".to_owned(),
        args: [
            "sh",
            "-c",
            "cat; echo $1; echo oops >&2; env",
            "sh",
            "one two",
        ]
        .map(str::to_owned)
        .to_vec(),
        env: vec![
            ("PATH".to_owned(), "/usr/bin:/bin".to_owned()),
            ("A".to_owned(), "b=c".to_owned()),
        ],
        stdin: "fed ".to_owned(),
        timeout: LONG,
    };
    let output = spawner().run(exec).await.unwrap();
    assert_eq!(output.exit, Exit::Status(0));
    assert_eq!(output.stderr, "oops\n");
    let mut lines: Vec<_> = output
        .stdout
        .lines()
        .filter(|line| !line.starts_with("PWD="))
        .collect();
    lines.retain(|line| !line.starts_with("SHLVL=") && !line.starts_with("_="));
    lines[1..].sort_unstable();
    assert_eq!(lines, ["fed one two", "A=b=c", "PATH=/usr/bin:/bin"]);
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
    let process = Spawner::start_as(spawner_command()).unwrap();
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
    assert_eq!(children_of(pid), "");
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
            path: "/bin/sh".to_owned(),
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
    let script = format!("echo stuck here >&2; {}", exec.args[1]);
    let timeout = Duration::from_millis(300);
    let exec = Exec {
        args: vec!["-c".to_owned(), script],
        timeout,
        ..exec
    };
    let error = spawner().run(exec).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        r#"/bin/sh did not end within 300ms and was killed; its standard error ends: "stuck here""#
    );
    soon(ended).await;
}

#[tokio::test]
async fn a_killed_program_does_not_stay_a_zombie() {
    let process = Spawner::start_as(spawner_command()).unwrap();
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
    assert_eq!(children_of(pid), "");
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
    for (path, errno, words) in [
        ("/nonexistent/plugin", 2, "No such file"),
        ("/etc/passwd", 13, "Permission denied"),
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

#[tokio::test]
async fn when_the_spawner_dies_all_who_wait_and_all_who_come_are_told() {
    let process = Spawner::start_as(spawner_command()).unwrap();
    let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
    let spawner = process.connect().unwrap();
    assert!(spawner.is_alive());
    let fifo = Fifo::new();
    let (begun, ended) = fifo.read();
    // Nobody is left to kill this one, so it ends with its input, which the spawner held.
    let script = format!("exec 3>{}; echo >&3; cat", fifo.path().display());
    let exec = Exec {
        stdin: "x".repeat(OUTPUT_MAX),
        ..shell(&script)
    };
    let waiting = tokio::spawn({
        let spawner = spawner.clone();
        async move { spawner.run(exec).await }
    });
    soon(begun).await;
    kill(pid, Signal::SIGKILL).unwrap();
    let gone = SpawnError::Gone {
        path: "/bin/sh".to_owned(),
    };
    assert!(matches!(waiting.await.unwrap(), Err(error) if error == gone));
    assert_eq!(spawner.run(shell("true")).await, Err(gone));
    assert!(!spawner.is_alive());
    soon(ended).await;
}

#[tokio::test]
async fn when_the_agent_goes_away_the_spawner_kills_what_runs_and_ends() {
    let fifo = Fifo::new();
    let (begun, ended) = fifo.read();
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (returned, has_returned) = oneshot::channel();
    thread::spawn(move || returned.send(process::serve(&theirs)));
    let exec = fifo.endless_writers();
    wire::write(&mut ours, &Request::Run { id: 1, exec }).unwrap();
    soon(begun).await;
    drop(ours);
    soon(ended).await;
    soon(has_returned).await.unwrap();
}

#[test]
fn an_agent_that_goes_away_with_a_reply_unread_is_an_end_like_any_other() {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let served = thread::spawn(move || process::serve(&theirs));
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
    for nonsense in [&[0xff; 8][..], b"\0\0\0\x02{}", b"\0\0\0\x09{\"run\":"] {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        let served = thread::spawn(move || process::serve(&theirs));
        ours.write_all(nonsense).unwrap();
        drop(ours);
        assert!(served.join().unwrap().is_err(), "{nonsense:?}");
    }
}

#[test]
fn started_by_hand_the_spawner_says_who_should() {
    let output = spawner_command().stdin(Stdio::null()).output().unwrap();
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
        format!("; its standard error ends: \"{}\"", "b".repeat(399))
    );
}
