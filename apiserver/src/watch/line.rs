//! The lines of a watch, also those of which only the begin is read because they are too long.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::{fmt, io};

use futures_util::stream::{BoxStream, StreamExt as _, unfold};
use futures_util::{AsyncBufRead, AsyncBufReadExt as _};
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{Event, Failure};
use crate::bounds::{LONGEST_LINE, TooLarge};
use crate::object::{Object, Reference, Unreadable};

/// The lines of a watch, each with its end.
pub(super) fn lines(
    answer: impl AsyncBufRead + Send + Unpin + 'static,
) -> BoxStream<'static, io::Result<Vec<u8>>> {
    let lines = unfold(answer, |mut answer| async move {
        let mut line = Vec::new();
        match answer.read_until(b'\n', &mut line).await {
            Ok(0) => None,
            Ok(_) => Some((Ok(line), answer)),
            Err(error) => Some((Err(error), answer)),
        }
    });
    lines.boxed()
}

/// What a line tells of which only the begin was read, with its version: of the object, the server
/// writes the metadata first. It can't be read, unless it is gone anyway.
///
/// # Errors
/// The begin does not identify the object.
pub(super) fn cut<K: Object>(line: &[u8]) -> Result<(String, Event<K>), Failure> {
    let mut found = Found::default();
    let mut begin = serde_json::Deserializer::from_slice(line);
    // It ends in the middle of something.
    let _ = Part(Level::Line, &mut found).deserialize(&mut begin);
    let Found { r#type, object } = found;
    if object.name.is_empty() || object.resource_version.is_empty() {
        return Err(Failure::of(&TooLarge::Line));
    }
    let version = object.resource_version.clone();
    let event = match &*r#type {
        "ADDED" | "MODIFIED" => Event::Unreadable(Unreadable {
            api: K::API,
            kind: K::KIND,
            object,
            labels: BTreeMap::new(),
            problem: format!("it has more than {LONGEST_LINE} bytes of JSON"),
        }),
        "DELETED" => Event::Deleted(object),
        _ => return Err(Failure::of(&TooLarge::Line)),
    };
    Ok((version, event))
}

#[derive(Default)]
struct Found {
    r#type: String,
    object: Reference,
}

#[derive(Clone, Copy)]
enum Level {
    Line,
    Object,
    Metadata,
}

/// Keeps what it reads, also when it ends with an error.
struct Part<'a>(Level, &'a mut Found);

impl<'de> DeserializeSeed<'de> for Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Part<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(level, found) = self;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            let text = match (level, &*name) {
                (Level::Line, "object") => {
                    map.next_value_seed(Part(Level::Object, &mut *found))?;
                    continue;
                }
                (Level::Object, "metadata") => {
                    map.next_value_seed(Part(Level::Metadata, &mut *found))?;
                    continue;
                }
                (Level::Line, "type") => &mut found.r#type,
                (Level::Metadata, "name") => &mut found.object.name,
                (Level::Metadata, "namespace") => &mut found.object.namespace,
                (Level::Metadata, "uid") => &mut found.object.uid,
                (Level::Metadata, "resourceVersion") => &mut found.object.resource_version,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    continue;
                }
            };
            *text = map.next_value()?;
        }
        Ok(())
    }
}
