//! A DEL that no agent took is left in the spool, and the runtime is told that it went well: the
//! pod is gone for good, CRI-O may not call again, and other runtimes repeat a failed DEL without
//! end. The agent carries it out before it serves its first ADD.

use std::path::Path;

use podwire_cni::spec::{ErrorCode, SpecError};
use podwire_cni::spool::{Spool, SpoolError};
use podwire_cni::wire::Request;

use crate::agent::{self, AgentError, Reply};
use crate::deadline::Deadline;

/// Neither the agent nor the spool took the DEL.
#[derive(Debug, thiserror::Error)]
#[error("{lost}; and it can't be left for later: {spool}")]
pub(crate) struct NotSpooled {
    lost: AgentError,
    spool: SpoolError,
}

impl From<NotSpooled> for SpecError {
    fn from(error: NotSpooled) -> Self {
        Self::new(ErrorCode::TRY_AGAIN, error.to_string())
    }
}

/// Writes the request to the spool, then asks once more: an agent that has started since may have
/// looked through the spool already, and one that starts from now on will find it there.
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
        // With an answer, of whatever kind, the runtime knows how it stands.
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
