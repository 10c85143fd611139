//! Times for people: ages, durations, and UTC for readers with another clock.

use std::time::Duration;

pub(super) use podwire::inspect::now_micros;

/// The age of a time, in one unit: `3 s ago`.
pub(super) fn ago(then_micros: u64, now_micros: u64) -> String {
    let seconds = now_micros.saturating_sub(then_micros) / 1_000_000;
    format!("{} ago", about(Duration::from_secs(seconds)))
}

/// The age of an object, in kubectl's form: `3s`, `59m`, `25h`, `4d`.
pub(super) fn age(then_micros: u64, now_micros: u64) -> String {
    let seconds = now_micros.saturating_sub(then_micros) / 1_000_000;
    about(Duration::from_secs(seconds))
        .replace(" min", "m")
        .replace(' ', "")
}

/// A duration in one unit.
pub(super) fn about(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// A duration in milliseconds, with as many decimals as it has.
pub(super) fn milliseconds(micros: f64) -> String {
    match micros / 1000.0 {
        ms if ms < 10.0 => format!("{ms:.2} ms"),
        ms if ms < 100.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// Microseconds since 1970 in RFC 3339 format, to the millisecond.
pub(super) fn utc(micros: u64) -> String {
    let (days, rest) = (micros / 86_400_000_000, micros % 86_400_000_000);
    let (year, month, day) = date(days);
    let seconds = rest / 1_000_000;
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    let milli = rest / 1000 % 1000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
}

/// Days since 1970 as a Gregorian date. Years begin in March here, so that the leap day comes last.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn utc_is_that_of_date_1() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_772_323_199, "2026-02-28T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(utc(seconds * 1_000_000), text);
        }
        assert_eq!(utc(1_234), "1970-01-01T00:00:00.001Z");
    }

    #[test]
    fn lengths_are_told_in_the_unit_that_says_most() {
        let about_seconds = |seconds| about(Duration::from_secs(seconds));
        assert_eq!(about_seconds(119), "119 s");
        assert_eq!(about_seconds(3599), "59 min");
        assert_eq!(about_seconds(90_000), "25 h");
        assert_eq!(about_seconds(400_000), "4 d");
        assert_eq!(ago(5_000_000, 2_000_000), "0 s ago");
        assert_eq!(age(0, 300_000_000), "5m");
        assert_eq!(milliseconds(3_419.0), "3.42 ms");
        assert_eq!(milliseconds(34_190.0), "34.2 ms");
        assert_eq!(milliseconds(30_000_000.0), "30.0 s");
    }
}
