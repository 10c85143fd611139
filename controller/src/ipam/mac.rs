use std::fmt;
use std::str::FromStr;

use macaddr::MacAddr6;

/// The MAC address of a pod's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub(super) [u8; 6]);

/// In lower case, as in OVN and ovn-kubernetes: rows are compared as text.
impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// The text is no MAC address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a unicast MAC address such as 0a:58:0a:f4:00:03")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Self, MacError> {
        let parsed: MacAddr6 = text.trim().parse().map_err(|_| MacError(text.to_owned()))?;
        match parsed.is_nil() || parsed.is_multicast() {
            true => Err(MacError(text.to_owned())),
            false => Ok(Self(parsed.into_array())),
        }
    }
}

impl Mac {
    /// Whether it belongs to an IP address.
    pub(super) fn is_derived(self) -> bool {
        self.0.starts_with(&[0x0a, 0x58])
    }
}
