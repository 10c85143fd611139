//! Runs nft(8).

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::OnceCell;

/// Why nft failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    #[error("start nft: {0}; install the package nftables")]
    Start(std::io::Error),
    #[error("nft refused {what}: {said}")]
    Refused { what: &'static str, said: String },
    #[error("nft listed {of} in a form that is not understood: {source}")]
    Json {
        of: &'static str,
        source: serde_json::Error,
    },
}

/// The table of services: its family and name.
pub(crate) const SERVICES: &str = "inet podwire-services";
/// Its definitions, for a moment, to compare them. The name begins with that one's.
pub(crate) const SERVICES_CHECK: &str = "inet podwire-services-check";

/// How much of its messages is kept: it repeats each line that it refuses.
const MOST_SAID: usize = 600;

/// podwire's own processes that change something, until nftables has reported it.
static OURS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// Whether a change that nftables reported was made by [`run`].
pub(crate) fn was_ours(pid: u32) -> bool {
    OURS.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .remove(&pid)
}

/// The tables of this machine, each with its family first.
pub(crate) async fn tables() -> Result<BTreeSet<String>, NftError> {
    let listed = listed("to list tables", "the tables", &["tables"]).await?;
    let tables = objects(&listed).filter_map(|object| {
        let table = object.get("table")?;
        Some(format!(
            "{} {}",
            table["family"].as_str()?,
            table["name"].as_str()?
        ))
    });
    Ok(tables.collect())
}

/// The chains of all tables, without their rules.
pub(crate) async fn chains() -> Result<Value, NftError> {
    listed("to list chains", "the chains", &["chains"]).await
}

/// Everything, in nft's own language; that of iptables-nft, too.
pub(crate) async fn ruleset() -> Result<String, NftError> {
    nft("to list everything", &["-n", "list", "ruleset"], "", false).await
}

/// Lists a table of podwire's; None if it does not exist.
pub(crate) async fn list(table: &'static str) -> Result<Option<Value>, NftError> {
    let (family, name) = table.split_once(' ').unwrap_or(("inet", table));
    match listed("to list our table", table, &["table", family, name]).await {
        Ok(listed) => Ok(Some(listed)),
        Err(NftError::Refused { said, .. }) if said.contains("No such file") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists a map of a table of ours.
pub(crate) async fn list_map(table: &'static str, map: &str) -> Result<Value, NftError> {
    let (family, name) = table.split_once(' ').unwrap_or(("inet", table));
    listed("to list a map", table, &["map", family, name, map]).await
}

/// Protocols and the like are numbers: nft takes names from files that an image need not have.
async fn listed(
    what: &'static str,
    of: &'static str,
    arguments: &[&str],
) -> Result<Value, NftError> {
    let arguments = [&["-n", "-j", "list"], arguments].concat();
    let text = nft(what, &arguments, "", false).await?;
    // nft 1.0.6 prints nothing if there are no tables.
    match text.trim() {
        "" => Ok(Value::Null),
        text => serde_json::from_str(text).map_err(|source| NftError::Json { of, source }),
    }
}

/// The objects in a list.
pub(crate) fn objects(listed: &Value) -> impl Iterator<Item = &Value> {
    listed["nftables"].as_array().into_iter().flatten()
}

/// What stays the same of a listed object: neither handles nor counters.
pub(crate) fn lasting(object: &Value) -> Option<Map<String, Value>> {
    let mut object = object.as_object()?.clone();
    object.remove("metainfo");
    for kind in object.values_mut() {
        kind.as_object_mut()?.remove("handle");
        let parts = kind.get_mut("expr").and_then(Value::as_array_mut);
        for part in parts.into_iter().flatten() {
            part.get_mut("counter").map(Value::take);
        }
    }
    Some(object)
}

/// Runs a script, wholly or not at all.
pub(crate) async fn run(what: &'static str, script: &str) -> Result<(), NftError> {
    nft(what, &["-f", "-"], script, true).await.map(drop)
}

/// Whether nft and the kernel would take a script. Nothing is changed.
pub(crate) async fn check(what: &'static str, script: &str) -> Result<(), NftError> {
    nft(what, &["-c", "-f", "-"], script, false).await.map(drop)
}

/// Whether nft and the kernel have a hook for what a link sends (Linux 5.16). Only that they have
/// one is remembered: nft may have failed for another reason.
pub(crate) async fn has_egress() -> bool {
    static HAS: OnceCell<()> = OnceCell::const_new();
    let chain = "chain out {\ntype filter hook egress device \"lo\" priority 0;\n}";
    let script = format!("table netdev podwire-check {{\n{chain}\n}}\n");
    let has = || check("a hook", &script);
    HAS.get_or_try_init(has).await.is_ok()
}

/// Runs nft and returns what it printed.
async fn nft(
    what: &'static str,
    arguments: &[&str],
    script: &str,
    changes: bool,
) -> Result<String, NftError> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(NftError::Start)?;
    let pid = child.id().filter(|_| changes);
    if let Some(pid) = pid {
        OURS.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(pid);
    }
    if let Some(mut input) = child.stdin.take() {
        // If it ends without reading everything, its standard error has the reason.
        let _ = input.write_all(script.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(NftError::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    pid.map(was_ours);
    let said = String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(MOST_SAID)]);
    let said: Vec<&str> = said.split_whitespace().collect();
    let said = match said.is_empty() {
        // It was killed.
        true => output.status.to_string(),
        false => said.join(" "),
    };
    Err(NftError::Refused { what, said })
}
