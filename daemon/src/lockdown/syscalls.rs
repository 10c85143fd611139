//! The system calls that a daemon may make: those that the tests of agent, node role and controller
//! were seen to make under strace, and those that the same code makes on paths that tests don't
//! take (another architecture, another libc, an error).

use std::collections::BTreeMap;

use nix::libc;
use seccompiler::{BackendError, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

use super::Calls;

/// System calls and, for each, the arguments allowed; an empty list allows any.
pub(super) type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Allowed with any arguments.
const ANY_ARGUMENTS: &[libc::c_long] = &[
    // Files: journal, spool, records of addresses, pid files, /proc, configuration, tokens.
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_fcntl,
    libc::SYS_flock,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_mkdirat,
    libc::SYS_linkat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_umask,
    libc::SYS_getcwd,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_copy_file_range,
    // Sockets; for the families, see below.
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_shutdown,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    // Waiting and time.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_eventfd2,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_timerfd_gettime,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_futex,
    libc::SYS_futex_waitv,
    libc::SYS_restart_syscall,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    // Threads and the process itself.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_set_robust_list,
    libc::SYS_get_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_getparam,
    libc::SYS_sched_getscheduler,
    libc::SYS_getcpu,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_prlimit64,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Signals, and the spawner's end.
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_sigaltstack,
    libc::SYS_kill,
    libc::SYS_tgkill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_wait4,
    libc::SYS_waitid,
];

/// Older calls that newer architectures lack and glibc still makes on this one.
#[cfg(target_arch = "x86_64")]
const ANY_ARGUMENTS_OLD: &[libc::c_long] = &[
    libc::SYS_open,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_mkdir,
    libc::SYS_rmdir,
    libc::SYS_unlink,
    libc::SYS_rename,
    libc::SYS_link,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_select,
    libc::SYS_epoll_wait,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const ANY_ARGUMENTS_OLD: &[libc::c_long] = &[];

/// Calls that start a program, beside clone(2).
const START: &[libc::c_long] = &[
    libc::SYS_execve,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_fork,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
];

/// What ld.so calls in a program that starts, beyond the above.
const LOADER: &[libc::c_long] = &[
    libc::SYS_set_tid_address,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_arch_prctl,
];

/// Calls by which an intruder would take over another process, change the kernel or the mounts, or
/// become another user.
const FATAL: &[libc::c_long] = &[
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_open_tree,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_unshare,
    libc::SYS_setuid,
    libc::SYS_setgid,
    libc::SYS_setreuid,
    libc::SYS_setregid,
    libc::SYS_setresuid,
    libc::SYS_setresgid,
    libc::SYS_setgroups,
    libc::SYS_setfsuid,
    libc::SYS_setfsgid,
    libc::SYS_capset,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_sethostname,
];

#[cfg(target_arch = "x86_64")]
const FATAL_OLD: &[libc::c_long] = &[libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_kexec_file_load];
#[cfg(not(target_arch = "x86_64"))]
const FATAL_OLD: &[libc::c_long] = &[];

/// asm-generic/ioctls.h and linux/sockios.h: what Rust's standard library and libc use.
const IOCTLS: [u64; 5] = [
    0x8933, // SIOCGIFINDEX
    0x5421, // FIONBIO
    0x5451, // FIOCLEX
    0x541b, // FIONREAD
    0x5401, // TCGETS, of isatty(3)
];

/// What the agent's netns module uses besides.
const IOCTLS_OF_NAMESPACES: [u64; 2] = [
    0xb703, // NS_GET_NSTYPE
    0x8946, // SIOCETHTOOL
];

/// OVSDB and other local sockets; netlink, also of libc's resolver; the Kubernetes API, remote
/// databases and pages.
const FAMILIES: [libc::c_int; 4] = [
    libc::AF_UNIX,
    libc::AF_NETLINK,
    libc::AF_INET,
    libc::AF_INET6,
];

/// Only a thread's name is set; reading is harmless. glibc names mappings by PR_SET_VMA.
const PRCTLS: [libc::c_int; 5] = [
    libc::PR_SET_NAME,
    libc::PR_GET_NAME,
    libc::PR_GET_NO_NEW_PRIVS,
    libc::PR_CAPBSET_READ,
    libc::PR_SET_VMA,
];

const WRITE: u64 = libc::PROT_WRITE.unsigned_abs() as u64;
const EXEC: u64 = libc::PROT_EXEC.unsigned_abs() as u64;
const THREAD: u64 = libc::CLONE_THREAD.unsigned_abs() as u64;
const NEW_NAMESPACES: u64 = (libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET)
    .unsigned_abs() as u64;

/// The allowed calls. clone3(2) is not one: its flags are in memory, which a filter can't read, and
/// on ENOSYS libc falls back to clone(2).
pub(super) fn listed(calls: Calls) -> Result<Rules, BackendError> {
    let mut rules = any_arguments(&[ANY_ARGUMENTS, ANY_ARGUMENTS_OLD]);
    if calls == Calls::Programs {
        rules.extend(any_arguments(&[START, LOADER]));
    }
    // A loop would lose the conditional ones if one of them were also in a list above.
    let mut ioctls = IOCTLS.to_vec();
    let mut families = FAMILIES.to_vec();
    if calls == Calls::Namespaces {
        ioctls.extend(IOCTLS_OF_NAMESPACES);
        // Gratuitous ARP and NA, and DHCP for pods.
        families.push(libc::AF_PACKET);
        let network = libc::CLONE_NEWNET.unsigned_abs().into();
        rules.insert(libc::SYS_setns, vec![equal(1, network)?]);
    }
    rules.insert(libc::SYS_ioctl, each(ioctls, |request| equal(1, request))?);
    rules.insert(
        libc::SYS_socket,
        each(families, |family| equal(0, family.unsigned_abs().into()))?,
    );
    rules.insert(
        libc::SYS_prctl,
        each(PRCTLS, |option| equal(0, option.unsigned_abs().into()))?,
    );
    let clone = match calls {
        Calls::Programs => has(0, NEW_NAMESPACES, 0)?,
        Calls::Common | Calls::Namespaces => has(0, THREAD, THREAD)?,
    };
    rules.insert(libc::SYS_clone, vec![clone]);
    // Real-time priority may be given up, but not acquired.
    let ordinary = libc::SCHED_OTHER.unsigned_abs().into();
    rules.insert(libc::SYS_sched_setscheduler, vec![equal(1, ordinary)?]);
    // Memory is writable or executable, never both (as systemd's MemoryDenyWriteExecute=).
    rules.insert(libc::SYS_mmap, vec![has(2, EXEC, 0)?, has(2, WRITE, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![has(2, EXEC, 0)?]);
    Ok(rules)
}

/// The calls that kill the process.
pub(super) fn fatal(calls: Calls) -> Result<Rules, BackendError> {
    let mut rules = any_arguments(&[FATAL, FATAL_OLD]);
    if calls != Calls::Programs {
        rules.extend(any_arguments(&[START]));
        // A new process.
        rules.insert(libc::SYS_clone, vec![has(0, THREAD, 0)?]);
    }
    Ok(rules)
}

fn any_arguments(lists: &[&[libc::c_long]]) -> Rules {
    let calls = lists.concat().into_iter();
    calls.map(|call| (call, Vec::new())).collect()
}

fn each<T>(
    values: impl IntoIterator<Item = T>,
    rule: impl Fn(T) -> Result<SeccompRule, BackendError>,
) -> Result<Vec<SeccompRule>, BackendError> {
    values.into_iter().map(rule).collect()
}

/// Matches if the argument has this value.
fn equal(argument: u8, value: u64) -> Result<SeccompRule, BackendError> {
    condition(argument, SeccompCmpOp::Eq, value)
}

/// Matches if the bits of `mask` have this value in the argument.
fn has(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, BackendError> {
    condition(argument, SeccompCmpOp::MaskedEq(mask), value)
}

/// The kernel reads these as 32 bits, except for clone's flags; the ones used here are in the lower
/// half too.
fn condition(argument: u8, compare: SeccompCmpOp, value: u64) -> Result<SeccompRule, BackendError> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value)?;
    SeccompRule::new(vec![condition])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_is_both_let_through_and_fatal() {
        for calls in [Calls::Common, Calls::Namespaces, Calls::Programs] {
            let (listed, fatal) = (listed(calls).unwrap(), fatal(calls).unwrap());
            let both = listed.keys().filter(|call| fatal.contains_key(call));
            let both: Vec<_> = both.collect();
            // Threads are allowed, processes are fatal.
            let expected = [&libc::SYS_clone];
            let expected = match calls {
                Calls::Programs => &expected[..0],
                Calls::Common | Calls::Namespaces => &expected,
            };
            assert_eq!(both, expected, "{calls:?}");
        }
    }
}
