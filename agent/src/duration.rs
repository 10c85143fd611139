//! Lengths of time in errors and logs: `501 ms`, `2.5 s`.

use std::time::Duration;

/// A length of time in the usual unit: whole milliseconds below one second, seconds above.
pub fn text(time: Duration) -> String {
    let milliseconds = time.as_millis();
    match milliseconds {
        0..1000 => format!("{milliseconds} ms"),
        _ if milliseconds.is_multiple_of(1000) => format!("{} s", time.as_secs()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_has_one_unit_and_no_more_digits_than_anybody_reads() {
        for (micros, expected) in [
            (501_259, "501 ms"),
            (2_000_000, "2 s"),
            (2_480_000, "2.5 s"),
            (30_000_000, "30 s"),
        ] {
            assert_eq!(text(Duration::from_micros(micros)), expected);
        }
    }
}
