//! Netlink messages as text.

use std::fmt::Write as _;

use netlink_packet_core::{Emitable, Parseable};

/// A message in hexadecimal digits.
pub(crate) fn hex(message: &impl Emitable) -> String {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The message that [`hex`] has written.
pub(crate) fn of_hex<T: Parseable<[u8]>>(text: &str) -> Option<T> {
    let bytes = (0..text.len()).step_by(2);
    let bytes = bytes.map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok());
    let bytes = bytes.collect::<Option<Vec<u8>>>()?;
    T::parse(&bytes[..]).ok()
}

/// Messages in a record: each in hexadecimal digits.
pub(crate) mod hexed {
    use netlink_packet_core::{Emitable, Parseable};
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<T: Emitable, S: Serializer>(
        messages: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(messages.iter().map(super::hex))
    }

    pub(crate) fn deserialize<'de, T: Parseable<[u8]>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let messages = texts.iter().map(|text| super::of_hex(text));
        let messages = messages.collect::<Option<Vec<T>>>();
        messages.ok_or_else(|| D::Error::custom("a message that netlink does not have"))
    }
}
