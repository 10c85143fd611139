use memchr::memchr2;

use super::{KEPT_BYTES, Limits, WireError};

/// Splits a stream of JSON objects into messages.
///
/// Each byte is examined once, however the stream is chunked: the scan continues where it stopped.
/// Memory stays below [`Limits::message_bytes`] plus the largest chunk.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    buffer: Vec<u8>,
    /// The beginning of the message being read.
    start: usize,
    /// How far it has been examined.
    scanned: usize,
    /// The expected closing brackets, innermost last.
    open: Vec<u8>,
    text: Text,
    /// How often a byte of a message was looked at.
    #[cfg(test)]
    pub(super) looks: usize,
}

/// The state of the scan with respect to strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Text {
    Outside,
    Inside,
    /// Right after a backslash.
    Escape,
}

impl Decoder {
    /// A decoder at the start of a stream.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            open: Vec::new(),
            text: Text::Outside,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Appends a chunk of the stream. Drain [`Self::next_message`] before the next one, because the
    /// limits are checked there.
    pub fn feed(&mut self, bytes: &[u8]) {
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT_BYTES);
            (self.start, self.scanned) = (0, 0);
        } else if self.start > self.buffer.len() / 2 {
            // At most as many bytes are moved as were consumed since the last move.
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete message, or `None` if more of the stream is needed. Its brackets and
    /// strings are balanced; the parser decides whether it is JSON.
    ///
    /// # Errors
    /// A limit is exceeded, or a byte is invalid at its position; the stream can't be resumed then.
    pub fn next_message(&mut self) -> Result<Option<&[u8]>, WireError> {
        self.skip_space();
        while let Some(&byte) = self.buffer.get(self.scanned) {
            if self.scanned - self.start >= self.limits.message_bytes {
                return Err(WireError::MessageTooLong(self.limits.message_bytes));
            }
            self.scanned += 1;
            if self.step(byte)? {
                let message = self.start..self.scanned;
                self.start = self.scanned;
                return Ok(Some(&self.buffer[message]));
            }
            if self.text == Text::Inside {
                self.skip_text();
            }
        }
        Ok(None)
    }

    /// Most of a message is text, and only two bytes in it matter.
    fn skip_text(&mut self) {
        let limit = self.start.saturating_add(self.limits.message_bytes);
        let rest = &self.buffer[self.scanned..limit.min(self.buffer.len())];
        let skipped = memchr2(b'"', b'\\', rest).unwrap_or(rest.len());
        self.scanned += skipped;
        #[cfg(test)]
        {
            self.looks += skipped;
        }
    }

    fn skip_space(&mut self) {
        if self.open.is_empty() {
            while self
                .buffer
                .get(self.scanned)
                .is_some_and(u8::is_ascii_whitespace)
            {
                self.scanned += 1;
            }
            self.start = self.scanned;
        }
    }

    /// Examines one byte of a message; true if it is the last.
    fn step(&mut self, byte: u8) -> Result<bool, WireError> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        match (self.text, byte) {
            (Text::Inside, b'"') => self.text = Text::Outside,
            (Text::Inside, b'\\') => self.text = Text::Escape,
            (Text::Inside, _) => {}
            (Text::Escape, _) => self.text = Text::Inside,
            (Text::Outside, b'{') => self.open(b'}')?,
            (Text::Outside, _) if self.open.is_empty() => return Err(WireError::NotAnObject(byte)),
            (Text::Outside, b'[') => self.open(b']')?,
            (Text::Outside, b'"') => self.text = Text::Inside,
            (Text::Outside, b'}' | b']') => {
                if self.open.pop() != Some(byte) {
                    return Err(WireError::Unbalanced(byte));
                }
                return Ok(self.open.is_empty());
            }
            (Text::Outside, _) => {}
        }
        Ok(false)
    }

    fn open(&mut self, closing: u8) -> Result<(), WireError> {
        if self.open.len() >= self.limits.depth {
            return Err(WireError::TooDeep(self.limits.depth));
        }
        self.open.push(closing);
        Ok(())
    }
}
