//! Whether the table is what its names and comments say, after a time in which nobody watched it.

use std::collections::BTreeMap;

use serde_json::Value;

use super::table::{Contents, Observed};
use crate::firewall::delete;
use crate::nft::{self, NftError, SERVICES as NAME, SERVICES_CHECK as CHECK, objects};

/// Whether chains, rules or sets of the listed table differ from those with the same names and
/// comments that podwire writes. Only nft knows how it lists them, so it writes and lists them as
/// another table, which is never in force.
pub(super) async fn are_changed(contents: &Contents, listed: &Value) -> Result<bool, NftError> {
    let definitions = Contents {
        elements: BTreeMap::new(),
        ..contents.clone()
    };
    let script = definitions
        .script(Some(&Observed::default()))
        .replace(NAME, CHECK);
    let dormant = format!("add table {CHECK} {{ flags dormant; }}\n");
    let removed = delete(CHECK);
    let written = "the table to compare with";
    nft::run(written, &format!("{removed}{dormant}{script}")).await?;
    let ours = nft::list(CHECK).await;
    nft::run(written, &removed).await?;
    let (there, ours) = (by_name(listed), by_name(&ours?.unwrap_or_default()));
    Ok(ours.iter().any(|(name, ours)| {
        let it = there.get(name);
        it.is_some_and(|it| marks(it) == marks(ours) && it != ours)
    }) || is_dormant(listed))
}

fn is_dormant(listed: &Value) -> bool {
    // podwire's table has none, and nft 1.0.6 lists another text in place of dormant.
    objects(listed).any(|object| object["table"].get("flags").is_some())
}

/// The definitions by kind and name: of a set, without its elements; all rules of a chain in their
/// order.
fn by_name(listed: &Value) -> BTreeMap<(String, String), Vec<Value>> {
    let mut found: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for object in objects(listed).filter_map(nft::lasting) {
        for (kind, mut object) in object {
            let name = match &*kind {
                "rule" => &object["chain"],
                "table" => continue,
                _ => &object["name"],
            };
            let name = name.as_str().unwrap_or_default().to_owned();
            if let Some(fields) = object.as_object_mut() {
                fields.remove("table");
                fields.remove("elem");
            }
            found.entry((kind, name)).or_default().push(object);
        }
    }
    found
}

fn marks(objects: &[Value]) -> Vec<&Value> {
    objects.iter().map(|object| &object["comment"]).collect()
}
