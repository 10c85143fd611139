//! Running a program with as little of our own in the measured time as can be: no threads, its
//! input in the pipe before it starts, one wait.

use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::error::{Error, Step};

/// What a pipe holds without a reader (pipe(7)); a CNI configuration is far smaller.
const PIPE_CAPACITY: usize = 65536;

/// A program's run.
#[derive(Debug)]
pub struct Run {
    /// From just before the fork until it was reaped.
    pub took: Duration,
    /// Its standard output.
    pub stdout: Vec<u8>,
}

/// Runs a program to its successful end, from the calling thread, hence in that thread's
/// namespaces.
///
/// # Errors
/// It can't be started, or ends with another status than success; `program` and `seat` name it.
pub fn exec(command: &mut Command, stdin: &[u8], program: &str, seat: usize) -> Result<Run, Error> {
    debug_assert!(stdin.len() <= PIPE_CAPACITY);
    let (input, mut fill) = std::io::pipe().step(|| "make a pipe")?;
    let (mut drain, output) = std::io::pipe().step(|| "make a pipe")?;
    fill.write_all(stdin).step(|| "fill a pipe")?;
    drop(fill);
    let errors = output.try_clone().step(|| "share a pipe")?;
    command
        .stdin(Stdio::from(input))
        .stdout(Stdio::from(output))
        .stderr(Stdio::from(errors));
    let mut stdout = Vec::with_capacity(4096);
    let started = Instant::now();
    let mut child = command.spawn().step(|| format!("start {program}"))?;
    // The command holds the pipe's near ends, and the pipe's end would never come.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    drain
        .read_to_end(&mut stdout)
        .step(|| format!("read from {program}"))?;
    let status = child.wait().step(|| format!("wait for {program}"))?;
    let took = started.elapsed();
    if status.success() {
        return Ok(Run { took, stdout });
    }
    Err(Error::Program {
        program: program.to_owned(),
        seat,
        status: status.to_string(),
        output: String::from_utf8_lossy(&stdout).into_owned(),
    })
}
