//! One entry point for each thing that podwire reads from outside. The fuzz targets call them with
//! what libFuzzer makes up; agent/tests/corpus.rs calls them, in every test run, with the inputs
//! that are kept in `corpus/`.
//!
//! Each holds more than "no panic": what was accepted is accepted again when it is written out, and
//! what a limit is for stays within it.

#![allow(
    dead_code,
    reason = "each fuzz target includes this file and calls one of the functions"
)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::Path;
use std::sync::LazyLock;

use futures_util::FutureExt as _;
use podwire::attach::Call;
use podwire::config::Format;
use podwire::ipam::subnet::SubnetSpec;
use podwire::journal::Entry;
use podwire::pods::pod_networks::PodNetworks;
use podwire::pods::sources::manifest;
use podwire::pods::{
    self, Attaching, NetworkKey, bandwidth, ovn, ovn_interfaces, ovn_network, ovn_routes,
    pod_networks,
};
use podwire::ports;
use podwire_apiserver::kubeconfig;
use podwire_cni::env;
use podwire_cni::spec::{CniResult, CniVersion, Command, NetConf, Preamble, SpecError};
use podwire_cni::spool::Spooled;
use podwire_cni::wire::{self, http};
use podwire_ovs::replica::{Db, MonitorMethod, Schema};
use podwire_ovs::vswitch;
use podwire_ovs::wire::{Event, Limits, Session};

/// An error ends up in a pod's event and in the log; what was refused is shown in it, but not all
/// of it.
const LONGEST_ERROR: usize = 4096;

/// What a runtime passes: the configuration, then, each after a NUL as in /proc/PID/environ, the
/// variables.
pub(crate) fn cni(data: &[u8]) {
    let mut parts = data.split(|byte| *byte == 0);
    let stdin = parts.next().unwrap_or_default();
    if let Ok(text) = std::str::from_utf8(stdin) {
        for command in [Command::Add, Command::Del, Command::Gc] {
            let _ = Preamble::parse(text, command);
        }
    }
    match NetConf::parse(stdin) {
        Ok(conf) => {
            conf_is_usable(&conf);
            NetConf::parse_for_del(stdin).expect("DEL takes whatever ADD took");
        }
        Err(error) => shown(&error),
    }
    if let Ok(conf) = NetConf::parse_for_del(stdin) {
        conf_is_usable(&conf);
    }
    if let Ok(result) = CniResult::from_json(stdin) {
        result_survives(&result);
    }
    SpecError::from_json(stdin);
    let variables = parts.map(|part| {
        let at = part
            .iter()
            .position(|byte| *byte == b'=')
            .unwrap_or(part.len());
        let (name, value) = (&part[..at], part.get(at + 1..).unwrap_or_default());
        (
            String::from_utf8_lossy(name).into_owned(),
            OsString::from_vec(value.to_vec()),
        )
    });
    match env::parse(variables) {
        Ok(invocation) => {
            let _ = env::Args::parse(&invocation.args).map(|args| args.iter().count());
            assert_eq!(invocation.clone().checked().as_ref(), Ok(&invocation));
        }
        Err(error) => shown(&error),
    }
}

fn conf_is_usable(conf: &NetConf) {
    conf.requested_ips();
    conf.requested_mac();
    conf.valid_attachments();
    assert!(
        !conf.name.contains(['/', '\0']),
        "a name becomes part of a path"
    );
    match conf.prev_result() {
        Ok(Some(result)) => result_survives(&result),
        Ok(None) => {}
        Err(error) => shown(&error),
    }
}

/// What is written in a version is read back; 1.1.0 loses nothing.
fn result_survives(result: &CniResult) {
    for version in CniVersion::ALL {
        let text = result.to_json(version);
        let again = CniResult::from_json(text.as_bytes())
            .unwrap_or_else(|error| panic!("{version:?}: {error}: {text}"));
        assert_eq!(again.to_json(version), text);
    }
}

