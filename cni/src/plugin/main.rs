//! The CNI plugin. It decides nothing about pods: it reads the runtime's variables and the
//! configuration on stdin, checks what it must to post them to the agent, and prints the agent's
//! answer. It blocks, has one thread, and ends by its deadline whatever the runtime or the agent
//! do; the agent notices its death by the closed connection.
//!
//! Stdout gets exactly one JSON object or nothing. The name under which it is called does not
//! matter.

#![cfg_attr(not(test), no_main)]

mod agent;
mod deadline;
mod input;
mod output;
mod spool;

use std::collections::BTreeMap;
#[cfg(not(test))]
use std::ffi::c_char;
use std::ffi::c_int;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use podwire_cni::env::{self, EnvError, Invocation};
use podwire_cni::spec::{CniVersion, Command, ConfError, Preamble, SpecError};
use podwire_cni::wire::{self, Request};
use serde_json::value::RawValue;

use agent::{AgentError, Reply};
use deadline::Deadline;
use input::InputError;
use spool::NotSpooled;

/// ADD, CHECK and GC end after this time. kubelet gives up on a sandbox after 2 minutes, counted
/// from before the plugin starts: an error that names the step must come earlier.
const ADD_DEADLINE: Duration = Duration::from_secs(110);
/// DEL ends after this time: podman and CRI-O kill it after a minute, and CRI-O may not call
/// again.
const DEL_DEADLINE: Duration = Duration::from_secs(55);
/// STATUS ends after this time. If it fails, the node becomes NotReady, as it does when the
/// runtime's status takes 30 s.
const STATUS_DEADLINE: Duration = Duration::from_secs(15);
/// VERSION waits this long for a configuration, which is optional.
const VERSION_DEADLINE: Duration = Duration::from_secs(1);

/// The variable with the agent's socket, for configurations without one.
const SOCKET_VARIABLE: &str = "PODWIRE_SOCKET";
/// The variable in which libcni passes a trace context.
const TRACE_VARIABLE: &str = "TRACEPARENT";
/// A longer trace context is dropped: version 00 has 55 characters.
const LONGEST_TRACEPARENT: usize = 256;

/// The entry point, in place of Rust's own, which reads /proc/self/maps and sets up a signal stack
/// for a message at stack overflow. That costs 7 % of the time from exec to exit (measured with
/// VERSION). The plugin needs two of the other things that it does; `run` does them.
#[cfg(not(test))]
#[expect(
    unsafe_code,
    reason = "names a symbol, the one that crt1.o calls; there is no unsafe block"
)]
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    run()
}

/// Serves one call; the exit code is 0 or 1.
#[cfg_attr(test, expect(dead_code, reason = "the test harness has its own main"))]
fn run() -> c_int {
    output::report_panics();
    output::block_sigpipe();
    if !output::is_open() {
        // Otherwise the agent's socket would get its number, and with it the output.
        return output::FAILURE;
    }
    match call() {
        Ok(Reply {
            served,
            body,
            stderr,
        }) => {
            output::remark(&stderr);
            output::reply(&body, served)
        }
        Err(Failure { version, cause }) => {
            if matches!(cause, PluginError::Env(EnvError::NoCommand))
                && std::io::stderr().is_terminal()
            {
                eprintln!("{}", about());
            }
            output::failure(&cause.into(), version)
        }
    }
}

/// Why there is no answer, and the version in which to report it.
struct Failure {
    version: CniVersion,
    cause: PluginError,
}

