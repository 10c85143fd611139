//! The plugin's half of HTTP/1.1 (RFC 9112), without IO: one POST out, one reply in. It understands
//! only what the agent sends, and names what it refuses: a reply is either complete and of the
//! announced length, or an error.

use super::{MAX_REPLY, PATH, STDERR_HEADER, WIRE_HEADER, WIRE_VERSION};

/// The longest head of a reply, status line and headers, in bytes.
pub const MAX_HEAD: usize = 8 * 1024;

/// A reply's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The status code, 200 to 599.
    pub status: u16,
    /// Where the body begins: its offset in the reply, in bytes.
    pub body_at: usize,
    /// The body's length in bytes, at most [`MAX_REPLY`].
    pub body_len: usize,
    /// The number of bytes at the body's end that are for stderr.
    pub stderr_len: usize,
}

/// Why a reply can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HttpError {
    /// The head does not end within [`MAX_HEAD`].
    #[error("its head is longer than {MAX_HEAD} bytes")]
    HeadTooLong,
    /// The first line is not `HTTP/1.x NNN …`.
    #[error("its first line is {0}, not an HTTP/1.1 status line")]
    StatusLine(String),
    /// A line of the head is not `name: value`.
    #[error("its head has the line {0}, which is not a header")]
    Header(String),
    /// The body has a transfer coding, which the agent never uses.
    #[error("it has the transfer coding {0}; only Content-Length is supported")]
    TransferCoding(String),
    /// There is no Content-Length.
    #[error("it has no Content-Length")]
    NoLength,
    /// The Content-Length is not a number, or there are two that differ.
    #[error("its Content-Length is {0}")]
    BadLength(String),
    /// The number of bytes for stderr exceeds the body, or is no number.
    #[error("its {STDERR_HEADER} is {0}")]
    BadStderr(String),
    /// The body is longer than [`MAX_REPLY`].
    #[error("it announces {0} bytes, but at most {MAX_REPLY} are allowed")]
    BodyTooLong(u64),
    /// More bytes arrived than the Content-Length announced.
    #[error("it announces {announced} bytes, but has {came}")]
    Excess {
        /// The Content-Length.
        announced: usize,
        /// The bytes of the body that arrived.
        came: usize,
    },
}

impl Head {
    /// Whether these bytes, from the start of the reply, contain all of its body.
    ///
    /// # Errors
    /// They contain more than that.
    pub fn is_whole(&self, bytes: &[u8]) -> Result<bool, HttpError> {
        let came = bytes.len().saturating_sub(self.body_at);
        if came > self.body_len {
            return Err(HttpError::Excess {
                announced: self.body_len,
                came,
            });
        }
        Ok(came == self.body_len && bytes.len() >= self.body_at)
    }
}

/// The head of the POST, for a body with this length in bytes.
pub fn post_head(body_len: usize) -> String {
    format!(
        "POST {PATH} HTTP/1.1\r\nhost: podwire\r\n{WIRE_HEADER}: {WIRE_VERSION}\r\n\
         content-type: application/json\r\ncontent-length: {body_len}\r\nconnection: close\r\n\r\n"
    )
}

/// Parses the head of a reply from the bytes that have arrived. `None` if it is still incomplete.
///
/// # Errors
/// The head is invalid, whatever follows.
pub fn head(bytes: &[u8]) -> Result<Option<Head>, HttpError> {
    let window = &bytes[..bytes.len().min(MAX_HEAD)];
    let Some(end) = window.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if bytes.len() >= MAX_HEAD {
            Err(HttpError::HeadTooLong)
        } else {
            Ok(None)
        };
    };
    let mut lines = bytes[..end].split(|byte| *byte == b'\n').map(trim);
    let status = status(lines.next().unwrap_or_default())?;
    let mut length = None;
    let mut stderr = None;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':');
        let (name, value) = match colon {
            Some(colon) if colon > 0 => (&line[..colon], trim(&line[colon + 1..])),
            _ => return Err(HttpError::Header(quote(line))),
        };
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            return Err(HttpError::TransferCoding(quote(value)));
        }
        if name.eq_ignore_ascii_case(STDERR_HEADER.as_bytes()) {
            stderr = Some(number(value).ok_or_else(|| HttpError::BadStderr(quote(value)))?);
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let this = number(value).ok_or_else(|| HttpError::BadLength(quote(value)))?;
            if length.is_some_and(|other| other != this) {
                return Err(HttpError::BadLength(
                    "given twice, and differently".to_owned(),
                ));
            }
            length = Some(this);
        }
    }
    let length = length.ok_or(HttpError::NoLength)?;
    let body_len = match usize::try_from(length) {
        Ok(body_len) if body_len <= MAX_REPLY => body_len,
        _ => return Err(HttpError::BodyTooLong(length)),
    };
    let stderr = stderr.unwrap_or(0);
    match usize::try_from(stderr) {
        Ok(stderr_len) if stderr_len <= body_len => Ok(Some(Head {
            status,
            body_at: end + 4,
            body_len,
            stderr_len,
        })),
        _ => Err(HttpError::BadStderr(format!(
            "{stderr}, of a body of {body_len} bytes"
        ))),
    }
}

/// RFC 9112 §4. An interim reply (1xx) is refused too: nothing in the request asks for one.
fn status(line: &[u8]) -> Result<u16, HttpError> {
    let code = line
        .strip_prefix(b"HTTP/1.")
        .and_then(|rest| rest.split_at_checked(2))
        .filter(|(minor, _)| [b"0 ", b"1 "].iter().any(|known| *minor == *known))
        .map(|(_, rest)| rest.split(|byte| *byte == b' ').next().unwrap_or_default())
        .filter(|code| code.len() == 3)
        .and_then(number)
        .filter(|code| (200..600).contains(code));
    match code.and_then(|code| u16::try_from(code).ok()) {
        Some(code) => Ok(code),
        None => Err(HttpError::StatusLine(quote(line))),
    }
}

/// Digits only: Rust's own parser also accepts a sign, which HTTP's numbers don't have.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

fn trim(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

fn quote(line: &[u8]) -> String {
    crate::spec::excerpt(&String::from_utf8_lossy(line))
}

#[cfg(test)]
mod tests;
