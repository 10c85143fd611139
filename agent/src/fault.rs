//! Fault points: named steps at which a test has the agent die, or an ADD fail. Compiled in only
//! with the feature `fault-points`, which no build for users has.
//!
//! `PODWIRE_FAULT=<step>:kill` ends the process by SIGKILL, as at that step, the first time that it
//! comes there; `PODWIRE_FAULT=<step>:error` has the step fail once. `STEPS` lists what can be
//! named.

/// Every step, in the order in which an ADD, and then a DEL, comes by.
#[cfg(feature = "fault-points")]
pub const STEPS: [&str; 13] = [
    "add-begun",
    "add-delegated",
    "add-planned",
    "add-noted",
    "add-linked",
    "add-rows",
    "add-ofport",
    "add-live",
    "del-begun",
    "del-rows",
    "del-links",
    "del-released",
    "del-forgotten",
];

/// Comes by a step, in a function of `Result<_, attach::Error>` from which it may return; with a
/// `_` only a kill counts.
#[cfg(feature = "fault-points")]
macro_rules! fault_point {
    ($step:literal) => {
        $crate::fault::reach($step)?
    };
    ($step:literal, _) => {
        let _ = $crate::fault::reach($step);
    };
}

#[cfg(not(feature = "fault-points"))]
macro_rules! fault_point {
    ($step:literal) => {};
    ($step:literal, _) => {};
}

pub(crate) use fault_point;

/// The failure that a test asked for.
#[cfg(feature = "fault-points")]
#[derive(Debug, thiserror::Error)]
#[error("step {step} fails, as PODWIRE_FAULT asks")]
pub struct Fault {
    step: &'static str,
}

#[cfg(feature = "fault-points")]
pub(crate) fn reach(step: &'static str) -> Result<(), Fault> {
    use std::sync::atomic::{AtomicBool, Ordering};
    static SPENT: AtomicBool = AtomicBool::new(false);

    debug_assert!(STEPS.contains(&step), "{step} is not listed");
    let wanted = std::env::var("PODWIRE_FAULT").unwrap_or_default();
    let Some(action) = wanted
        .strip_prefix(step)
        .and_then(|rest| rest.strip_prefix(':'))
    else {
        return Ok(());
    };
    if SPENT.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    tracing::warn!(step, action, "fault point");
    if action == "error" {
        return Err(Fault { step });
    }
    // It does not return: the signal is taken on the way out of the system call.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    Ok(())
}
