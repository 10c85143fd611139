//! What a broken or hostile server sends: more than any client can keep.

use std::io::{self, Write};

use serde_json::json;

use super::Request;
use super::connection::{answer, chunk, head, status};

/// How the server misbehaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostile {
    /// Lists and watches are refused with a text of 2 MB of control characters.
    LongError,
    /// A list of pods that never ends.
    EndlessList,
    /// A list that always has one more page.
    EndlessPages,
    /// A list that is one page of 2 MB which is no JSON.
    NoJson,
    /// A line of a watch that never ends.
    EndlessLine,
    /// A watch in which there is always one more pod.
    EndlessPods,
    /// A bookmark whose resourceVersion has 100 KB.
    LongVersion,
    /// A list as it was before anything was made, as of a server that lags behind.
    OlderList,
}

/// Bytes of one write.
const CHUNK: usize = 64 << 10;

/// Answers a request, if it is one that this server answers wrongly.
pub(super) fn serve(
    out: &mut impl Write,
    request: &Request,
    hostile: Hostile,
) -> Option<io::Result<()>> {
    match (hostile, request.is_watch()) {
        (Hostile::LongError, _) => {
            let text = "\u{1}".repeat(2 << 20);
            Some(answer(out, &status(500, "InternalError", &text)))
        }
        (Hostile::EndlessList, false) => Some(endless_list(out)),
        (Hostile::EndlessPages, false) => Some(one_more_page(out, request)),
        (Hostile::NoJson, false) => Some(no_json(out)),
        (Hostile::EndlessLine, true) => Some(endless_line(out)),
        (Hostile::EndlessPods, true) => Some(endless_pods(out)),
        (Hostile::LongVersion, true) => Some(long_version(out)),
        (Hostile::OlderList, false) => Some(older_list(out)),
        _ => None,
    }
}

fn endless_list(out: &mut impl Write) -> io::Result<()> {
    head(out)?;
    chunk(
        out,
        r#"{"kind":"List","metadata":{"resourceVersion":"1"},"items":[{"metadata":{}}"#,
    )?;
    let items = r#",{"metadata":{}}"#.repeat(CHUNK / 16);
    loop {
        chunk(out, &items)?;
    }
}

fn one_more_page(out: &mut impl Write, request: &Request) -> io::Result<()> {
    let number = request.parameter("continue").unwrap_or_default().len();
    let page = json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": "1", "continue": "x".repeat(number + 1) },
        "items": [],
    });
    answer(out, &page)
}

fn no_json(out: &mut impl Write) -> io::Result<()> {
    head(out)?;
    chunk(out, &"nonsense".repeat(2 << 17))?;
    chunk(out, "")
}

fn older_list(out: &mut impl Write) -> io::Result<()> {
    let list = json!({
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": { "resourceVersion": "1" },
        "items": [],
    });
    answer(out, &list)
}

fn endless_line(out: &mut impl Write) -> io::Result<()> {
    head(out)?;
    chunk(out, r#"{"type":"ADDED","object":{"metadata":{"name":""#)?;
    let text = "x".repeat(CHUNK);
    loop {
        chunk(out, &text)?;
    }
}

fn endless_pods(out: &mut impl Write) -> io::Result<()> {
    head(out)?;
    for number in 0_u64.. {
        let metadata = json!({
            "namespace": "ns",
            "name": format!("endless-{number}"),
            "uid": number.to_string(),
            "resourceVersion": "1",
        });
        let event = json!({ "type": "ADDED", "object": { "metadata": metadata } });
        chunk(out, &format!("{event}\n"))?;
    }
    Ok(())
}

fn long_version(out: &mut impl Write) -> io::Result<()> {
    head(out)?;
    let metadata = json!({ "resourceVersion": "1".repeat(100_000) });
    let bookmark = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": metadata });
    let event = json!({ "type": "BOOKMARK", "object": bookmark });
    chunk(out, &format!("{event}\n"))?;
    chunk(out, "")
}
