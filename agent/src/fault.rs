//! Fault points: named steps at which a test makes the agent die, or an ADD fail. Compiled in only
//! with the feature `fault-points`, which no release build has.
//!
//! `PODWIRE_FAULT=<step>:kill` kills the process with SIGKILL the first time it reaches that step;
//! `PODWIRE_FAULT=<step>:error` makes the step fail once. `STEPS` lists the names.

/// Every step, in the order in which an ADD, and then a DEL, reaches them.
#[cfg(feature = "fault-points")]
pub const STEPS: [&str; 14] = [
    "add-begun",
    "add-delegated",
    "add-planned",
    "add-noted",
    "add-linked",
    "add-rows",
    "add-ofport",
    "add-leased",
    "add-live",
    "del-begun",
    "del-rows",
    "del-links",
    "del-released",
    "del-forgotten",
];

/// Marks a step, in a function that returns `Result<_, attach::Error>`; with a `_`, only a kill
/// takes effect.
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

/// The failure that a test requested.
#[cfg(feature = "fault-points")]
#[derive(Debug, thiserror::Error)]
#[error("step {step} fails, because PODWIRE_FAULT requests it")]
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
    // This does not return: the signal is delivered when the system call ends.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::Signal::SIGKILL);
    Ok(())
}
