//! A pod's network namespace: opened once, checked by its descriptor, and entered only to open a
//! socket in it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use super::NetnsError;

/// The path through which a thread names its own network namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// linux/magic.h; libc has no name for it.
const NSFS_MAGIC: FsType = FsType(0x6e73_6673);

/// Identifies a namespace for as long as it lives: two paths with the same id are the same
/// namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NetnsId {
    /// The device of nsfs.
    pub dev: u64,
    /// The namespace's inode; may be reused by a new namespace once this one is gone.
    pub ino: u64,
}

/// An open network namespace other than the agent's own. It lives at least as long as this value.
#[derive(Debug)]
pub struct Netns {
    path: PathBuf,
    fd: OwnedFd,
    id: NetnsId,
}

impl Netns {
    /// Opens the namespace that a runtime passed (CNI_NETNS).
    ///
    /// All checks use the descriptor, so what was checked is what will be used. "The agent's own"
    /// is the namespace of the calling thread. It may be owned by another user namespace.
    pub fn open(path: impl AsRef<Path>) -> Result<Netns, NetnsError> {
        let path = path.as_ref();
        let io = |step| {
            move |errno| NetnsError::Io {
                step,
                path: path.to_owned(),
                errno,
            }
        };
        // The path first, and the file behind it only once it is known to be a namespace: opening
        // an unknown file can block for ever (a fifo) or start a device.
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let handle = open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::ENOENT | Errno::ENOTDIR => NetnsError::Absent {
                path: path.to_owned(),
            },
            Errno::EACCES if path.starts_with("/proc") => NetnsError::OfProcess {
                path: path.to_owned(),
            },
            errno => io("open")(errno),
        })?;
        if fstatfs(&handle).map_err(io("identify"))?.filesystem_type() != NSFS_MAGIC {
            return Err(not_a_namespace(path, file_kind(&handle)));
        }
        let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC;
        let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
        let fd = open(same.as_str(), flags, Mode::empty()).map_err(io("open"))?;
        let kind = nstype(fd.as_fd()).map_err(io("identify"))?;
        if kind != CloneFlags::CLONE_NEWNET.bits() {
            return Err(not_a_namespace(path, nstype_name(kind)));
        }
        let id = id(fd.as_fd()).map_err(io("identify"))?;
        let own = open_own()
            .and_then(|own| self::id(own.as_fd()))
            .map_err(io("compare"))?;
        if id == own {
            return Err(NetnsError::OwnNamespace {
                path: path.to_owned(),
            });
        }
        Ok(Netns {
            path: path.to_owned(),
            fd,
            id,
        })
    }

    /// Its identity.
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// The path by which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl NetnsId {
    /// The namespace of the calling thread.
    ///
    /// # Errors
    /// /proc can't be read.
    pub fn own() -> Result<NetnsId, NetnsError> {
        open_own()
            .and_then(|own| id(own.as_fd()))
            .map_err(|errno| NetnsError::Io {
                step: "identify",
                path: OWN.into(),
                errno,
            })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The namespace in which a thread of this module belongs, and the way back.
#[derive(Debug)]
pub(super) struct Home(OwnedFd);

impl Home {
    /// The calling thread's namespace.
    pub(super) fn of_this_thread() -> nix::Result<Home> {
        open_own().map(Home)
    }

    /// Runs `inside` with the calling thread in the given namespace, and returns home.
    ///
    /// Only for opening sockets and sysctls: what is opened keeps the namespace, so the thread is
    /// away for about 10 µs. A thread that can't return would treat the pod's links as the host's;
    /// the process aborts instead.
    pub(super) fn visit<T>(&self, netns: &Netns, inside: impl FnOnce() -> T) -> nix::Result<T> {
        setns(netns.as_fd(), CloneFlags::CLONE_NEWNET)?;
        let way_back = WayBack(&self.0);
        let result = inside();
        drop(way_back);
        Ok(result)
    }
}

/// Returns home when dropped, so that a panic inside can't strand the thread.
struct WayBack<'a>(&'a OwnedFd);

impl Drop for WayBack<'_> {
    fn drop(&mut self) {
        if let Err(errno) = setns(self.0, CloneFlags::CLONE_NEWNET) {
            tracing::error!(%errno, "can't return to the host's network namespace; ending");
            std::process::abort();
        }
    }
}

fn open_own() -> nix::Result<OwnedFd> {
    open(OWN, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

fn id(fd: BorrowedFd<'_>) -> nix::Result<NetnsId> {
    let stat = fstat(fd)?;
    Ok(NetnsId {
        dev: stat.st_dev,
        ino: stat.st_ino,
    })
}

#[allow(
    unsafe_code,
    reason = "NS_GET_NSTYPE is an ioctl; no safe wrapper exists"
)]
fn nstype(fd: BorrowedFd<'_>) -> nix::Result<i32> {
    /// linux/nsfs.h: `_IO(0xb7, 0x3)`.
    const NS_GET_NSTYPE: nix::libc::Ioctl = 0xb703;
    // SAFETY: the descriptor is open for the length of the call, and this ioctl takes no argument
    // and touches no memory of ours (fs/nsfs.c, ns_ioctl): it returns the type as its value.
    Errno::result(unsafe { nix::libc::ioctl(fd.as_raw_fd(), NS_GET_NSTYPE) })
}

fn not_a_namespace(path: &Path, found: &'static str) -> NetnsError {
    NetnsError::NotANamespace {
        path: path.to_owned(),
        found,
    }
}

fn nstype_name(kind: i32) -> &'static str {
    match CloneFlags::from_bits_truncate(kind) {
        CloneFlags::CLONE_NEWNS => "a mount namespace",
        CloneFlags::CLONE_NEWUTS => "a UTS namespace",
        CloneFlags::CLONE_NEWIPC => "an IPC namespace",
        CloneFlags::CLONE_NEWPID => "a PID namespace",
        CloneFlags::CLONE_NEWUSER => "a user namespace",
        CloneFlags::CLONE_NEWCGROUP => "a cgroup namespace",
        _ => "a namespace of another type",
    }
}

fn file_kind(handle: &OwnedFd) -> &'static str {
    let mode = fstat(handle).map_or(0, |stat| stat.st_mode);
    match SFlag::from_bits_truncate(mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => "a plain file",
        SFlag::S_IFDIR => "a directory",
        SFlag::S_IFIFO => "a fifo",
        SFlag::S_IFSOCK => "a socket",
        SFlag::S_IFCHR | SFlag::S_IFBLK => "a device",
        _ => "some other file",
    }
}
