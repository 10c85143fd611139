//! MAC addresses as the kernel has them.

use itertools::Itertools as _;

/// The bytes of a MAC address; None if the text is none.
pub(crate) fn bytes(text: &str) -> Option<Vec<u8>> {
    let bytes: Option<Vec<u8>> = text
        .split(':')
        .map(|byte| u8::from_str_radix(byte, 16).ok())
        .collect();
    bytes.filter(|bytes| bytes.len() == 6)
}

/// In `ip`'s format.
pub(crate) fn text(bytes: &[u8]) -> String {
    let mut bytes = bytes.iter().map(|byte| format!("{byte:02x}"));
    bytes.join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_text() {
        let mac = "0a:58:11:37:a6:26";
        assert_eq!(text(&bytes(mac).unwrap()), mac);
        assert_eq!(bytes("0a:58"), None);
    }
}
