//! Runs nft(8).

use std::collections::BTreeSet;
use std::process::Stdio;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

/// Why nft failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NftError {
    #[error("start nft: {0}; install the package nftables")]
    Start(std::io::Error),
    #[error("nft refused {what}: {said}")]
    Refused { what: &'static str, said: String },
    #[error("nft listed {table} in a form that is not understood: {source}")]
    Json {
        table: &'static str,
        source: serde_json::Error,
    },
}

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
    let listed = nft("to list tables", &["-j", "list", "tables"], None).await?;
    let listed = parse("the tables", &listed)?;
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
    let listed = nft("to list chains", &["-j", "list", "chains"], None).await?;
    parse("the chains", &listed)
}

/// Lists a table of podwire's; None if it does not exist.
pub(crate) async fn list(table: &'static str) -> Result<Option<Value>, NftError> {
    let (family, name) = table.split_once(' ').unwrap_or(("inet", table));
    match nft(
        "to list our table",
        &["-j", "list", "table", family, name],
        None,
    )
    .await
    {
        Ok(listed) => Ok(Some(parse(table, &listed)?)),
        Err(NftError::Refused { said, .. }) if said.contains("No such file") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Lists a map of a table of ours.
pub(crate) async fn list_map(table: &'static str, map: &str) -> Result<Value, NftError> {
    let (family, name) = table.split_once(' ').unwrap_or(("inet", table));
    let listed = nft(
        "to list a map",
        &["-j", "list", "map", family, name, map],
        None,
    )
    .await?;
    parse(table, &listed)
}

/// The objects in a list.
pub(crate) fn objects(listed: &Value) -> impl Iterator<Item = &Value> {
    listed["nftables"].as_array().into_iter().flatten()
}

/// Runs a script, wholly or not at all.
pub(crate) async fn run(what: &'static str, script: &str) -> Result<(), NftError> {
    nft(what, &["-f", "-"], Some(script)).await.map(drop)
}

/// Runs nft and returns what it printed.
async fn nft(
    what: &'static str,
    arguments: &[&str],
    script: Option<&str>,
) -> Result<String, NftError> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(NftError::Start)?;
    let pid = child.id().filter(|_| script.is_some());
    if let Some(pid) = pid {
        OURS.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(pid);
    }
    if let Some(mut input) = child.stdin.take() {
        // If it ends without reading everything, its standard error has the reason.
        let _ = input.write_all(script.unwrap_or_default().as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(NftError::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    pid.map(was_ours);
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.split_whitespace().collect();
    Err(NftError::Refused {
        what,
        said: said.join(" "),
    })
}

fn parse(table: &'static str, text: &str) -> Result<Value, NftError> {
    // nft 1.0.6 prints nothing if there are no tables.
    match text.trim() {
        "" => Ok(Value::Null),
        text => serde_json::from_str(text).map_err(|source| NftError::Json { table, source }),
    }
}
