//! One client's connection: requests one after the other, a watch as the last.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::events;
use super::exec::{self, Exec};
use super::hostile;
use super::objects::{self, Target};
use super::store::Selector;
use super::{Request, Shared, State};

/// Serves requests until either side closes.
pub(super) fn serve(stream: impl Read + Write, shared: &Arc<Shared>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = read_request(&mut stream)? {
        let mut state = shared.lock();
        state.requests.push(request.clone());
        shared.changed.notify_all();
        let is_withheld = |state: &State| {
            let resource = state.withheld.map(|resource| format!("/{resource}"));
            state.held || resource.is_some_and(|it| request.path.ends_with(&it))
        };
        while is_withheld(&state) && !state.stopping {
            state = shared.wait(state, Duration::MAX);
        }
        if state.stopping {
            return Ok(());
        }
        let out = stream.get_mut();
        if let Some(hostile) = state.hostile {
            drop(state);
            if let Some(served) = hostile::serve(out, &request, hostile) {
                served?;
                continue;
            }
            state = shared.lock();
        }
        if let Some(refusal) = refusal(&request, &state) {
            drop(state);
            answer(out, &refusal)?;
        } else if let Some(exec) = Exec::of(&request) {
            drop(state);
            match exec::serve(&mut *out, &exec, &request, shared)? {
                Some(refusal) => answer(out, &refusal)?,
                None => return Ok(()),
            }
        } else if events::is_about(&request) {
            let done = events::serve(&request, &mut state);
            drop(state);
            shared.changed.notify_all();
            answer(out, &done)?;
        } else if let Some(target) = Target::parse(&request.path)
            && target.is_one(&request)
        {
            let done = objects::serve(&target, &request, &mut state);
            drop(state);
            shared.changed.notify_all();
            let is_failure = done["kind"] == "Status";
            let body = if is_failure {
                done
            } else {
                shown(done, &request)
            };
            answer(out, &body)?;
        } else if request.is_watch() {
            state.watches += 1;
            shared.changed.notify_all();
            let ended = watch(out, &request, state, shared);
            shared.lock().watches -= 1;
            shared.changed.notify_all();
            ended?;
        } else {
            let list = list(&request, &state);
            drop(state);
            answer(out, &list)?;
        }
    }
    Ok(())
}

/// The Status with which a request is refused, if it is.
fn refusal(request: &Request, state: &State) -> Option<Value> {
    let discovery = state.discovery.unwrap_or("v1");
    let target = Target::parse(&request.path)
        .filter(|it| !it.is_other_discovery(discovery))
        .filter(|it| !state.lacks.is_some_and(|group| it.is_of(group)));
    if target.is_none() && !events::is_about(request) {
        return Some(status(
            404,
            "NotFound",
            "the server could not find the requested resource",
        ));
    }
    let token = request
        .authorization
        .as_deref()
        .and_then(|value| value.strip_prefix("Bearer "));
    let is_known = state
        .tokens
        .as_ref()
        .is_none_or(|good| token.is_some_and(|token| good.iter().any(|other| other == token)));
    if !is_known {
        return Some(status(401, "Unauthorized", "Unauthorized"));
    }
    let is_gone = request.is_watch() && state.gone_as_status && is_compacted(request, state);
    is_gone.then(|| expired(state))
}

fn list(request: &Request, state: &State) -> Value {
    let target = target(request);
    let selector = selector(request);
    // As etcd's: where a page ends the next begins, whatever has changed before it.
    let after = request.parameter("continue").unwrap_or_default();
    let limit = request
        .parameter("limit")
        .and_then(|text| text.parse().ok())
        .filter(|limit| *limit > 0)
        .unwrap_or(usize::MAX);
    let mut objects = state.store.select(&target, &selector, after).peekable();
    let (mut items, mut last) = (Vec::new(), "");
    while items.len() < limit
        && let Some((key, object)) = objects.next()
    {
        last = key;
        items.push(shown(object.clone(), request));
    }
    let mut metadata = json!({ "resourceVersion": state.store.version().to_string() });
    if objects.peek().is_some() {
        metadata["continue"] = last.into();
    }
    let (kind, version) = match is_metadata_only(request) {
        true => ("PartialObjectMetadataList", "meta.k8s.io/v1"),
        false => (&*format!("{}List", target.kind().0), target.kind().1),
    };
    json!({ "kind": kind, "apiVersion": version, "metadata": metadata, "items": items })
}

