//! A DEL that no agent took goes into the spool, and the runtime gets success: the pod is gone for
//! good, CRI-O may not call again, and other runtimes repeat a failed DEL for ever. The agent
//! executes it before it serves its first ADD.

use std::path::Path;

use podwire_cni::spec::{ErrorCode, SpecError};
use podwire_cni::spool::{Spool, SpoolError};
use podwire_cni::wire::Request;

use crate::agent::{self, AgentError, Reply};
use crate::deadline::Deadline;

/// Neither the agent nor the spool took the DEL.
#[derive(Debug, thiserror::Error)]
#[error("{lost}; the DEL can't be spooled either: {spool}")]
pub(crate) struct NotSpooled {
    lost: AgentError,
    spool: SpoolError,
}

impl From<NotSpooled> for SpecError {
    fn from(error: NotSpooled) -> Self {
        Self::new(ErrorCode::TRY_AGAIN, error.to_string())
    }
}

/// Writes the request to the spool, then tries the agent once more: an agent started since may have
/// read the spool already; one that starts later will find the request there.
pub(crate) fn leave(
    socket: &Path,
    request: &Request,
    deadline: Deadline,
    lost: AgentError,
) -> Result<Reply, NotSpooled> {
    let (before, after) = request.envelope();
    let parts = [&before, request.config.get().as_bytes(), after];
    let written = Spool::open(socket).and_then(|spool| Ok((spool.write(&parts)?, spool)));
    let (name, spool) = match written {
        Ok(written) => written,
        Err(spool) => return Err(NotSpooled { lost, spool }),
    };
    match agent::serve_if_there(socket, request, deadline) {
        // With an answer of any kind, the runtime knows the outcome.
        Ok(reply) => {
            let _ = spool.remove(&name);
            Ok(reply)
        }
        Err(_) => Ok(Reply {
            served: true,
            body: Vec::new(),
            stderr: Vec::new(),
        }),
    }
}
