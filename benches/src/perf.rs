//! In which functions a process spends its time, by perf: which of them call the others, at one
//! sample in each 50 microseconds of processor time. The process needs symbols and frame pointers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use podwire_tests::TestNode;

use crate::error::{Error, Step};

/// Samples per second of processor time.
const FREQUENCY: f64 = 20_000.0;

/// Milliseconds of processor time by function, with what it called.
pub type Functions = BTreeMap<String, f64>;

/// perf on all threads of a process, recording only while it is told to.
pub struct Perf {
    child: Child,
    control: File,
    answers: BufReader<File>,
    record: String,
}

impl Perf {
    /// Attaches to a process of a node; `name` tells its files from those of others.
    ///
    /// # Errors
    /// perf could not be run.
    pub fn attach(node: &TestNode, pid: u32, name: &str) -> Result<Self, Error> {
        let record = format!("/run/perf-{name}");
        let [control, answers] = ["control", "answers"].map(|it| format!("{record}.{it}"));
        let start = || -> std::io::Result<(Child, File, File)> {
            let open = |fifo: &str| {
                mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR)?;
                // Both ways at once, or it would wait for the other end.
                OpenOptions::new().read(true).write(true).open(fifo)
            };
            let (to, from) = (open(&control)?, open(&answers)?);
            let child = Command::new("perf")
                .args([
                    "record",
                    "-e",
                    "cpu-clock",
                    "--freq",
                    &FREQUENCY.to_string(),
                ])
                .args(["-g", "--delay", "-1", "--pid", &pid.to_string()])
                .arg(format!("--control=fifo:{control},{answers}"))
                .args(["--output", &record])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            Ok((child, to, from))
        };
        let (child, control, answers) = node.place().run(start).step(|| "start perf")?;
        Ok(Self {
            child,
            control,
            answers: BufReader::new(answers),
            record,
        })
    }

    /// Records what is done in an action.
    ///
    /// # Errors
    /// That of the action, or perf does not answer.
    pub fn during<T>(&mut self, action: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        self.tell("enable")?;
        let done = action();
        self.tell("disable")?;
        done
    }

    /// Ends it; returns the time in each function.
    ///
    /// # Errors
    /// perf could not be ended, or its record not read.
    pub fn detach(mut self, node: &TestNode) -> Result<Functions, Error> {
        self.tell("stop")?;
        self.child.wait().step(|| "wait for perf")?;
        let mut command = Command::new("perf");
        command
            .args([
                "script",
                "--no-inline",
                "--fields",
                "ip,sym",
                "--input",
                &self.record,
            ])
            .stderr(Stdio::null());
        let read = || {
            let output = command.output()?;
            for file in ["", ".control", ".answers"] {
                std::fs::remove_file(format!("{}{file}", self.record))?;
            }
            Ok::<_, std::io::Error>(output)
        };
        let output = node.place().run(read).step(|| "read perf's record")?;
        Ok(functions(&String::from_utf8_lossy(&output.stdout)))
    }

    fn tell(&mut self, command: &str) -> Result<(), Error> {
        let mut answer = String::new();
        writeln!(self.control, "{command}")
            .and_then(|()| self.answers.read_line(&mut answer))
            .step(|| format!("tell perf to {command}"))?;
        Ok(())
    }
}

/// The time in each function of `perf script`: samples are paragraphs, a line for each frame, the
/// innermost first. A function that is there twice counts once.
fn functions(script: &str) -> Functions {
    let mut functions = Functions::new();
    for sample in script.split("\n\n") {
        let name = |line: &str| Some(line.trim().split_once(' ')?.1.to_owned());
        let names: BTreeSet<String> = sample.lines().filter_map(name).collect();
        for name in names {
            *functions.entry(name).or_default() += 1e3 / FREQUENCY;
        }
        if !sample.trim().is_empty() {
            *functions.entry(ALL.to_owned()).or_default() += 1e3 / FREQUENCY;
        }
    }
    functions
}

/// Stands for all functions.
pub const ALL: &str = "all";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_the_time_of_what_it_calls_and_counts_once() {
        let script = "\n    1 nl_send\n    2 port_run\n    3 main\n\n    \
                      4 port_run\n    2 port_run\n    3 main\n\n";
        let times = functions(script);
        let samples = |name: &str| (times[name] * FREQUENCY / 1e3).round();
        assert_eq!(samples(ALL), 2.0);
        assert_eq!((samples("main"), samples("port_run")), (2.0, 2.0));
        assert_eq!(samples("nl_send"), 1.0);
    }
}
