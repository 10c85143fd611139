use std::fmt;
use std::str::FromStr;

/// A row's `_uuid`, 128 bits (RFC 7047 §3.1 `<uuid>`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid([u8; 16]);

/// The text is not a uuid of the form `8-4-4-4-12` hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a uuid of the form 8-4-4-4-12 hexadecimal digits")]
pub struct ParseUuidError;

impl Uuid {
    /// The uuid with these bytes, most significant first.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, most significant first.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    pub(crate) fn encode(self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut text = [b'-'; 36];
        let mut at = 0;
        for (byte, digits) in self.0.iter().enumerate() {
            if HYPHENS_BEFORE.contains(&byte) {
                at += 1;
            }
            text[at] = DIGITS[usize::from(digits >> 4)];
            text[at + 1] = DIGITS[usize::from(digits & 15)];
            at += 2;
        }
        text
    }
}

/// The bytes before which the text form has a hyphen.
const HYPHENS_BEFORE: [usize; 4] = [4, 6, 8, 10];

impl FromStr for Uuid {
    type Err = ParseUuidError;

    fn from_str(text: &str) -> Result<Self, ParseUuidError> {
        let text: &[u8; 36] = text.as_bytes().try_into().map_err(|_| ParseUuidError)?;
        let digit = |at: usize| {
            (text[at] as char)
                .to_digit(16)
                .and_then(|digit| u8::try_from(digit).ok())
        };
        let mut bytes = [0; 16];
        let mut at = 0;
        for (index, byte) in bytes.iter_mut().enumerate() {
            if HYPHENS_BEFORE.contains(&index) {
                if text[at] != b'-' {
                    return Err(ParseUuidError);
                }
                at += 1;
            }
            let (high, low) = digit(at).zip(digit(at + 1)).ok_or(ParseUuidError)?;
            *byte = high << 4 | low;
            at += 2;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::str::from_utf8(&self.encode()).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
