//! The seccomp filters, built from the lists in [`super::syscalls`].
//!
//! There are two, and the stricter answer counts. One allows the listed calls and answers ENOSYS to
//! all others, as a kernel without the call does, so a newer libc falls back to an older call and
//! the node keeps working. The other kills the process at calls that no version of podwire or libc
//! makes, and that an intruder needs.

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

use super::{Calls, LockdownError, Seccomp, syscalls};

/// Installs the filters for this thread and those that it will start.
pub(super) fn install(wanted: Seccomp, calls: Calls) -> Result<Seccomp, LockdownError> {
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
    // The last filter is installed while seccomp(2) itself is still allowed.
    for program in [
        fatal(wanted, calls, arch)?,
        build(
            syscalls::listed(calls)?,
            unlisted,
            SeccompAction::Allow,
            arch,
        )?,
    ] {
        seccompiler::apply_filter_all_threads(&program)?;
    }
    Ok(wanted)
}

fn fatal(wanted: Seccomp, calls: Calls, arch: TargetArch) -> Result<BpfProgram, LockdownError> {
    let action = match wanted {
        Seccomp::Enforce => SeccompAction::KillProcess,
        Seccomp::Log | Seccomp::Off => SeccompAction::Log,
    };
    build(syscalls::fatal(calls)?, SeccompAction::Allow, action, arch)
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
