//! DELs that found no agent: executed at start before the first ADD is served, except for what IPAM
//! plugins do, and later as they arrive.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use podwire_cni::spec::Command;
use podwire_cni::spool::{Name, Spool, SpoolError, Spooled};

use podwire_daemon::files::FileEvents;

use super::recover;
use super::unfinished::AT_ONCE;
use crate::attach::{Call, Handles};
use crate::observe::Spooled as Outcome;

/// Executes what waits in the spool, oldest first, a few at a time: an IPAM plugin may hang.
pub(super) async fn carry_out_all(node: &Handles) {
    let waiting = Spool::open(&node.config.socket).and_then(|spool| Ok((spool.names()?, spool)));
    match waiting {
        Ok((names, spool)) => {
            let spool = &spool;
            let each = async |name: Name| carry_out_one(node, spool, &name).await;
            stream::iter(names).for_each_concurrent(AT_ONCE, each).await;
        }
        Err(error) => tracing::error!(%error, "the spool of DELs can't be read"),
    }
}

/// Executes DELs as they are spooled, which happens when a connection was lost or the agent's queue
/// was full. Never returns.
pub async fn keep_spool(node: Arc<Handles>) {
    node.settled().await;
    loop {
        let arrivals = match arrivals(&node) {
            Ok(arrivals) => {
                // It does not matter which file arrived: all waiting ones are processed.
                carry_out_all(&node).await;
                Ok(arrivals)
            }
            Err(error) => {
                tracing::error!(
                    %error,
                    "the spool of DELs can't be watched; that is tried again when something \
                     changes there"
                );
                FileEvents::of_sockets(&node.config.run_dir)
            }
        };
        // The removal of the spool is an event too.
        let next = match arrivals {
            Ok(arrivals) => arrivals.next().await,
            Err(error) => Err(error),
        };
        if let Err(error) = next {
            tracing::error!(
                %error,
                "the spool of DELs is no longer watched; the next start carries out what arrives"
            );
            return;
        }
    }
}

fn arrivals(node: &Handles) -> Result<FileEvents, WatchError> {
    let spool = Spool::open(&node.config.socket)?;
    Ok(FileEvents::of_arrivals(spool.path())?)
}

#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error("{0}")]
    Spool(#[from] SpoolError),
    #[error("inotify: {0}")]
    Inotify(#[from] std::io::Error),
}

/// A DEL that fails stays for the next attempt; one that can never be executed is removed, and its
/// reason logged.
async fn carry_out_one(node: &Handles, spool: &Spool, name: &Name) {
    let (spooled, call) = match spool.read(name) {
        Ok(None) => return,
        Ok(Some(spooled)) => match del_of(&spooled) {
            Ok(call) => (spooled, call),
            Err(problem) => return drop_one(node, spool, name, &problem),
        },
        Err(error @ SpoolError::Malformed { .. }) => {
            return drop_one(node, spool, name, &error.to_string());
        }
        Err(error) => return tracing::error!(%error, "a spooled DEL can't be read"),
    };
    tracing::info!(attachment = %call.key, "carrying out a DEL from the spool");
    match recover::carry_out(node, &call, spooled.written).await {
        // What an IPAM plugin has to do follows the start (see `keep_spool`).
        Ok(false) => {}
        Ok(true) => {
            node.metrics.spooled(Outcome::CarriedOut);
            if let Err(error) = spool.remove(name) {
                tracing::error!(%error, "a DEL that was carried out stays in the spool");
            }
        }
        Err(error) => {
            node.metrics.spooled(Outcome::Failed);
            tracing::error!(
                attachment = %call.key,
                %error,
                "a spooled DEL failed; it is tried again at the next one"
            );
        }
    }
}

fn del_of(spooled: &Spooled) -> Result<Call, String> {
    let call = Call::parse(spooled.request.get().as_bytes())
        .map_err(|refused| refused.error.to_string())?;
    match call.verb {
        Command::Del => Ok(call),
        other => Err(format!("it is {}, and only DEL is spooled", other.as_str())),
    }
}

fn drop_one(node: &Handles, spool: &Spool, name: &Name, problem: &str) {
    node.metrics.spooled(Outcome::Dropped);
    tracing::error!(
        problem,
        "a file in the spool of DELs can't be carried out and is removed"
    );
    if let Err(error) = spool.remove(name) {
        tracing::error!(%error, "it stays");
    }
}
