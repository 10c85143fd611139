//! The seccomp filters, made of the lists of [`super::syscalls`].
//!
//! Two are installed, and the kernel obeys the stricter. One lets through what is on the list and
//! answers ENOSYS to the rest: that is how a kernel without the call answers, so a newer libc falls
//! back to an older call and the node goes on working. The other ends the process at calls that no
//! version of podwire or libc would make, and by which an intruder would go on.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::{LockdownError, syscalls};
use crate::config::Seccomp;

/// Installs the filters for this thread and those that it will start.
pub(super) fn install(wanted: Seccomp) -> Result<Seccomp, LockdownError> {
    let Ok(arch) = TargetArch::try_from(std::env::consts::ARCH) else {
        tracing::warn!(
            arch = std::env::consts::ARCH,
            "no seccomp filter: none is known for this architecture"
        );
        return Ok(Seccomp::Off);
    };
    let unlisted = match wanted {
        Seccomp::Enforce => SeccompAction::Errno(nix::libc::ENOSYS.unsigned_abs()),
        Seccomp::Log => SeccompAction::Log,
        Seccomp::Off => return Ok(Seccomp::Off),
    };
    // The last one has to be installed while seccomp(2) itself is still let through.
    for program in [
        fatal(wanted, arch)?,
        build(syscalls::listed()?, unlisted, SeccompAction::Allow, arch)?,
    ] {
        seccompiler::apply_filter_all_threads(&program)?;
    }
    Ok(wanted)
}

fn fatal(wanted: Seccomp, arch: TargetArch) -> Result<BpfProgram, LockdownError> {
    let action = match wanted {
        Seccomp::Enforce => SeccompAction::KillProcess,
        Seccomp::Log | Seccomp::Off => SeccompAction::Log,
    };
    build(syscalls::fatal()?, SeccompAction::Allow, action, arch)
}

fn build(
    rules: syscalls::Rules,
    unmatched: SeccompAction,
    matched: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, LockdownError> {
    let filter = SeccompFilter::new(rules, unmatched, matched, arch)?;
    Ok(filter.try_into()?)
}
