use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

const REQUEST: &[u8] = br#"{"version":1,"command":"DEL"}"#;

fn spool(directory: &tempfile::TempDir) -> Spool {
    Spool::open(&directory.path().join("agent.sock")).unwrap()
}

fn write(spool: &Spool) -> Name {
    let (before, after) = REQUEST.split_at(7);
    spool.write(&[before, after]).unwrap()
}

#[test]
fn what_is_written_is_read_back_in_order_of_time_until_it_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let spool = spool(&directory);
    let before = boottime();
    let [first, second] = [write(&spool), write(&spool)];
    assert_eq!(spool.names().unwrap(), [first.clone(), second.clone()]);
    let read = spool.read(&first).unwrap().unwrap();
    assert_eq!(read.request.get().as_bytes(), REQUEST);
    assert!(read.written >= before && read.written <= boottime());
    spool.remove(&first).unwrap();
    spool.remove(&first).unwrap();
    assert!(spool.read(&first).unwrap().is_none());
    assert_eq!(spool.names().unwrap(), [second]);
}

#[test]
fn directory_and_files_are_for_root_alone() {
    let directory = tempfile::tempdir().unwrap();
    let spool = spool(&directory);
    let name = write(&spool);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(spool.path()), 0o700);
    assert_eq!(mode(&spool.path().join(&name.0)), 0o600);
}

#[test]
fn a_missing_run_directory_is_made_for_root_alone() {
    let directory = tempfile::tempdir().unwrap();
    let run_dir = directory.path().join("podwire");
    Spool::open(&run_dir.join("agent.sock")).unwrap();
    assert_eq!(
        fs::metadata(&run_dir).unwrap().permissions().mode() & 0o777,
        0o700
    );
}

#[test]
fn directories_that_others_may_change_and_links_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent.sock");
    let set =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    drop(Spool::open(&socket).unwrap());
    let inner = directory.path().join(DIRECTORY);
    set(&inner, 0o750);
    assert!(matches!(
        Spool::open(&socket),
        Err(SpoolError::Dir(DirError::Unsafe { mode: 0o750, .. }))
    ));
    set(&inner, 0o700);
    set(directory.path(), 0o777);
    assert!(matches!(
        Spool::open(&socket),
        Err(SpoolError::Dir(DirError::Unsafe { mode: 0o777, .. }))
    ));
    set(directory.path(), 0o700);
    fs::remove_dir(&inner).unwrap();
    symlink("/tmp", &inner).unwrap();
    assert!(matches!(
        Spool::open(&socket),
        Err(SpoolError::Dir(DirError::Io { step: "open", .. }))
    ));
}

#[test]
fn a_full_spool_takes_no_more_and_says_how_full_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let spool = spool(&directory);
    for number in 0..MAX_ENTRIES {
        fs::write(spool.path().join(format!("{number}{SUFFIX}")), b"").unwrap();
    }
    let full = spool.write(&[REQUEST]).unwrap_err();
    assert!(
        matches!(
            full,
            SpoolError::Full {
                entries: MAX_ENTRIES,
                ..
            }
        ),
        "{full}"
    );

    for file in fs::read_dir(spool.path()).unwrap().flatten() {
        fs::remove_file(file.path()).unwrap();
    }
    let large = fs::File::create(spool.path().join(format!("0{SUFFIX}"))).unwrap();
    large.set_len(MAX_BYTES).unwrap();
    assert!(matches!(
        spool.write(&[REQUEST]),
        Err(SpoolError::Full {
            bytes: MAX_BYTES,
            ..
        })
    ));
    large.set_len(MAX_BYTES - REQUEST.len() as u64).unwrap();
    spool.write(&[REQUEST]).unwrap();
}

#[test]
fn what_is_no_spooled_request_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let spool = spool(&directory);
    let refusal = |content: &[u8]| {
        let name = Name(format!("1-1{SUFFIX}"));
        fs::write(spool.path().join(&name.0), content).unwrap();
        spool.read(&name).unwrap_err().to_string()
    };
    assert!(refusal(b"{\"format\":1").contains("1-1.del"));
    assert!(refusal(br#"{"format":2,"written":1,"request":{}}"#).contains("format is 2"));
    assert!(refusal(&vec![b' '; MAX_REQUEST + 2 * ENVELOPE]).contains("more than"));
    symlink("/etc/passwd", spool.path().join("2-2.del")).unwrap();
    assert!(matches!(
        spool.read(&Name("2-2.del".into())),
        Err(SpoolError::Dir(DirError::Io {
            errno: nix::errno::Errno::ELOOP,
            ..
        }))
    ));
    fs::create_dir(spool.path().join("3-3.del")).unwrap();
    assert!(
        spool
            .read(&Name("3-3.del".into()))
            .unwrap_err()
            .to_string()
            .contains("plain file")
    );
}

#[test]
fn what_a_killed_plugin_left_goes_once_no_plugin_can_be_writing_it() {
    let directory = tempfile::tempdir().unwrap();
    let spool = spool(&directory);
    let (old, new) = (
        format!("{:020}-1{UNFINISHED}", 0),
        format!("{:020}-1{UNFINISHED}", boottime()),
    );
    for name in [&old, &new] {
        fs::write(spool.path().join(name), b"{").unwrap();
    }
    let is_old = boottime() > ABANDONED;
    assert_eq!(spool.names().unwrap(), []);
    assert_eq!(spool.path().join(&old).exists(), !is_old);
    assert!(spool.path().join(&new).exists());
}
