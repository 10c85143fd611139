//! An IPAM plugin that writes down how it was called, and answers what a case tells it to.
//!
//! It stands in CNI_PATH as a script whose interpreter is the suite's own program, so it finds its
//! directory by the script's path and needs nothing that the plugin under test should hand it.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::trouble::{Step, Trouble};

/// The type by which a configuration names it.
pub(crate) const TYPE: &str = "cni-conformance-ipam";
/// The argument that makes the suite's program the recorder.
pub const ARGUMENT: &str = "--as-recording-ipam";
/// The subnet that it gives addresses of.
pub(crate) const SUBNET: &str = "10.199.0";
/// A route of its results with a gateway of its own.
pub(crate) const ROUTE: &str = "198.51.100.0/24";
/// The name server of its results.
pub(crate) const NAME_SERVER: &str = "192.0.2.53";

/// A call that was written down.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Recorded {
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) stdin: String,
}

impl Recorded {
    pub(crate) fn verb(&self) -> &str {
        self.variable("CNI_COMMAND")
    }

    pub(crate) fn variable(&self, name: &str) -> &str {
        self.environment.get(name).map_or("", String::as_str)
    }
}

/// The recorder's directory, as a case sees it.
#[derive(Debug)]
pub(crate) struct Recorder(PathBuf);

impl Recorder {
    /// Puts the plugin and its directory below `parent`.
    pub(crate) fn install(parent: &Path, program: &Path) -> Result<Recorder, Trouble> {
        let directory = parent.join("ipam");
        for name in ["", "calls", "given", "answers"] {
            let path = directory.join(name);
            fs::create_dir(&path).step(|| format!("make {}", path.display()))?;
        }
        // The kernel reads no more than 255 bytes of a script's first line (binfmt_script).
        let interpreter = directory.join("x");
        symlink(program, &interpreter).step(|| "link the recorder")?;
        let script = directory.join(TYPE);
        fs::write(&script, format!("#!{} {ARGUMENT}\n", interpreter.display()))
            .and_then(|()| fs::set_permissions(&script, fs::Permissions::from_mode(0o755)))
            .step(|| format!("write {}", script.display()))?;
        Ok(Recorder(directory))
    }

    /// The directory for CNI_PATH.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// From now on it refuses a verb with this error.
    pub(crate) fn refuse(&self, verb: &str, code: u64, msg: &str) -> Result<(), Trouble> {
        let error = json!({"code": code, "msg": msg}).to_string();
        fs::write(self.0.join("answers").join(verb), error).step(|| "tell the recorder to refuse")
    }

    /// Serves a verb again.
    pub(crate) fn serve(&self, verb: &str) -> Result<(), Trouble> {
        fs::remove_file(self.0.join("answers").join(verb)).step(|| "tell the recorder to serve")
    }

    /// Every call so far, in order.
    pub(crate) fn calls(&self) -> Result<Vec<Recorded>, Trouble> {
        let step = || "read what the recorder has written";
        let entries = fs::read_dir(self.0.join("calls")).step(step)?;
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        let read = |path: &PathBuf| -> io::Result<Recorded> {
            Ok(serde_json::from_slice(&fs::read(path)?)?)
        };
        files.iter().map(read).collect::<io::Result<_>>().step(step)
    }

    /// The calls of one verb.
    pub(crate) fn calls_of(&self, verb: &str) -> Result<Vec<Recorded>, Trouble> {
        let mut calls = self.calls()?;
        calls.retain(|call| call.verb() == verb);
        Ok(calls)
    }
}

/// What the recorder writes to its standard error.
pub(crate) fn remark(verb: &str) -> String {
    format!("{TYPE} was asked for {verb}")
}

/// The recorder itself: `script` is the path that it was called by.
pub fn main(script: &Path) -> ExitCode {
    match serve(script) {
        Ok(code) => code,
        Err(error) => {
            let msg = format!("{TYPE}: {error}");
            println!(
                "{}",
                json!({"cniVersion": "1.0.0", "code": 999, "msg": msg})
            );
            ExitCode::FAILURE
        }
    }
}

fn serve(script: &Path) -> io::Result<ExitCode> {
    let directory = script.parent().unwrap_or(Path::new("."));
    let mut stdin = Vec::new();
    io::stdin().read_to_end(&mut stdin)?;
    let call = Recorded {
        environment: std::env::vars_os()
            .map(|(name, value)| (lossy(&name), lossy(&value)))
            .collect(),
        stdin: String::from_utf8_lossy(&stdin).into_owned(),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.unwrap_or_default().as_nanos();
    let file = format!("calls/{now:030}-{}", std::process::id());
    fs::write(directory.join(file), serde_json::to_vec(&call)?)?;
    eprintln!("{}", remark(call.verb()));

    let version = serde_json::from_str::<Map<String, Value>>(&call.stdin)
        .ok()
        .and_then(|conf| conf.get("cniVersion")?.as_str().map(str::to_owned))
        .unwrap_or("1.0.0".to_owned());
    if let Ok(refusal) = fs::read(directory.join("answers").join(call.verb())) {
        let mut refusal: Value = serde_json::from_slice(&refusal)?;
        refusal["cniVersion"] = version.into();
        println!("{refusal}");
        return Ok(ExitCode::FAILURE);
    }
    match call.verb() {
        "ADD" => println!("{}", result(&version, given(directory)?)),
        "VERSION" => {
            let all = crate::spec::Version::ALL.map(crate::spec::Version::as_str);
            println!(
                "{}",
                json!({"cniVersion": version, "supportedVersions": all})
            );
        }
        _ => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// An address that has not been given before, also with others asking at the same time.
fn given(directory: &Path) -> io::Result<u8> {
    for host in 2..=250 {
        let mark = directory.join("given").join(host.to_string());
        match fs::File::create_new(mark) {
            Ok(_) => return Ok(host),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("no address left"))
}

fn result(version: &str, host: u8) -> Value {
    let mut address = json!({
        "address": format!("{SUBNET}.{host}/24"), "gateway": format!("{SUBNET}.1"),
    });
    if version.starts_with("0.") {
        address["version"] = "4".into();
    }
    json!({
        "cniVersion": version,
        "ips": [address],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": ROUTE, "gw": format!("{SUBNET}.1")}],
        "dns": {"nameservers": [NAME_SERVER]},
    })
}

fn lossy(text: &std::ffi::OsStr) -> String {
    text.to_string_lossy().into_owned()
}
