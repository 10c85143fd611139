//! Files with objects: YAML or JSON, several documents, Lists.

use std::io::Read as _;
use std::path::Path;

use serde_json::Value;

use super::ToolError;

/// The largest file, in bytes.
const LARGEST: u64 = 4 << 20;

/// The objects of a file, `-` for standard input, each with its place there.
///
/// # Errors
/// It can't be read.
pub(super) fn documents(path: &Path) -> Result<Vec<(String, Value)>, ToolError> {
    let failed = |problem: String| ToolError::Mistake(format!("{}: {problem}", path.display()));
    let text = text_of(path).map_err(failed)?;
    let documents = serde_saphyr::from_multiple::<Value>(&text);
    let documents = documents.map_err(|error| failed(format!("no YAML or JSON: {error}")))?;
    let mut found = Vec::new();
    for (number, mut document) in (1..).zip(documents) {
        let place = format!("document {number}");
        if let Some(Value::Array(items)) = document.get_mut("items") {
            let items = std::mem::take(items).into_iter().enumerate();
            found.extend(items.map(|(item, it)| (format!("{place}: items[{item}]"), it)));
        } else if !document.is_null() {
            // Null is what is between two separators, or after the last.
            found.push((place, document));
        }
    }
    Ok(found)
}

fn text_of(path: &Path) -> Result<String, String> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(LARGEST + 1).read_to_string(&mut text),
        false => std::fs::File::open(path)
            .and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text)),
    };
    match read {
        Err(error) => Err(error.to_string()),
        Ok(size) if size as u64 > LARGEST => Err(format!("it has more than {LARGEST} bytes")),
        Ok(_) => Ok(text),
    }
}
