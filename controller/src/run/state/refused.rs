//! Keys whose rows the database refuses, each for itself.

use std::time::Duration;

use podwire_ovs::transact::TransactError;

use super::State;
use crate::key::Key;
use crate::write::Write;

/// The delay before such a key is tried again; it doubles.
const FIRST: Duration = Duration::from_secs(1);
/// How often it doubles.
const DOUBLED: u32 = 8;

/// Whether a transaction can't be committed because of what is in it.
pub(crate) fn is_refusal(error: &TransactError) -> bool {
    matches!(
        error,
        TransactError::Operation { .. }
            | TransactError::Commit { .. }
            | TransactError::Invalid { .. }
            | TransactError::TooLarge { .. }
    )
}

impl State {
    /// A key's transaction was refused. Returns when to try again, and what to say: nothing the
    /// first time, for somebody may just have changed the rows.
    pub(crate) fn rows_refused(
        &mut self,
        key: &Key,
        error: &TransactError,
    ) -> (Duration, Option<Write>) {
        let message = format!(
            "the northbound database does not take its rows: {error}; they stay what they were, \
             and it is tried again"
        );
        let (before, times) = self.refused_rows.remove(key).unwrap_or_default();
        let warning = (times == 1 || (times > 1 && before != message)).then(|| Write::Warning {
            uid: self.uid(key).unwrap_or_default().into(),
            reason: "RowsRefused",
            message: message.as_str().into(),
        });
        self.refused_rows.insert(key.clone(), (message, times + 1));
        (FIRST * (1 << times.min(DOUBLED)), warning)
    }

    /// What was to be said of it was not: it is said the next time.
    pub(super) fn refusal_untold(&mut self, key: &Key) {
        if let Some((_, times)) = self.refused_rows.get_mut(key) {
            *times = 1;
        }
    }

    /// Rows were committed, or are there.
    pub(crate) fn rows_accepted(&mut self, keys: &[Key]) {
        if !self.refused_rows.is_empty() {
            for key in keys {
                self.refused_rows.remove(key);
            }
        }
    }
}
