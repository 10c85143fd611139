//! The real-time priority of the thread that creates links (docs/decisions/0022).

use nix::errno::Errno;
use nix::libc;

/// The lowest: above every ordinary thread, below everything that was made real-time on purpose.
const PRIORITY: libc::c_int = 1;

/// The calling thread's real-time priority, which [`Netlink::start`](super::Netlink::start) passes
/// to the thread that creates links and to no other.
#[derive(Debug)]
pub struct RealTime(());

impl RealTime {
    /// Acquires it, which requires CAP_SYS_NICE or an RLIMIT_RTPRIO of 1.
    ///
    /// # Errors
    /// EPERM if it is not permitted, even by its control group (CONFIG_RT_GROUP_SCHED).
    pub fn enter() -> nix::Result<RealTime> {
        schedule(libc::SCHED_RR, PRIORITY).map(RealTime)
    }

    /// Makes the calling thread an ordinary one again; threads that it started meanwhile keep the
    /// priority.
    pub(super) fn leave(self) -> nix::Result<()> {
        schedule(libc::SCHED_OTHER, 0)
    }
}

/// `sched_setscheduler(2)` for the calling thread; by its number, because musl's function does
/// nothing.
#[allow(unsafe_code, reason = "sched_setscheduler(2) has no safe wrapper")]
fn schedule(policy: libc::c_int, sched_priority: libc::c_int) -> nix::Result<()> {
    let parameters = libc::sched_param { sched_priority };
    // SAFETY: `parameters` is a whole sched_param that outlives the call, which only reads it
    // (kernel/sched/syscalls.c);
    // 0 is the calling thread.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            0,
            policy,
            &raw const parameters,
        )
    };
    Errno::result(result).map(drop)
}
