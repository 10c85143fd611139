use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn key(container: &str) -> AttachmentKey {
    AttachmentKey {
        network: "pods".into(),
        container_id: container.into(),
        ifname: "eth0".into(),
    }
}

fn entry(container: &str) -> Entry {
    Entry::new(
        key(container),
        Some("default/web".into()),
        "/run/netns/a".into(),
        "br-int".into(),
    )
}

fn path(journal: &Journal, container: &str, state: State) -> PathBuf {
    journal
        .directory()
        .path()
        .join(name(&key(container), state))
}

#[test]
fn an_entry_is_found_in_each_state_and_gone_once_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let entry = entry("abc");
    journal.begin(&entry).unwrap();
    assert_eq!(
        journal.find(&entry.key).unwrap(),
        Some((State::Adding, entry.clone()))
    );
    journal
        .advance(&entry.key, State::Adding, State::Live)
        .unwrap();
    assert_eq!(
        journal.find(&entry.key).unwrap(),
        Some((State::Live, entry.clone()))
    );
    journal
        .advance(&entry.key, State::Live, State::Deleting)
        .unwrap();
    assert_eq!(journal.entries().0, [(State::Deleting, entry.clone())]);
    journal.forget(&entry.key).unwrap();
    journal.forget(&entry.key).unwrap();
    assert_eq!(journal.find(&entry.key).unwrap(), None);
}

#[test]
fn an_add_that_was_undone_takes_no_living_attachments_entry_along() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let living = entry("abc");
    journal.begin(&living).unwrap();
    journal
        .advance(&living.key, State::Adding, State::Live)
        .unwrap();
    journal.begin(&living).unwrap();
    journal.abandon(&living.key).unwrap();
    assert_eq!(journal.entries().0, [(State::Live, living)]);
}

#[test]
fn only_root_can_read_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal.begin(&entry("abc")).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(journal.directory().path()), 0o700);
    assert_eq!(mode(&path(&journal, "abc", State::Adding)), 0o600);
}

#[test]
fn container_ids_longer_than_a_file_name_still_have_an_entry_each() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let long = "a".repeat(400);
    let other = format!("{}b", "a".repeat(399));
    journal.begin(&entry(&long)).unwrap();
    journal.begin(&entry(&other)).unwrap();
    assert_eq!(journal.entries().0.len(), 2);
    assert_eq!(
        journal.find(&key(&long)).unwrap().unwrap().1.key,
        key(&long)
    );
}

#[test]
fn a_file_cut_short_is_reported_by_name_and_hides_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal.begin(&entry("good")).unwrap();
    fs::write(path(&journal, "bad", State::Live), b"{\"format\":1,").unwrap();
    let (entries, errors) = journal.entries();
    assert_eq!(entries.len(), 1);
    assert!(
        errors[0].to_string().contains("bad:eth0:pods.json"),
        "{}",
        errors[0]
    );
    assert!(journal.find(&key("bad")).is_err());
}

#[test]
fn a_link_in_place_of_an_entry_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let victim = dir.path().join("victim");
    fs::write(&victim, b"precious").unwrap();
    let path = path(&journal, "abc", State::Adding);
    let unfinished = path.with_added_extension("tmp");
    std::os::unix::fs::symlink(&victim, &unfinished).unwrap();
    assert!(journal.begin(&entry("abc")).is_err());
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    journal.begin(&entry("abc")).unwrap();
    assert!(!path.is_symlink(), "the link was replaced");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn an_entry_replaces_those_of_the_same_attachment_in_other_states() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let (old, new) = (entry("abc"), entry("abc"));
    assert!(old.since <= new.since);
    journal.write(&old, State::Deleting).unwrap();
    journal.begin(&new).unwrap();
    assert_eq!(journal.entries().0, [(State::Adding, new)]);
}

#[test]
fn what_a_killed_agent_had_half_written_goes_when_the_next_one_opens_the_journal() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let half = path(&journal, "abc", State::Adding).with_added_extension("tmp");
    fs::write(&half, b"{\"format\":1,").unwrap();
    assert_eq!(journal.find(&key("abc")).unwrap(), None);
    let journal = Journal::open(dir.path()).unwrap();
    assert!(!half.exists());
    assert!(journal.entries().1.is_empty());
}

#[test]
fn a_directory_that_was_removed_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let run_dir = dir.path().join("run");
    let journal = Journal::open(&run_dir).unwrap();
    fs::remove_dir_all(&run_dir).unwrap();
    assert!(journal.entries().0.is_empty());
    journal.confirm_writable().unwrap();
    journal.begin(&entry("abc")).unwrap();
    assert_eq!(Journal::open(&run_dir).unwrap().entries().0.len(), 1);
}
