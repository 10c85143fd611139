//! The Container Runtime Interface, as kubelet speaks it to containerd: gRPC over a Unix socket.
//!
//! Only the calls of a pod sandbox's life, and of their messages only the fields that tests read or
//! write; protobuf skips what it does not know. One connection for each call, as there are few.

mod messages;

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::HeaderMap;
use prost::Message;
use tokio::net::UnixStream;

pub use messages::{
    DnsConfig, LinuxPodSandboxConfig, PodSandboxConfig, PodSandboxMetadata, PodSandboxStatus,
    PortMapping, Protocol, RuntimeCondition,
};

use crate::Failure;
use crate::failure::Step;
use messages::{
    PodSandboxId, PodSandboxStatusRequest, PodSandboxStatusResponse, RunPodSandboxRequest,
    StatusRequest, StatusResponse,
};

/// What kubelet gives a sandbox' call at the most, and half a minute.
const LIMIT: Duration = Duration::from_secs(150);

/// A runtime's CRI socket.
#[derive(Clone, Debug)]
pub struct Cri {
    socket: PathBuf,
}

impl Cri {
    pub(crate) fn at(socket: PathBuf) -> Cri {
        Cri { socket }
    }

    /// Makes and starts a pod's sandbox, and returns its id.
    pub fn run_pod_sandbox(&self, config: &PodSandboxConfig) -> Result<String, Failure> {
        let config = Some(config.clone());
        let made: PodSandboxId = self.call("RunPodSandbox", &RunPodSandboxRequest { config })?;
        Ok(made.pod_sandbox_id)
    }

    /// Ends a sandbox' processes and its network. May be repeated.
    pub fn stop_pod_sandbox(&self, sandbox: &str) -> Result<(), Failure> {
        let _: () = self.call("StopPodSandbox", &PodSandboxId::of(sandbox))?;
        Ok(())
    }

    /// Forgets a sandbox. May be repeated.
    pub fn remove_pod_sandbox(&self, sandbox: &str) -> Result<(), Failure> {
        let _: () = self.call("RemovePodSandbox", &PodSandboxId::of(sandbox))?;
        Ok(())
    }

    /// What the runtime knows of a sandbox, and as JSON what else it tells on request.
    pub fn pod_sandbox_status(
        &self,
        sandbox: &str,
    ) -> Result<(PodSandboxStatus, serde_json::Value), Failure> {
        let pod_sandbox_id = sandbox.to_owned();
        let request = PodSandboxStatusRequest {
            pod_sandbox_id,
            verbose: true,
        };
        let answer: PodSandboxStatusResponse = self.call("PodSandboxStatus", &request)?;
        let info = answer.info.get("info").map_or("null", String::as_str);
        let info = serde_json::from_str(info)
            .map_err(std::io::Error::from)
            .step(|| "read the sandbox' info")?;
        Ok((answer.status.unwrap_or_default(), info))
    }

    /// The runtime's conditions: `RuntimeReady` and `NetworkReady`.
    pub fn conditions(&self) -> Result<Vec<RuntimeCondition>, Failure> {
        let answer: StatusResponse = self.call("Status", &StatusRequest {})?;
        Ok(answer.status.unwrap_or_default().conditions)
    }

    /// The socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    fn call<Q: Message, A: Message + Default>(
        &self,
        method: &'static str,
        request: &Q,
    ) -> Result<A, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .step(|| "start a runtime")?;
        let exchange = async {
            let limited = tokio::time::timeout(
                LIMIT,
                exchange(&self.socket, method, request.encode_to_vec()),
            )
            .await;
            limited.unwrap_or_else(|_| Err(Refusal::broken(format!("no answer within {LIMIT:?}"))))
        };
        runtime
            .block_on(exchange)
            .and_then(|answer| {
                A::decode(answer).map_err(|error| Refusal::broken(error.to_string()))
            })
            .map_err(|refusal| Failure::Cri {
                method,
                code: refusal.code,
                message: refusal.message,
            })
    }
}

/// What came instead of an answer.
struct Refusal {
    /// Of google.rpc.Code; `None` when the call itself broke.
    code: Option<u32>,
    message: String,
}

impl Refusal {
    fn broken(message: String) -> Refusal {
        Refusal {
            code: None,
            message,
        }
    }

    /// The refusal that headers or trailers tell, if they tell of one.
    fn told(headers: &HeaderMap) -> Option<Refusal> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let code = text("grpc-status")?.parse().ok();
        let message = percent_decoded(text("grpc-message").unwrap_or_default());
        (code != Some(0)).then_some(Refusal { code, message })
    }
}

impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Refusal {
        Refusal::broken(error.to_string())
    }
}

/// One call as "gRPC over HTTP2" has it: a POST whose body, like the answer's, is a message behind
/// five bytes (a flag for compression, and the length), and whose outcome stands in the trailers.
async fn exchange(socket: &Path, method: &str, message: Vec<u8>) -> Result<Bytes, Refusal> {
    let stream = UnixStream::connect(socket).await?;
    let (client, connection) = h2::client::handshake(stream).await?;
    tokio::spawn(connection);
    let request = http::Request::post(format!(
        "http://localhost/runtime.v1.RuntimeService/{method}"
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .body(())?;
    let (answer, mut sending) = client.ready().await?.send_request(request, false)?;
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(u32::try_from(message.len())?);
    framed.put_slice(&message);
    sending.send_data(framed.freeze(), true)?;

    let answer = answer.await?;
    // A call that fails before its first message has no trailers of its own.
    if let Some(refusal) = Refusal::told(answer.headers()) {
        return Err(refusal);
    }
    let mut body = answer.into_body();
    let mut received = BytesMut::new();
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        body.flow_control().release_capacity(chunk.len())?;
        received.extend_from_slice(&chunk);
    }
    if let Some(refusal) = body.trailers().await?.as_ref().and_then(Refusal::told) {
        return Err(refusal);
    }
    if received.len() < 5 {
        return Err(Refusal::broken(format!(
            "{} bytes are no message",
            received.len()
        )));
    }
    received.advance(5);
    Ok(received.freeze())
}

/// `grpc-message` as its sender meant it: bytes that a header can't bear come as `%XX`.
fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let code = tail
            .get(..2)
            .and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        match code.filter(|_| *first == b'%') {
            Some(code) => {
                bytes.push(code);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_its_sender_meant_it() {
        assert_eq!(percent_decoded("50%25 of %22web%22%0A"), "50% of \"web\"\n");
        assert_eq!(percent_decoded("100%, %zz"), "100%, %zz");
    }
}
