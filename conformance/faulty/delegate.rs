//! The IPAM plugin that a configuration names.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::request::Request;
use crate::{Done, Failed, fault};

/// Runs the configuration's IPAM plugin, if it has one.
pub(crate) fn call(request: &Request, verb: &str) -> Done<Option<Value>> {
    let Some(kind) = request
        .conf
        .get("ipam")
        .and_then(|ipam| ipam["type"].as_str())
    else {
        return Ok(None);
    };
    let is_there = Path::new(&request.netns).exists();
    let dropped = fault(&format!("ipam-{}-dropped", verb.to_lowercase()))
        || (verb == "DEL" && fault("ipam-del-needs-netns") && !is_there);
    if fault("ipam-ignored") || dropped {
        return Ok(None);
    }
    match run(request, &find(kind)?, verb) {
        Err(_) if fault("ipam-error-ignored") => Ok(None),
        done => done.map(Some),
    }
}

fn find(kind: &str) -> Done<PathBuf> {
    if kind.contains('/') && !fault("ipam-by-path") {
        return Err(Failed::new(7, format!("ipam.type: {kind}")));
    }
    let path = std::env::var_os("CNI_PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|directory| directory.join(kind))
        .find(|file| file.is_file())
        .ok_or_else(|| Failed::new(7, format!("ipam.type: {kind} is not in CNI_PATH")))
}

fn run(request: &Request, plugin: &Path, verb: &str) -> Done<Value> {
    let mut command = Command::new(plugin);
    command.env("CNI_COMMAND", verb);
    if fault("ipam-clean-environment") {
        let others = std::env::vars_os().map(|(name, _)| name);
        for name in others.filter(|name| !name.to_string_lossy().starts_with("CNI_")) {
            command.env_remove(name);
        }
        command.env("PATH", "/usr/bin");
    }
    if fault("ipam-own-parameters") {
        command.env("CNI_ARGS", "");
    }
    if fault("ipam-stderr-dropped") {
        command.stderr(Stdio::null());
    }
    let conf = match fault("ipam-section-only") {
        true => json!({"cniVersion": request.version, "ipam": request.conf["ipam"]}).to_string(),
        false => request.text.clone(),
    };
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(conf.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    if output.status.success() {
        return Ok(answer);
    }
    let code = answer["code"].as_u64().unwrap_or(999);
    let msg = answer["msg"].as_str().unwrap_or("it said nothing");
    Err(Failed::new(code, format!("{}: {msg}", plugin.display())))
}
