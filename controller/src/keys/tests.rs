use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use podwire_daemon::output::Format;
use podwire_tests::schema::assert_valid;

use super::*;

fn args(directory: &Path, servers: &str, chassis: &[&str]) -> KeysArgs {
    KeysArgs {
        directory: directory.to_owned(),
        servers: servers
            .split_terminator(',')
            .map(|host| host.parse().unwrap())
            .collect(),
        chassis: chassis.iter().map(|it| it.parse().unwrap()).collect(),
        days: 365,
        renew: false,
        format: OutputArgs {
            output: Format::Text,
        },
    }
}

/// Keys for a machine with the databases and two nodes.
fn made() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let nodes = ["node-a=3f0e", "node-b=\"0a1b\""];
    make(&args(directory.path(), "192.0.2.1,ovn.example", &nodes)).unwrap();
    directory
}

/// All files, by name.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap();
    let files = entries.flat_map(|entry| {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => contents(&path),
            false => BTreeMap::from([(path.clone(), fs::read(&path).unwrap())]),
        }
    });
    files.collect()
}

/// The places whose keys a run has replaced.
fn changed(directory: &Path, run: impl FnOnce()) -> Vec<String> {
    let before = contents(directory);
    run();
    let after = contents(directory);
    let keys = after
        .iter()
        .filter(|(path, now)| path.ends_with("tls.key") && before.get(*path) != Some(*now));
    let places = keys.map(|(path, _)| path.parent().unwrap().strip_prefix(directory).unwrap());
    places.map(|place| place.display().to_string()).collect()
}

#[test]
fn a_database_believes_its_own_clients_and_no_other() {
    let directory = made();
    let issuer = |place: &str| {
        let keys = keys(&directory.path().join(place));
        let [own, ca] = keys.inspect().map(|(_, certificate)| certificate.unwrap());
        assert_eq!(own.issuer, ca.subject);
        assert!(keys.check().is_ok());
        own.issuer
    };
    assert_eq!(issuer("northbound"), issuer("controller"));
    assert_eq!(issuer("southbound"), issuer("chassis/node-a"));
    assert_ne!(issuer("northbound"), issuer("southbound"));
    let own = |place: &str| keys(&directory.path().join(place)).own().unwrap();
    assert_eq!(own("chassis/node-b").common_name.as_deref(), Some("0a1b"));
    assert_eq!(own("chassis/node-b").is_servers, Some(false));
    let server = own("southbound");
    assert_eq!(server.addresses, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(
        (server.names, server.is_servers),
        (vec!["ovn.example".to_owned()], Some(true))
    );
}

#[test]
fn only_the_owner_reads_private_keys() {
    let directory = made();
    for path in contents(directory.path()).into_keys() {
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let is_key = path.extension().is_some_and(|it| it == "key");
        assert_eq!(
            mode,
            if is_key { 0o600 } else { 0o644 },
            "{}",
            path.display()
        );
    }
    let ca = fs::metadata(directory.path().join("ca")).unwrap();
    assert_eq!(ca.permissions().mode() & 0o777, 0o700);
}

#[test]
fn a_second_run_needs_no_options_and_changes_nothing() {
    let directory = made();
    let before = contents(directory.path());
    let said = make(&args(directory.path(), "", &[])).unwrap();
    assert_eq!(contents(directory.path()), before);
    let text: String = said.iter().map(ToString::to_string).collect();
    assert!(
        text.contains("chassis/node-a: kept: CN=3f0e, valid to "),
        "{text}"
    );
    assert_eq!(text.lines().count(), 5, "{text}");
    assert_valid("controllerKeys", &serde_json::json!(said));
}

#[test]
fn only_what_has_to_change_is_signed_again() {
    let directory = made();
    let path = directory.path();
    let run = |servers: &str, chassis: &[&str]| {
        changed(path, || drop(make(&args(path, servers, chassis)).unwrap()))
    };
    assert_eq!(run("192.0.2.1", &[]), ["northbound", "southbound"]);
    assert_eq!(run("", &["node-b=other"]), ["chassis/node-b"]);
    assert_eq!(run("", &["node-c=third"]), ["chassis/node-c"]);
    fs::copy(
        path.join("controller/tls.key"),
        path.join("chassis/node-a/tls.key"),
    )
    .unwrap();
    assert_eq!(run("", &[]), ["chassis/node-a"]);
    fs::write(path.join("northbound/ca.crt"), "").unwrap();
    assert_eq!(run("", &[]), ["northbound"]);
    let all = KeysArgs {
        renew: true,
        ..args(path, "", &[])
    };
    assert_eq!(changed(path, || drop(make(&all).unwrap())).len(), 6);
}

#[test]
fn a_certificate_with_less_than_a_third_of_its_time_left_is_renewed() {
    let directory = made();
    let wanted = wanted(&args(directory.path(), "", &[])).unwrap();
    let certificate = keys(&directory.path().join("controller")).own().unwrap();
    let days = |number: i64| {
        let at = certificate.not_before + jiff::SignedDuration::from_hours(24 * number);
        outdated(&wanted[2], &certificate, at)
    };
    assert_eq!(days(240), None);
    assert_eq!(days(250).as_deref(), Some("it had 115 days left"));
}

#[test]
fn without_a_ca_s_key_what_is_there_is_kept_and_nothing_is_signed() {
    let directory = made();
    let path = directory.path();
    fs::remove_file(path.join("ca/chassis.key")).unwrap();
    make(&args(path, "", &[])).unwrap();
    let before = contents(path);
    let error = make(&args(path, "", &["node-c=third"]))
        .unwrap_err()
        .to_string();
    assert!(error.contains("ca/chassis.key is missing"), "{error}");
    fs::remove_dir_all(path.join("ca")).unwrap();
    let error = make(&args(path, "", &[])).unwrap_err().to_string();
    assert!(error.contains("ca/controllers.crt is missing"), "{error}");
    assert!(contents(path).keys().all(|file| before.contains_key(file)));
}

#[test]
fn an_interrupted_first_run_is_begun_anew() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    fs::create_dir(path.join("ca")).unwrap();
    fs::write(path.join("ca/controllers.key"), "half").unwrap();
    make(&args(path, "192.0.2.1", &[])).unwrap();
    fs::remove_file(path.join("southbound/tls.key")).unwrap();
    let again = changed(path, || drop(make(&args(path, "", &[])).unwrap()));
    assert_eq!(again, ["southbound"]);
}

