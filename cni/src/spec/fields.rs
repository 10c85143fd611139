//! Reads the members of a JSON object one by one, so that an error can name the member and its
//! value: serde's own messages give a line and column of text that the operator never saw.

use serde_json::{Map, Value};

use super::error::excerpt;

/// A missing or invalid member of a configuration or result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldError {
    /// A required member is absent, null or empty.
    #[error("{field} is missing")]
    Missing {
        /// The member, as a path from the root: `ipam.type`.
        field: String,
    },
    /// A member has an invalid value.
    #[error("{field}: {value} is not {expected}")]
    Invalid {
        /// The member, as a path from the root: `runtimeConfig.ips[1]`.
        field: String,
        /// Its value as JSON, cut if long.
        value: String,
        /// What is valid, as in "an IP address".
        expected: String,
    },
}

impl FieldError {
    pub(super) fn invalid(
        field: impl Into<String>,
        value: &Value,
        expected: impl Into<String>,
    ) -> Self {
        let value = match value {
            Value::String(text) => excerpt(text),
            Value::Array(_) => "a list".to_owned(),
            Value::Object(_) => "an object".to_owned(),
            other => other.to_string(),
        };
        Self::Invalid {
            field: field.into(),
            value,
            expected: expected.into(),
        }
    }
}

/// The members of one object, removed one by one. A null counts as absent everywhere: Go runtimes
/// write an unset list or map that way.
pub(super) struct Fields {
    at: String,
    members: Map<String, Value>,
}

impl Fields {
    /// The root object.
    pub(super) fn root(members: Map<String, Value>) -> Self {
        Self {
            at: String::new(),
            members,
        }
    }

    /// The object at path `at`.
    pub(super) fn of(at: &str, value: Value) -> Result<Self, FieldError> {
        match value {
            Value::Object(members) => Ok(Self {
                at: at.to_owned(),
                members,
            }),
            other => Err(FieldError::invalid(at, &other, "an object")),
        }
    }

    /// The path of a member from the root.
    pub(super) fn path(&self, name: &str) -> String {
        if self.at.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.at)
        }
    }

    pub(super) fn missing(&self, name: &str) -> FieldError {
        FieldError::Missing {
            field: self.path(name),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Whether the member is present at all, even as null.
    pub(super) fn mentions(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Gives a member this name that is written in another case.
    pub(super) fn respell(&mut self, name: &str) {
        let other = |key: &&String| key.as_str() != name && key.eq_ignore_ascii_case(name);
        if let Some(key) = self.members.keys().find(other).cloned()
            && let Some(value) = self.members.remove(&key)
        {
            self.members.entry(name).or_insert(value);
        }
    }

    /// Whether the member is this text; it stays.
    pub(super) fn has_text(&self, name: &str, text: &str) -> bool {
        self.members.get(name).and_then(Value::as_str) == Some(text)
    }

    pub(super) fn take(&mut self, name: &str) -> Option<Value> {
        self.members.remove(name).filter(|value| !value.is_null())
    }

    /// A string; empty counts as absent, as with Go's decoders.
    pub(super) fn string(&mut self, name: &str) -> Result<Option<String>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) if text.is_empty() => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(FieldError::invalid(self.path(name), &other, "a string")),
        }
    }

    /// A string that `parse` accepts.
    pub(super) fn parsed<T>(
        &mut self,
        name: &str,
        expected: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, FieldError> {
        let Some(text) = self.string(name)? else {
            return Ok(None);
        };
        match parse(&text) {
            Some(parsed) => Ok(Some(parsed)),
            None => Err(FieldError::invalid(
                self.path(name),
                &Value::String(text),
                expected,
            )),
        }
    }

    /// An integer that `accept` admits.
    pub(super) fn number<T: TryFrom<u64>>(
        &mut self,
        name: &str,
        expected: &str,
        accept: impl Fn(&T) -> bool,
    ) -> Result<Option<T>, FieldError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value
            .as_u64()
            .and_then(|number| T::try_from(number).ok())
            .filter(accept)
        {
            Some(number) => Ok(Some(number)),
            None => Err(FieldError::invalid(self.path(name), &value, expected)),
        }
    }

    /// `true` or `false`.
    pub(super) fn switch(&mut self, name: &str) -> Result<Option<bool>, FieldError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(other) => Err(FieldError::invalid(
                self.path(name),
                &other,
                "true or false",
            )),
        }
    }

    /// An object.
    pub(super) fn object(&mut self, name: &str) -> Result<Option<Self>, FieldError> {
        let path = self.path(name);
        self.take(name)
            .map(|value| Self::of(&path, value))
            .transpose()
    }

    /// A list; `read` parses each element and gets the element's path.
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        read: impl Fn(String, Value) -> Result<T, FieldError>,
    ) -> Result<Vec<T>, FieldError> {
        let path = self.path(name);
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::Array(elements)) => elements
                .into_iter()
                .enumerate()
                .map(|(at, element)| read(format!("{path}[{at}]"), element))
                .collect(),
            Some(other) => Err(FieldError::invalid(path, &other, "a list")),
        }
    }

    /// A list of strings.
    pub(super) fn strings(&mut self, name: &str) -> Result<Vec<String>, FieldError> {
        self.list(name, |path, element| match element {
            Value::String(text) => Ok(text),
            other => Err(FieldError::invalid(path, &other, "a string")),
        })
    }

    /// The members not taken.
    pub(super) fn rest(self) -> Map<String, Value> {
        self.members
    }
}

/// The longest name of a pod or of another object (DNS-1123 subdomain, as Kubernetes has it).
pub const MAX_NAME: usize = 253;

/// Whether this is a valid name of a network or id of a container: `[a-zA-Z0-9][a-zA-Z0-9_.-]*`
/// (CNI spec, sections 1 and 2).
pub fn is_valid_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|first| first.is_ascii_alphanumeric())
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

/// The longest interface name: IFNAMSIZ less the closing NUL.
pub const MAX_IFNAME: usize = 15;

/// Whether the kernel accepts this as an interface's name (`dev_valid_name`): 1 to 15 bytes, not
/// "." or "..", without '/', ':' and white space.
pub fn is_valid_ifname(text: &str) -> bool {
    (1..=MAX_IFNAME).contains(&text.len())
        // `all` and `default` are the names of sysctl directories, and '%' makes the kernel choose
        // a name (`dev_alloc_name`).
        && !matches!(text, "." | ".." | "all" | "default")
        && !text
            .chars()
            .any(|c| matches!(c, '/' | ':' | '%') || c.is_whitespace() || c.is_control())
}
