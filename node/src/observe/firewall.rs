//! The nftables table, as nft(8) lists it; and the way to nft.

use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;

use super::TableSeen;
use crate::firewall::NAME;

/// Why nft did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FirewallError {
    #[error("start nft: {0}; install the package nftables")]
    Start(std::io::Error),
    #[error("nft refused {what}: {said}")]
    Refused { what: &'static str, said: String },
    #[error("nft listed {NAME} in a form that is not understood: {0}")]
    Json(serde_json::Error),
}

/// Lists our table; none when it is not there.
pub(super) async fn table() -> Result<Option<TableSeen>, FirewallError> {
    let (family, name) = NAME.split_once(' ').unwrap_or(("inet", NAME));
    let listed = match nft("to list tables", &["-j", "list", "tables"], "").await {
        Ok(listed) => parse(&listed)?,
        Err(error) => return Err(error),
    };
    let ours = |value: &Value| value["table"]["family"] == family && value["table"]["name"] == name;
    if !objects(&listed).any(ours) {
        return Ok(None);
    }
    let listed = nft(
        "to list our table",
        &["-j", "list", "table", family, name],
        "",
    )
    .await;
    match listed {
        Ok(listed) => Ok(Some(read(&parse(&listed)?))),
        // It went between the two.
        Err(FirewallError::Refused { said, .. }) if said.contains("No such file") => Ok(None),
        Err(error) => Err(error),
    }
}

/// Runs nft and returns what it printed; `script` is its input.
pub(crate) async fn nft(
    what: &'static str,
    arguments: &[&str],
    script: &str,
) -> Result<String, FirewallError> {
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(FirewallError::Start)?;
    if let Some(mut input) = child.stdin.take() {
        // One that ends without reading all says why on its standard error.
        let _ = input.write_all(script.as_bytes()).await;
    }
    let output = child
        .wait_with_output()
        .await
        .map_err(FirewallError::Start)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said: Vec<&str> = said.split_whitespace().collect();
    Err(FirewallError::Refused {
        what,
        said: said.join(" "),
    })
}

fn parse(text: &str) -> Result<Value, FirewallError> {
    // nft 1.0.6 prints nothing at all where there is no table.
    match text.trim() {
        "" => Ok(Value::Null),
        text => serde_json::from_str(text).map_err(FirewallError::Json),
    }
}

fn objects(listed: &Value) -> impl Iterator<Item = &Value> {
    listed["nftables"].as_array().into_iter().flatten()
}

fn read(listed: &Value) -> TableSeen {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut seen = TableSeen::default();
    for object in objects(listed) {
        if let Some(chain) = object.get("chain") {
            seen.chains.push(text(&chain["name"]));
        } else if let Some(rule) = object.get("rule") {
            let rule = (text(&rule["chain"]), text(&rule["comment"]));
            seen.rules.push(rule);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_nft_lists_is_read_as_it_was_written() {
        // As nft 1.0.6 prints it.
        let listed = json!({"nftables": [
            {"metainfo": {"version": "1.0.6"}},
            {"table": {"family": "inet", "name": "podwire-node", "handle": 1}},
            {"chain": {"name": "output", "hook": "output"}},
            {"rule": {"chain": "output", "handle": 9, "comment": "podwire 01", "expr": []}},
        ]});
        let seen = read(&listed);
        assert_eq!(seen.chains, ["output"]);
        assert_eq!(seen.rules, [("output".to_owned(), "podwire 01".to_owned())]);
    }
}