#[test]
fn what_is_wrong_with_a_run_is_named_and_nothing_is_signed() {
    let directory = made();
    let path = directory.path();
    let before = contents(path);
    let error = |args: &KeysArgs| make(args).unwrap_err().to_string();
    let empty = tempfile::tempdir().unwrap();
    let said = error(&args(empty.path(), "", &[]));
    assert!(said.starts_with("--server is missing"), "{said}");
    let said = error(&args(path, "", &["node-c=3f0e"]));
    assert!(
        said.contains("node-a and node-c have the same system-id, 3f0e"),
        "{said}"
    );
    let locked = files::lock(path).unwrap();
    let said = error(&args(path, "", &[]));
    assert!(
        said.contains("another podwire-controller keys is running"),
        "{said}"
    );
    drop(locked);
    assert_eq!(contents(path), before);
    fs::write(path.join("chassis/node-a/tls.crt"), "").unwrap();
    let said = error(&args(path, "", &[]));
    assert!(
        said.contains("name the node by --chassis node-a=SYSTEM-ID"),
        "{said}"
    );
    make(&args(path, "", &["node-a=3f0e"])).unwrap();
}

#[test]
fn machines_and_nodes_are_read_or_refused() {
    let host = |text: &str| text.parse::<Host>();
    assert_eq!(
        host("[2001:db8::1]"),
        Ok(Host::Address("2001:db8::1".parse().unwrap()))
    );
    assert_eq!(
        host("ovn.example"),
        Ok(Host::Name("ovn.example".to_owned()))
    );
    for wrong in ["", "a b", "0.0.0.0", "ssl:192.0.2.1:6641", "-a", "a..b"] {
        assert!(host(wrong).is_err(), "{wrong}");
    }
    let long = format!("node={}", "x".repeat(65));
    for wrong in [
        "", "node", "node=", "../x=1", ".x=1", "node=a b", "=id", &long,
    ] {
        assert!(wrong.parse::<Chassis>().is_err(), "{wrong}");
    }
}
