//! Programs in pods' containers, by `pods/exec`.

use std::io;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::{AttachParams, AttachedProcess};
use kube::{Api, Client};
use podwire_apiserver::brief;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use super::Failure;
pub(super) use crate::tools::said;

/// What a program may write, in bytes: of a node's bundle each file has 4 MiB at the most.
const LARGEST_OUTPUT: u64 = 64 << 20;
/// What is read of its standard error, in bytes.
const LARGEST_ERROR: u64 = 16 << 10;
/// How much of an output is on its way at once, in bytes.
const BUFFER: usize = 64 << 10;

/// The cluster, and podwire's pods in it.
pub(super) struct Cluster {
    pub(super) client: Client,
    /// The API server's name, for messages.
    pub(super) server: String,
    /// The namespace of podwire's pods.
    pub(super) namespace: String,
    /// How long a program may take.
    pub(super) limit: Duration,
}

/// What a program wrote, and its exit code.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: String,
    pub(super) code: i32,
}

impl Output {
    /// What is said on standard error, in one line.
    pub(super) fn complaint(&self) -> String {
        let said = self.stderr.lines().find(|line| !line.trim().is_empty());
        match said {
            Some(line) => brief(&line),
            None => format!("exit code {}", self.code),
        }
    }
}

impl Cluster {
    /// Runs a program in a container of one of podwire's pods.
    ///
    /// # Errors
    /// It did not run, or did not end in time, in words.
    pub(super) async fn exec(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<Output, String> {
        self.exec_within(self.limit, pod, container, command).await
    }

    /// Runs a program that may take so long, or as long as others.
    ///
    /// # Errors
    /// As there.
    pub(super) async fn exec_within(
        &self,
        limit: Duration,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<Output, String> {
        let (limit, setting) = match limit > self.limit {
            true => (limit, ""),
            false => (self.limit, " (--timeout)"),
        };
        let run = timeout(limit, self.run(pod, container, command));
        let ended = run.await.unwrap_or_else(|_| {
            let seconds = limit.as_secs();
            Err(format!("no answer within {seconds} s{setting}"))
        });
        ended.map_err(|why| format!("{} in pod {pod}: {why}", command.join(" ")))
    }

    /// Runs a tool with `-o json`, and returns what it answered: also if it ends with code 1, which
    /// says that something is wrong.
    ///
    /// # Errors
    /// It has no answer, in words.
    pub(super) async fn ask(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<Value, String> {
        let output = self.exec(pod, container, command).await?;
        let shown = command.join(" ");
        if !(0..=1).contains(&output.code) {
            return Err(format!("{shown} in pod {pod}: {}", output.complaint()));
        }
        serde_json::from_slice(&output.stdout).map_err(|_| match output.stderr.is_empty() {
            true => format!("{shown} in pod {pod}: it printed no JSON"),
            false => format!("{shown} in pod {pod}: {}", output.complaint()),
        })
    }

    /// Runs a program for as long as it takes, and hands on what it writes as it comes.
    ///
    /// # Errors
    /// It did not start in time, the connection broke, or `take` failed.
    pub(super) async fn stream(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<Output, Failure> {
        let failed = |why| Failure::Unknown(format!("{} in pod {pod}: {why}", command.join(" ")));
        let started = timeout(self.limit, self.start(pod, container, command)).await;
        let late = || format!("no answer within {} s (--timeout)", self.limit.as_secs());
        let mut process = started.unwrap_or_else(|_| Err(late())).map_err(failed)?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let status = process.take_status();
        let hand_on = async {
            let Some(mut stdout) = stdout else {
                return Ok(());
            };
            let mut buffer = vec![0; BUFFER];
            loop {
                match stdout.read(&mut buffer).await {
                    Ok(0) => return Ok(()),
                    Ok(length) => take(&buffer[..length]).map_err(Failure::Output)?,
                    Err(error) => return Err(failed(error.to_string())),
                }
            }
        };
        let said = async { read(stderr, LARGEST_ERROR).await.map_err(failed) };
        let ((), stderr) = tokio::try_join!(hand_on, said)?;
        ended(Vec::new(), &stderr, status).await.map_err(failed)
    }

    async fn run(&self, pod: &str, container: &str, command: &[&str]) -> Result<Output, String> {
        let mut process = self.start(pod, container, command).await?;
        let (stdout, stderr) = (process.stdout(), process.stderr());
        let status = process.take_status();
        let (stdout, stderr) =
            tokio::try_join!(read(stdout, LARGEST_OUTPUT), read(stderr, LARGEST_ERROR))?;
        ended(stdout, &stderr, status).await
    }

    async fn start(
        &self,
        pod: &str,
        container: &str,
        command: &[&str],
    ) -> Result<AttachedProcess, String> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        let streams = AttachParams::default()
            .container(container)
            .stdout(true)
            .stderr(true)
            .max_stdout_buf_size(BUFFER);
        let started = pods.exec(pod, command.iter().copied(), &streams).await;
        started.map_err(|error| said(&error))
    }
}

/// How a program ended, once it has.
async fn ended(
    stdout: Vec<u8>,
    stderr: &[u8],
    status: Option<impl Future<Output = Option<Status>>>,
) -> Result<Output, String> {
    let status = match status {
        Some(status) => status.await,
        None => None,
    };
    let status = status.ok_or_else(|| "the connection broke".to_owned())?;
    Ok(Output {
        stdout,
        stderr: String::from_utf8_lossy(stderr).into_owned(),
        code: exit_code(&status)?,
    })
}

/// A stream to its end. One that is longer is an error: half of an answer says something else.
async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let Some(stream) = stream else {
        return Ok(bytes);
    };
    let mut limited = stream.take(most + 1);
    let got = limited.read_to_end(&mut bytes).await;
    got.map_err(|error| error.to_string())?;
    match bytes.len() as u64 > most {
        true => Err(format!("it wrote more than {most} bytes")),
        false => Ok(bytes),
    }
}

/// The exit code that a kubelet reports (client-go, remotecommand: the cause `ExitCode` of the
/// reason `NonZeroExitCode`), or why the program did not run.
fn exit_code(status: &Status) -> Result<i32, String> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status
        .details
        .iter()
        .flat_map(|it| it.causes.iter().flatten());
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = codes.next().and_then(|cause| cause.message.as_deref());
    match code.and_then(|text| text.parse().ok()) {
        Some(code) => Ok(code),
        None => Err(brief(&status.message.as_deref().unwrap_or("it failed"))),
    }
}