#[derive(Debug, thiserror::Error)]
enum PluginError {
    #[error(transparent)]
    Env(#[from] EnvError),
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Spool(#[from] NotSpooled),
}

impl From<PluginError> for SpecError {
    fn from(error: PluginError) -> Self {
        match error {
            PluginError::Env(error) => error.into(),
            PluginError::Input(error) => error.into(),
            PluginError::Conf(error) => error.into(),
            PluginError::Agent(error) => error.into(),
            PluginError::Spool(error) => error.into(),
        }
    }
}

/// One call, from the environment to the output.
fn call() -> Result<Reply, Failure> {
    let variables = env::VARIABLES
        .into_iter()
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    let invocation = match env::parse(variables) {
        Ok(invocation) => invocation,
        Err(error) => {
            // It is read whether or not it is needed: the runtime writes it.
            let version = version_on_stdin();
            return match error {
                EnvError::NothingToDelete { .. } => Ok(Reply {
                    served: true,
                    body: Vec::new(),
                    stderr: Vec::new(),
                }),
                error => Err(Failure {
                    version,
                    cause: error.into(),
                }),
            };
        }
    };
    if invocation.command == Command::Version {
        return Ok(Reply {
            served: true,
            body: supported_versions().into_bytes(),
            stderr: Vec::new(),
        });
    }

    let deadline = Deadline::after(deadline_of(invocation.command, None));
    let conf = input::configuration(deadline).map_err(|error| Failure {
        version: CniVersion::LATEST,
        cause: error.into(),
    })?;
    let preamble = Preamble::parse(&conf, invocation.command).map_err(|error| Failure {
        version: Preamble::version(&conf),
        cause: error.into(),
    })?;
    post(invocation, conf, &preamble, deadline).map_err(|cause| Failure {
        version: preamble.cni_version,
        cause,
    })
}

fn post(
    invocation: Invocation,
    conf: String,
    preamble: &Preamble,
    deadline: Deadline,
) -> Result<Reply, PluginError> {
    let deadline = preamble
        .timeout
        .map_or(deadline, |timeout| deadline.with(timeout));
    let config =
        RawValue::from_string(conf).map_err(|error| ConfError::NotJson(error.to_string()))?;
    let request = Request {
        invocation,
        config,
        environment: match preamble.delegates {
            true => environment(),
            false => BTreeMap::new(),
        },
        traceparent: traceparent(),
        takes_stderr: true,
    };
    let socket = preamble
        .agent_socket
        .clone()
        .unwrap_or_else(socket_by_environment);
    match agent::serve(&socket, &request, deadline) {
        Err(lost) if request.invocation.command == Command::Del && lost.is_unserved() => {
            Ok(spool::leave(&socket, &request, deadline, lost)?)
        }
        answer => Ok(answer?),
    }
}

/// A configuration may shorten any deadline, and may extend those that runtimes do not limit to a
/// minute or less.
fn deadline_of(command: Command, wanted: Option<Duration>) -> Duration {
    match command {
        Command::Add | Command::Check | Command::Gc => wanted.unwrap_or(ADD_DEADLINE),
        Command::Del => wanted.map_or(DEL_DEADLINE, |wanted| wanted.min(DEL_DEADLINE)),
        Command::Status => wanted.map_or(STATUS_DEADLINE, |wanted| wanted.min(STATUS_DEADLINE)),
        Command::Version => VERSION_DEADLINE,
    }
}

/// The version of the configuration on stdin, for an answer that does not depend on the rest of it.
/// A runtime may pass none, and a person at a terminal will not.
fn version_on_stdin() -> CniVersion {
    if std::io::stdin().is_terminal() {
        return CniVersion::LATEST;
    }
    let conf = input::configuration(Deadline::after(VERSION_DEADLINE));
    conf.map_or(CniVersion::LATEST, |conf| Preamble::version(&conf))
}

/// The answer to VERSION (CNI spec, section 2, "VERSION").
fn supported_versions() -> String {
    let version = version_on_stdin();
    let all = CniVersion::ALL
        .map(|version| format!("{:?}", version.as_str()))
        .join(",");
    format!(
        "{{\"cniVersion\":{:?},\"supportedVersions\":[{all}]}}",
        version.as_str()
    )
}

fn socket_by_environment() -> PathBuf {
    match std::env::var_os(SOCKET_VARIABLE) {
        Some(socket) if !socket.is_empty() => socket.into(),
        _ => wire::DEFAULT_SOCKET.into(),
    }
}

/// The environment that an IPAM plugin would have inherited. What is not UTF-8 can't be sent as
/// JSON.
fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| !env::VARIABLES.contains(&name.as_str()))
        .collect()
}

/// An invalid trace context must not cost a pod its network.
fn traceparent() -> Option<String> {
    let text = std::env::var(TRACE_VARIABLE).ok()?;
    let usable = !text.is_empty() && text.len() <= LONGEST_TRACEPARENT && text.is_ascii();
    usable.then_some(text)
}

fn about() -> String {
    let name = std::env::args_os().next().map(PathBuf::from);
    let name = name
        .as_deref()
        .and_then(|path| path.file_name())
        .unwrap_or_default();
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "{}: the CNI plugin of podwire {version}. Container runtimes call it, with CNI_COMMAND and \
         other variables set\nand a network configuration on stdin. To see that it works: \
         CNI_COMMAND=VERSION {}",
        name.display(),
        name.display()
    )
}

#[cfg(test)]
mod tests;