/// What the plugin and the agent tell each other: a request's body, and a reply's head.
pub(crate) fn wire(data: &[u8]) {
    match wire::Request::decode(data) {
        Ok(request) => {
            let again = wire::Request::decode(&request.encode()).expect("what we write we read");
            assert_eq!(again.invocation, request.invocation);
            assert_eq!(again.config.get(), request.config.get());
            assert_eq!(again.traceparent, request.traceparent);
            assert_eq!(again.takes_stderr, request.takes_stderr);
        }
        Err(error) => shown(&error),
    }
    if let Err(refused) = Call::parse(data) {
        shown(&refused.error);
    }
    match http::head(data) {
        Ok(Some(head)) => {
            assert!(head.body_at <= data.len());
            let _ = head.is_whole(data);
            for cut in 0..head.body_at {
                assert!(
                    matches!(http::head(&data[..cut]), Ok(None)),
                    "a head is whole only at its end"
                );
            }
        }
        Ok(None) => {}
        Err(error) => shown(&error),
    }
}

/// The first byte chooses the annotation; the text is the rest.
pub(crate) fn annotations(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else {
        return;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    let names = [
        pod_networks::ANNOTATION,
        ovn::ANNOTATION,
        ovn_interfaces::ANNOTATION,
        ovn_interfaces::LATER_ANNOTATION,
        ovn_network::ANNOTATION,
        ovn_network::LATER_ANNOTATION,
        ovn_routes::ANNOTATION,
        "kubernetes.io/ingress-bandwidth",
        "kubernetes.io/egress-bandwidth",
    ];
    match usize::from(*choice) % (names.len() + 1) {
        0 => {
            if let Some(networks) = said(PodNetworks::parse(text)) {
                for key in networks.keys() {
                    said(networks.interface(&key));
                }
                said(networks.primary());
            }
        }
        1 => drop(said(ovn::parse(text))),
        2 | 3 => {
            if let Some(mut interfaces) =
                said(ovn_interfaces::parse(ovn_interfaces::ANNOTATION, text))
            {
                said(ovn_routes::apply(text, &mut interfaces));
            }
        }
        4 | 5 => drop(said(ovn_network::parse(ovn_network::ANNOTATION, text))),
        _ => {}
    }
    // One annotation, or (NUL between them) as many as there are.
    let chosen = usize::from(*choice) % (names.len() + 1);
    let annotations: BTreeMap<String, String> = match names.get(chosen) {
        Some(name) => BTreeMap::from([((*name).to_owned(), text.to_owned())]),
        None => names
            .iter()
            .zip(text.split('\0'))
            .map(|(name, text)| ((*name).to_owned(), text.to_owned()))
            .collect(),
    };
    said(bandwidth::parse(&annotations));
    for network in ["default", "blue/net", "blue/net/1"] {
        let network: NetworkKey = network.parse().expect("a key");
        for (ifname, attached) in [("eth0", &[][..]), ("net1", std::slice::from_ref(&network))] {
            let attaching = Attaching {
                network: &network,
                ifname,
                attached,
            };
            said(pods::interfaces(&annotations, &attaching));
        }
    }
    if let Ok(key) = text.parse::<NetworkKey>() {
        assert_eq!(key.to_string().parse(), Ok(key));
    }
}

fn said<T, E: std::fmt::Display>(parsed: Result<T, E>) -> Option<T> {
    parsed.inspect_err(|error| shown(error)).ok()
}

fn shown(error: &impl std::fmt::Display) {
    let text = error.to_string();
    assert!(
        !text.is_empty() && text.len() < LONGEST_ERROR,
        "{} bytes",
        text.len()
    );
}

/// A server's bytes. The first one says in which pieces they come; each notification's parameters
/// go to a replica of the tables that podwire watches, under the schema of a real server.
pub(crate) fn ovsdb(data: &[u8]) {
    let Some((pieces, stream)) = data.split_first() else {
        return;
    };
    let limits = Limits {
        message_bytes: 1 << 16,
        depth: 32,
        unsent_bytes: 1 << 12,
    };
    let piece = usize::from(*pieces).max(1);
    assert_eq!(
        heard(stream, piece, limits),
        heard(stream, stream.len().max(1), limits),
        "pieces of {piece}"
    );
    let mut text = stream
        .split(|byte| *byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok());
    for method in [MonitorMethod::Conditional, MonitorMethod::Plain] {
        let mut db = Db::new(&vswitch::tables()).with_limit(1 << 20);
        db.set_schema(schema())
            .expect("the real schema has every table that we watch");
        let _ = db.load(method, text.next().unwrap_or("{}"));
        for update in text.by_ref() {
            let _ = db.apply(method, update);
        }
        is_consistent(&db);
    }
    if let Ok(text) = std::str::from_utf8(stream) {
        let _ = Schema::parse(text);
    }
}

/// What a session makes of a stream that comes in pieces.
fn heard(stream: &[u8], piece: usize, limits: Limits) -> Vec<String> {
    let mut session = Session::new(limits);
    session.request("echo", |params| params.extend_from_slice(b"[]"));
    let mut heard = Vec::new();
    for chunk in stream.chunks(piece) {
        session.feed(chunk);
        loop {
            match session.poll() {
                Ok(Some(event)) => heard.push(match event {
                    Event::Reply { id, outcome } => format!("{id} {outcome:?}"),
                    Event::Notification { method, params } => format!("{method} {params}"),
                    Event::Answered => "answered".to_owned(),
                }),
                Ok(None) => break,
                Err(error) => {
                    heard.push(error.to_string());
                    return heard;
                }
            }
        }
    }
    assert!(session.outgoing().len() <= (1 << 12) + (1 << 16) + 64);
    heard
}

fn is_consistent(db: &Db) {
    for row in db.rows("Interface") {
        assert!(db.row("Interface", row.uuid()).is_some());
        let _ = row.to_string();
    }
    for table in vswitch::tables() {
        assert_eq!(db.rows(table.name).count(), db.len(table.name));
    }
}

/// Of the tables and columns that are watched, as ovsdb-server 3.1 tells them.
fn schema() -> &'static Schema {
    static SCHEMA: LazyLock<Schema> =
        LazyLock::new(|| Schema::parse(include_str!("vswitch-columns.json")).expect("a schema"));
    &SCHEMA
}

