//! `make conformance`: the conformance suite on podwire and, to see that it judges fairly, on the
//! reference plugins of Debian. Prints each plugin's table and writes the comparison into the
//! document that it is given as argument.

use std::io::Write;
use std::path::Path;
use std::process::{Command, ExitCode};

use cni_conformance::report::{comparison, summary, table};
use cni_conformance::{Kind, Report, Selection, Subject};
use podwire_tests::conformance::{judge, podwire};

const PLUGINS: &str = "/usr/lib/cni";

/// A reference plugin, its configuration, and what it needs on its host.
struct Reference {
    name: &'static str,
    kind: Kind,
    conf: &'static str,
    prepare: Option<&'static str>,
}

const REFERENCES: [Reference; 5] = [
    Reference {
        name: "bridge",
        kind: Kind::Interface,
        conf: r#"{"name": "pods", "type": "bridge", "bridge": "cni0", "isGateway": true, "ipam":
            {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}"#,
        prepare: None,
    },
    Reference {
        name: "ptp",
        kind: Kind::Interface,
        conf: r#"{"name": "pods", "type": "ptp", "ipam":
            {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}"#,
        prepare: None,
    },
    Reference {
        name: "macvlan",
        kind: Kind::Interface,
        conf: r#"{"name": "pods", "type": "macvlan", "master": "up0", "ipam":
            {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}"#,
        prepare: Some(
            "ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up",
        ),
    },
    Reference {
        name: "tuning",
        kind: Kind::Chained,
        conf: r#"{"name": "pods", "type": "tuning", "mac": "02:11:22:33:44:55", "mtu": 1400}"#,
        prepare: None,
    },
    Reference {
        name: "host-local",
        kind: Kind::Ipam,
        conf: r#"{"name": "pods", "type": "bridge", "ipam":
            {"type": "host-local", "subnet": "10.1.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}}"#,
        prepare: None,
    },
];

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("podwire-conformance: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether podwire breaks no MUST, and every case could be judged.
fn run() -> Result<bool, Box<dyn std::error::Error>> {
    let all = Selection::default();
    let mut reports = vec![("podwire", podwire(&all, |_| {})?)];
    show(&reports[0].1);
    for reference in &REFERENCES {
        let plugin = Path::new(PLUGINS).join(reference.name);
        let mut subject = Subject::new(plugin, reference.conf.as_bytes())?;
        subject.kind = reference.kind;
        subject.delegates &= reference.kind == Kind::Interface;
        subject.prepare = reference.prepare.map(str::to_owned);
        let report = judge(subject, &all, |_| {})?;
        show(&report);
        reports.push((reference.name, report));
    }
    let columns: Vec<(&str, &Report)> = reports.iter().map(|(name, it)| (*name, it)).collect();
    if let Some(path) = std::env::args_os().nth(1) {
        std::fs::write(&path, document(&columns)?)?;
    }
    let judged = reports.iter().all(|(_, report)| report.is_complete());
    Ok(reports[0].1.conforms() && judged)
}

fn show(report: &Report) {
    // A reader that has gone away must not keep the document from being written.
    let _ = writeln!(std::io::stdout(), "{}", table(report, false));
}

fn document(reports: &[(&str, &Report)]) -> Result<String, Box<dyn std::error::Error>> {
    const INTRODUCTION: &str = include_str!("introduction.md");
    let mut text = INTRODUCTION.to_owned();
    text.push_str(&format!(
        "podwire {}; bridge, ptp and macvlan (with host-local behind them), tuning (a chained \
         plugin) and host-local (for addresses) of containernetworking-plugins {}.\n\n",
        env!("CARGO_PKG_VERSION"),
        version_of("containernetworking-plugins")?,
    ));
    for (name, report) in reports {
        let speaks: Vec<&str> = report
            .speaks
            .iter()
            .map(|version| version.as_str())
            .collect();
        text.push_str(&format!(
            "- {name} speaks {}: {}\n",
            speaks.join(", "),
            summary(report)
        ));
    }
    text.push('\n');
    text.push_str(&comparison(reports));
    Ok(text)
}

/// The version of an installed Debian package.
fn version_of(package: &str) -> Result<String, std::io::Error> {
    let output = Command::new("dpkg-query")
        .args(["--show", "--showformat=${Version}", package])
        .output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
