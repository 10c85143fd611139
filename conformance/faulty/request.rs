//! What it was asked for: the environment and the configuration, checked.

use std::io::Read;

use serde_json::{Map, Value, json};

use crate::{Done, Failed, fault, verbs};

/// A call, with what its verb needs.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: String,
    pub(crate) netns: String,
    pub(crate) ifname: String,
    pub(crate) version: String,
    pub(crate) network: String,
    pub(crate) conf: Map<String, Value>,
    /// As it came on standard input.
    pub(crate) text: String,
}

const VERSIONS: [&str; 5] = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Serves the call; the version is the one to print an error in.
pub(crate) fn serve() -> (String, Done<Option<Value>>) {
    let mut version = "1.1.0".to_owned();
    let done = dispatch(&mut version);
    (version, done)
}

fn dispatch(version: &mut String) -> Done<Option<Value>> {
    let verb = variable("CNI_COMMAND");
    if verb == "VERSION" {
        return answer_version();
    }
    if fault("unknown-command-ok") && verb == "REPLACE" {
        return Ok(None);
    }
    let required: &[&str] = match verb.as_str() {
        "ADD" | "CHECK" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "DEL" if fault("del-wants-netns") => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "DEL" => &["CNI_CONTAINERID", "CNI_IFNAME"],
        "GC" if fault("gc-wants-container") => &["CNI_CONTAINERID"],
        "STATUS" if fault("status-wants-path") => &["CNI_PATH"],
        "GC" | "STATUS" => &[],
        other => return Err(Failed::new(4, format!("CNI_COMMAND: unknown {other}"))),
    };
    let missing: Vec<&str> = required
        .iter()
        .copied()
        .filter(|name| variable(name).is_empty())
        .collect();
    let mends = format!("{}-without-variables", verb.to_lowercase());
    if !missing.is_empty() && fault(&mends) {
        return Ok((verb == "ADD").then(|| json!({"cniVersion": "1.1.0"})));
    }
    if !missing.is_empty() {
        let code = if fault("code-999-for-environment") {
            999
        } else {
            4
        };
        let names = match fault("variables-not-named") {
            true => "something".to_owned(),
            false => missing.join(", "),
        };
        return Err(Failed::new(code, format!("missing: {names}")));
    }
    if fault("wants-args") && verb == "ADD" && variable("CNI_ARGS").is_empty() {
        return Err(Failed::new(4, "CNI_ARGS is missing"));
    }
    let mut ifname = variable("CNI_IFNAME");
    if !required.is_empty() {
        checked_id(&variable("CNI_CONTAINERID"))?;
        ifname = checked_ifname(ifname)?;
    }
    let (text, conf) = configuration()?;
    if conf.is_empty() {
        return Ok(None);
    }
    *version = conf["cniVersion"].as_str().unwrap_or("0.1.0").to_owned();
    let request = Request {
        id: variable("CNI_CONTAINERID"),
        netns: variable("CNI_NETNS"),
        ifname,
        version: checked_version(version, &verb)?,
        network: checked_name(&conf)?,
        conf,
        text,
    };
    if fault("unsupported-field-not-named") && request.conf.contains_key("conformanceProbe") {
        return Err(Failed::new(2, "a field is not supported"));
    }
    match verb.as_str() {
        "ADD" => verbs::add(&request).map(Some),
        "DEL" => verbs::del(&request).map(|()| None),
        "CHECK" => verbs::check(&request),
        "GC" => verbs::gc(&request).map(|()| None),
        _ => verbs::status(&request).map(|()| None),
    }
}

fn answer_version() -> Done<Option<Value>> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let input: Value = serde_json::from_str(&text).unwrap_or_default();
    let asked = input["cniVersion"].as_str().unwrap_or("1.1.0");
    if fault("version-wants-path") && variable("CNI_PATH").is_empty() {
        return Err(Failed::new(4, "CNI_PATH is missing"));
    }
    Ok(Some(match () {
        () if fault("version-without-list") => json!({"cniVersion": asked}),
        () if fault("version-not-echoed") => {
            json!({"cniVersion": "0.4.0", "supportedVersions": VERSIONS})
        }
        () => json!({"cniVersion": asked, "supportedVersions": VERSIONS}),
    }))
}

fn configuration() -> Done<(String, Map<String, Value>)> {
    let io_code = if fault("code-6-for-io") { 6 } else { 5 };
    let mut text = String::new();
    std::io::stdin()
        .read_to_string(&mut text)
        .map_err(|error| Failed::new(io_code, format!("reading stdin: {error}")))?;
    let decode_code = if fault("code-7-for-undecodable") {
        7
    } else {
        6
    };
    let conf = match serde_json::from_str(&text) {
        Err(_) if fault("undecodable-ok") => Map::new(),
        Err(error) => return Err(Failed::new(decode_code, error.to_string())),
        Ok(conf) => conf,
    };
    Ok((text, conf))
}

fn checked_version(version: &str, verb: &str) -> Done<String> {
    let is_known = VERSIONS.contains(&version);
    let since = match verb {
        "GC" | "STATUS" => "1.1.0",
        "CHECK" => "0.4.0",
        _ => "0.3.0",
    };
    if !is_known && fault("any-version") {
        return Ok("1.1.0".into());
    }
    if !is_known || (version < since && !fault("verbs-of-every-version")) {
        return Err(Failed::new(1, format!("no {verb} in version {version}")));
    }
    Ok(version.to_owned())
}

fn checked_name(conf: &Map<String, Value>) -> Done<String> {
    let code = if fault("code-6-for-invalid") { 6 } else { 7 };
    match conf.get("name").and_then(Value::as_str) {
        None if fault("nameless-ok") => Ok("nameless".into()),
        None => Err(Failed::new(code, "name is missing")),
        Some(name) if is_name(name) || fault("any-name") => Ok(name.replace('/', "_")),
        Some(name) => Err(Failed::new(code, format!("name: {name:?}"))),
    }
}

fn checked_id(id: &str) -> Done {
    if id.is_empty() || is_name(id) || fault("any-container-id") {
        return Ok(());
    }
    Err(Failed::new(4, format!("CNI_CONTAINERID: {id:?}")))
}

fn checked_ifname(ifname: String) -> Done<String> {
    let bad = |character: char| matches!(character, '/' | ':') || character.is_whitespace();
    if ifname.len() <= 15 && !matches!(ifname.as_str(), "." | "..") && !ifname.contains(bad) {
        return Ok(ifname);
    }
    match fault("renames-bad-ifname") {
        true => Ok("eth0".into()),
        false => Err(Failed::new(4, format!("CNI_IFNAME: {ifname:?}"))),
    }
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}