/// Sends what happens after the request's version, until the client's timeout or the end of the
/// connection.
fn watch<'a>(
    out: &mut impl Write,
    request: &Request,
    mut state: MutexGuard<'a, State>,
    shared: &'a Shared,
) -> io::Result<()> {
    let (began, breaks) = (Instant::now(), state.breaks);
    let seconds = request
        .parameter("timeoutSeconds")
        .and_then(|text| text.parse().ok());
    let limit = Duration::from_secs(seconds.unwrap_or(1800));
    let bookmarks = request.parameter("allowWatchBookmarks") == Some("true");
    let (target, selector) = (target(request), selector(request));
    let mut version = resource_version(request);
    head(out)?;
    loop {
        if state.stopping || state.breaks != breaks {
            return Ok(());
        }
        if state.store.is_compacted(version) {
            let event = json!({ "type": "ERROR", "object": expired(&state) });
            drop(state);
            chunk(out, &format!("{event}\n"))?;
            return chunk(out, "");
        }
        let mut events = String::new();
        for change in state.store.since(&target, version) {
            if let Some(mut event) = change.event(&target, &selector, bookmarks) {
                let object = shown(event["object"].take(), request);
                // The type comes first, as the real server writes it.
                let r#type = &event["type"];
                events.push_str(&format!("{{\"type\":{type},\"object\":{object}}}\n"));
            }
        }
        version = state.store.version();
        let left = limit.saturating_sub(began.elapsed());
        let is_over = left.is_zero() || state.ends_watches;
        if !events.is_empty() {
            drop(state);
            chunk(out, &events)?;
            state = shared.lock();
        } else if is_over {
            drop(state);
            return chunk(out, "");
        } else {
            state = shared.wait(state, left);
        }
    }
}

/// The object as the request wants it: whole, or its metadata alone.
fn shown(mut object: Value, request: &Request) -> Value {
    match is_metadata_only(request) {
        true => json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": object["metadata"].take(),
        }),
        // In the version that was asked for.
        false => {
            if let Some(target) = Target::parse(&request.path) {
                object["apiVersion"] = target.kind().1.into();
            }
            object
        }
    }
}

fn is_metadata_only(request: &Request) -> bool {
    request.accept.contains("as=PartialObjectMetadata")
}

/// What a request that was not refused is about.
fn target(request: &Request) -> Target {
    Target::parse(&request.path).expect("a path that names nothing is refused before")
}

fn selector(request: &Request) -> Selector {
    Selector::parse(request.parameter("fieldSelector").unwrap_or_default())
}

fn resource_version(request: &Request) -> u64 {
    let version = request.parameter("resourceVersion");
    version.and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn is_compacted(request: &Request, state: &State) -> bool {
    state.store.is_compacted(resource_version(request))
}

fn expired(state: &State) -> Value {
    let message = format!("too old resource version: now at {}", state.store.version());
    status(410, "Expired", &message)
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

pub(super) fn answer(out: &mut impl Write, body: &Value) -> io::Result<()> {
    let code = match body["kind"] == "Status" {
        true => body["code"].as_u64().unwrap_or(500),
        false => 200,
    };
    let body = body.to_string();
    let length = body.len();
    // In one write: the rest of several would wait for the client's acknowledgement of the first.
    let answer = format!(
        "HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nContent-Length: \
         {length}\r\n\r\n{body}"
    );
    out.write_all(answer.as_bytes())?;
    out.flush()
}

/// The head of an answer in chunks.
pub(super) fn head(out: &mut impl Write) -> io::Result<()> {
    write!(
        out,
        "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    )?;
    out.flush()
}

pub(super) fn chunk(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(format!("{:x}\r\n{text}\r\n", text.len()).as_bytes())?;
    out.flush()
}

fn read_request(stream: &mut impl BufRead) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ');
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut length = 0;
    let mut request = Request {
        at: Instant::now(),
        method: method.to_owned(),
        path: path.to_owned(),
        query: query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (decoded(name), decoded(value)))
            .collect(),
        accept: String::new(),
        authorization: None,
        content_type: String::new(),
        websocket_key: String::new(),
        body: None,
    };
    loop {
        let mut header = String::new();
        if stream.read_line(&mut header)? == 0 {
            return Ok(None);
        }
        let Some((name, value)) = header.trim_end().split_once(':') else {
            let mut body = vec![0; length];
            stream.read_exact(&mut body)?;
            request.body = serde_json::from_slice(&body).ok();
            request.at = Instant::now();
            return Ok(Some(request));
        };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.trim().parse().unwrap_or(0),
            "content-type" => request.content_type = value.trim().to_owned(),
            "sec-websocket-key" => request.websocket_key = value.trim().to_owned(),
            "accept" => request.accept = value.trim().to_owned(),
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            _ => {}
        }
    }
}

/// Undoes the percent-encoding of a query.
fn decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes
            .get(at + 1..at + 3)
            .and_then(|hex| std::str::from_utf8(hex).ok());
        match (
            bytes[at],
            hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()),
        ) {
            (b'%', Some(byte)) => {
                plain.push(byte);
                at += 3;
            }
            (byte, _) => {
                plain.push(if byte == b'+' { b' ' } else { byte });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}
