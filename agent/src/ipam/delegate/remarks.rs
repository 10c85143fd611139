//! What IPAM plugins write to standard error during one operation.
//!
//! It would go to the CNI plugin's standard error if that had started them; the agent's reply takes
//! it there.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use podwire_cni::wire::MAX_STDERR;

/// The remarks so far; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Remarks(Arc<Mutex<String>>);

impl Remarks {
    /// Adds one; the text is cut at the limit.
    pub(super) fn add(&self, text: &str) {
        let mut remarks = self.lock();
        let room = MAX_STDERR.saturating_sub(remarks.len());
        remarks.push_str(&text[..text.floor_char_boundary(room)]);
    }

    /// Takes all of them.
    pub fn take(&self) -> String {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_follow_each_other_up_to_what_a_reply_takes() {
        let remarks = Remarks::default();
        let clone = remarks.clone();
        remarks.add("one\n");
        clone.add("two\n");
        assert_eq!(remarks.take(), "one\ntwo\n");
        remarks.add("x");
        remarks.add(&"é".repeat(MAX_STDERR));
        assert_eq!(clone.take().len(), MAX_STDERR - 1);
    }
}
