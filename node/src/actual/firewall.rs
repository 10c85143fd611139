//! The nftables table, as listed by nft(8).

use serde_json::Value;

use super::{TableSeen, Tables};
use crate::firewall::NAME;
use crate::nft::{self, NftError, objects};

/// Lists podwire's table, if it exists, and checks whether that of services does.
pub(super) async fn tables() -> Result<Tables, NftError> {
    let there = nft::tables().await?;
    let table = match there.contains(NAME) {
        true => nft::list(NAME).await?.map(|listed| read(&listed)),
        false => None,
    };
    Ok((table, there.contains(crate::services::NAME)))
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
        // In the format of nft 1.0.6.
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
