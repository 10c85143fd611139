use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::sys::stat::Mode;

use super::*;

fn refused(path: &Path) -> NetnsError {
    Netns::open(path).unwrap_err()
}

#[test]
fn a_path_where_nothing_is_is_absent() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gone");
    assert_eq!(refused(&path), NetnsError::Absent { path: path.clone() });
    // Nor can anything be below a file.
    std::fs::write(&path, "").unwrap();
    let below = path.join("ns");
    assert_eq!(
        refused(&below),
        NetnsError::Absent {
            path: below.clone()
        }
    );
}

#[test]
fn what_is_not_a_network_namespace_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    std::fs::write(at("file"), "").unwrap();
    // Nobody writes into it: to open it for reading would wait.
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    let cases = [
        (at("file"), "a plain file"),
        (directory.path().to_owned(), "a directory"),
        (at("fifo"), "a fifo"),
        (at("socket"), "a socket"),
        ("/dev/null".into(), "a device"),
        ("/proc/self/status".into(), "a plain file"),
        ("/proc/self/ns/mnt".into(), "a mount namespace"),
        ("/proc/self/ns/pid".into(), "a PID namespace"),
        ("/proc/self/ns/user".into(), "a user namespace"),
        ("/proc/self/ns/uts".into(), "a UTS namespace"),
        ("/proc/self/ns/ipc".into(), "an IPC namespace"),
    ];
    for (path, found) in cases {
        let error = refused(&path);
        assert_eq!(
            error,
            NetnsError::NotANamespace {
                path: path.clone(),
                found
            }
        );
        assert_eq!(
            error.to_string(),
            format!("{} is {found}, not a network namespace", path.display())
        );
    }
}

#[test]
fn the_callers_own_namespace_is_refused_by_whatever_path() {
    on_own_thread(|| {
        let own = File::open("/proc/thread-self/ns/net").unwrap();
        for path in [PathBuf::from("/proc/thread-self/ns/net"), path_of(&own)] {
            assert_eq!(refused(&path), NetnsError::OwnNamespace { path });
        }
    });
}

#[test]
fn two_paths_to_one_namespace_have_one_id() {
    let (one, other) = (Pod::new(), Pod::new());
    let again = Netns::open(path_of(&one.handle)).unwrap();
    assert_eq!(again.id(), one.netns.id());
    assert_ne!(again.id(), other.netns.id());
}

#[test]
fn a_namespace_lives_as_long_as_it_is_held_open() {
    let Pod { handle, netns } = Pod::new();
    let path = path_of(&handle);
    drop(handle);
    assert_eq!(refused(&path), NetnsError::Absent { path });
    // Entered after its last other handle has gone.
    let home = ns::Home::of_this_thread().unwrap();
    home.visit(&netns, || ()).unwrap();
}