/// What the operator writes (a configuration file, a `--subnet`), and what podwire wrote down and
/// finds again: a record of the run directory, an external_ids value.
pub(crate) fn config(data: &[u8]) {
    if let Ok(entry) = serde_json::from_slice::<Entry>(data) {
        let text = serde_json::to_vec(&entry).expect("an entry has only strings and numbers");
        assert_eq!(
            serde_json::from_slice::<Entry>(&text).expect("what we write we read"),
            entry
        );
    }
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    for format in [Format::Own, Format::OvnK8s, Format::Microshift] {
        said(format.check(Path::new("/etc/podwire/podwire.toml"), text));
    }
    match text.parse::<SubnetSpec>() {
        Ok(spec) => {
            assert!(spec.subnet().contains(&spec.gateway()));
            assert!(
                spec.reserved(spec.gateway()).is_some(),
                "the gateway is no pod's"
            );
            spec.reserved(spec.subnet().network());
            spec.reserved(spec.subnet().broadcast());
        }
        Err(error) => shown(&error),
    }
    let ids = BTreeMap::from([("ip_addresses".to_owned(), text.to_owned())]);
    ports::addresses(&ids).for_each(drop);
}

/// A file of the spool of DELs, which root alone can write to; but a plugin of another version may
/// have.
pub(crate) fn spool(data: &[u8]) {
    let spooled = match Spooled::parse(data) {
        Ok(spooled) => spooled,
        Err(problem) => return shown(&problem),
    };
    match Call::parse(spooled.request.get().as_bytes()) {
        Ok(call) => assert!(
            !call.key.container_id.contains('/') && !call.key.ifname.contains('/'),
            "a key becomes part of a path"
        ),
        Err(refused) => shown(&refused.error),
    }
}

/// A kubeconfig, as an operator or an installer writes it; the files that it names are not looked
/// at.
pub(crate) fn kubeconfig(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        let checked = kubeconfig::check(text).now_or_never();
        if let Err(error) = checked.expect("nothing is waited for") {
            shown(&error);
        }
    }
}

/// Manifests of pods in a directory.
pub(crate) fn manifest(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    match manifest::parse(text) {
        Ok(pods) => {
            for (name, pod) in pods {
                let annotations = pod.annotations.len();
                assert!(annotations <= 16, "{name}: {annotations} annotations kept");
            }
        }
        Err(problem) => {
            assert!(!problem.contains('\n'), "one line in the log");
            shown(&problem);
        }
    }
}
