//! Times as upstreams write them: seconds, compound durations, dates.
//!
//! Pure functions from text to a duration. A text that does not say a time between zero and a day
//! from now says nothing: `None`, never an error. Decimals are read exactly, without floats, and
//! digits past the nanosecond are dropped.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longer than this is an absent value: it is a mistake, or a clock in another unit.
pub(super) const LONGEST: Duration = Duration::from_secs(86_400);

const NANOS: u128 = 1;
const MICROS: u128 = 1_000;
const MILLIS: u128 = 1_000_000;
const SECONDS: u128 = 1_000_000_000;

/// The units of a compound duration, longest first.
const UNITS: [(&str, u128); 7] = [
    ("d", 86_400 * SECONDS),
    ("h", 3_600 * SECONDS),
    ("m", 60 * SECONDS),
    ("s", SECONDS),
    ("ms", MILLIS),
    ("us", MICROS),
    ("ns", NANOS),
];

/// A `retry-after`: seconds, whole or with a fraction, or an HTTP date that has not passed.
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    decimal(text, SECONDS).and_then(bounded).or_else(|| http_date(text, now))
}

/// A `retry-after-ms`: milliseconds, whole or with a fraction.
pub(super) fn retry_after_ms(text: &str) -> Option<Duration> {
    decimal(text, MILLIS).and_then(bounded)
}

/// When a limit is whole again: `6m0s`, `1.5`, or an RFC 3339 time that has not passed.
///
/// Providers copy each other's header names with their own spelling of the value, so any of the
/// three is taken under any of the names; a Unix time is over a day from now in seconds, and
/// thereby absent.
pub(super) fn reset(text: &str, now: SystemTime) -> Option<Duration> {
    match decimal(text, SECONDS) {
        Some(nanos) => bounded(nanos),
        None => compound(text).or_else(|| rfc3339(text, now)),
    }
}

/// A whole number without a sign.
pub(super) fn count(text: &str) -> Option<u64> {
    // `parse` alone would take a plus sign.
    if is_digits(text) { text.parse().ok() } else { None }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `12` or `12.5` of a unit, in nanoseconds; `None` when malformed or beyond reason.
fn decimal(text: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
        Some(_) => return None,
        None => (text, ""),
    };
    if !is_digits(whole) {
        return None;
    }
    // Too many digits for a `u64` are not seconds of any day; saturating keeps them out below.
    let whole: u128 = whole.parse::<u64>().map_or(u128::from(u64::MAX), u128::from);
    // Eighteen digits say every nanosecond of a day; the rest are dropped.
    let fraction = &fraction[..fraction.len().min(18)];
    let scale = 10_u128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    let part = fraction.parse::<u64>().map_or(0, u128::from);
    Some(whole.saturating_mul(unit).saturating_add(part * unit / scale))
}

/// Amounts with units, each unit once and longest first: `6m0s`, `1h2m3.5s`, `20ms`.
fn compound(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut units = &UNITS[..];
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let amount_ends = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (amount, tail) = rest.split_at(amount_ends);
        let unit_ends = tail.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(tail.len());
        let (name, tail) = tail.split_at(unit_ends);
        let place = units.iter().position(|(unit, _)| *unit == name)?;
        nanos = nanos.saturating_add(decimal(amount, units[place].1)?);
        units = &units[place + 1..];
        rest = tail;
    }
    if text.is_empty() { None } else { bounded(nanos) }
}

fn http_date(text: &str, now: SystemTime) -> Option<Duration> {
    until(since_epoch(httpdate::parse_http_date(text).ok()?), now)
}

fn rfc3339(text: &str, now: SystemTime) -> Option<Duration> {
    until(text.parse::<jiff::Timestamp>().ok()?.as_nanosecond(), now)
}

/// From now to then; a past date is no date.
fn until(nanos: i128, now: SystemTime) -> Option<Duration> {
    bounded(u128::try_from(nanos - since_epoch(now)).ok()?)
}

/// Nanoseconds since the epoch, negative before it.
fn since_epoch(time: SystemTime) -> i128 {
    let signed = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 2);
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => signed(after),
        Err(before) => -signed(before.duration()),
    }
}

fn bounded(nanos: u128) -> Option<Duration> {
    if nanos > LONGEST.as_nanos() {
        return None;
    }
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 2024-06-01T12:00:00Z, half a second in.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(1_717_243_200_500)
    }

    fn millis(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    #[test]
    fn a_retry_after_is_seconds_or_a_coming_date() {
        for (text, expected) in [
            ("0", millis(0)),
            ("7", millis(7_000)),
            ("007", millis(7_000)),
            ("299.997", millis(299_997)),
            ("0.0000000019", Some(Duration::from_nanos(1))),
            ("86400", millis(86_400_000)),
            ("86400.000000001", None),
            ("999999", None),
            ("123456789012345678901234567890", None),
            ("-1", None),
            ("-0", None),
            ("+1", None),
            ("", None),
            (".", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("1e3", None),
            ("0x10", None),
            ("NaN", None),
            ("inf", None),
            ("1 2", None),
            ("1, 2", None),
            ("1s", None),
            ("abc", None),
            ("٣", None),
            ("Sat, 01 Jun 2024 12:00:30 GMT", millis(29_500)),
            ("Saturday, 01-Jun-24 12:00:30 GMT", millis(29_500)),
            ("Sat Jun  1 12:00:30 2024", millis(29_500)),
            ("Sat, 01 Jun 2024 11:59:30 GMT", None),
            ("Sun, 02 Jun 2024 12:00:00 GMT", millis(86_399_500)),
            ("Sun, 02 Jun 2024 12:00:01 GMT", None),
            ("Fri, 31 Dec 9999 23:59:59 GMT", None),
            ("Sat, 99 Jun 2024 12:00:30 GMT", None),
            ("2024-06-01T12:00:30Z", None),
        ] {
            assert_eq!(retry_after(text, now()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_retry_after_in_milliseconds_is_only_a_number() {
        for (text, expected) in [
            ("1500", millis(1_500)),
            ("0.5", Some(Duration::from_micros(500))),
            ("86400000", millis(86_400_000)),
            ("86400001", None),
            ("-1", None),
            ("20ms", None),
            ("Sat, 01 Jun 2024 12:00:30 GMT", None),
        ] {
            assert_eq!(retry_after_ms(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_reset_is_a_duration_or_a_coming_instant() {
        for (text, expected) in [
            ("6m0s", millis(360_000)),
            ("1s", millis(1_000)),
            ("1.5s", millis(1_500)),
            ("20ms", millis(20)),
            ("1h2m3.5s", millis(3_723_500)),
            ("1d", millis(86_400_000)),
            ("24h0m0s", millis(86_400_000)),
            ("1d1ns", None),
            ("250us", Some(Duration::from_micros(250))),
            ("0s", millis(0)),
            ("59.7", millis(59_700)),
            ("1717243260", None),
            ("-6m0s", None),
            ("6m-1s", None),
            ("6m 0s", None),
            ("0s6m", None),
            ("1s1s", None),
            ("1", millis(1_000)),
            ("m", None),
            ("1.s", None),
            ("1x", None),
            ("1M", None),
            ("6m0", None),
            ("99999999999999999999999999h", None),
            ("", None),
            ("2024-06-01T12:00:30Z", millis(29_500)),
            ("2024-06-01T12:00:30.25Z", millis(29_750)),
            ("2024-06-01T14:00:30+02:00", millis(29_500)),
            ("2024-06-01T12:00:00Z", None),
            ("2024-06-03T12:00:00Z", None),
            ("2024-13-01T12:00:30Z", None),
            ("2024-06-01", None),
            ("9999-12-31T23:59:59Z", None),
            ("-009999-01-01T00:00:00Z", None),
        ] {
            assert_eq!(reset(text, now()), expected, "{text:?}");
        }
    }

    #[test]
    fn a_clock_before_the_epoch_is_no_panic() {
        let before = UNIX_EPOCH - Duration::from_secs(10);
        assert_eq!(reset("1970-01-01T00:00:00Z", before), millis(10_000));
        assert_eq!(retry_after("Thu, 01 Jan 1970 00:00:05 GMT", before), millis(15_000));
    }

    #[test]
    fn a_count_has_no_sign_and_fits() {
        for (text, expected) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("+1", None),
            ("-1", None),
            ("1.0", None),
            ("1_000", None),
            ("", None),
        ] {
            assert_eq!(count(text), expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics_and_none_says_more_than_a_day(text in "\\PC*", soup in "[0-9.dhmsunT:Z+-]{0,24}") {
            for text in [text, soup] {
                for said in [retry_after(&text, now()), retry_after_ms(&text), reset(&text, now())] {
                    prop_assert!(said.is_none_or(|said| said <= LONGEST));
                }
            }
        }

        #[test]
        fn every_date_within_a_day_reads_back_in_the_three_forms_of_http(
            now in prop_oneof![0..3_155_000_000_u64, 0..253_402_000_000_u64],
            nanos in 0..1_000_000_000_u32,
            ahead in -90_000..90_000_i64,
        ) {
            let Some(then) = now.checked_add_signed(ahead) else { return Ok(()) };
            let date = httpdate::fmt_http_date(UNIX_EPOCH + Duration::from_secs(then));
            // `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT`,
            // `Sun Nov  6 08:49:37 1994`.
            let (weekday, day, month, year, time) =
                (&date[..3], &date[5..7], &date[8..11], &date[12..16], &date[17..25]);
            let whole = ["Mon", "Tues", "Wednes", "Thurs", "Fri", "Satur", "Sun"]
                .into_iter()
                .find(|whole| whole.starts_with(weekday))
                .unwrap();
            let mut forms = vec![
                date.clone(),
                format!("{weekday} {month} {:>2} {time} {year}", day.trim_start_matches('0')),
            ];
            if (1970..2070).contains(&year.parse().unwrap()) {
                forms.push(format!("{whole}day, {day}-{month}-{} {time} GMT", &year[2..]));
            }
            let from = UNIX_EPOCH + Duration::new(now, nanos);
            let expected = u64::try_from(ahead)
                .ok()
                .and_then(|ahead| Duration::from_secs(ahead).checked_sub(Duration::from_nanos(nanos.into())))
                .filter(|wait| *wait <= LONGEST);
            for form in forms {
                prop_assert_eq!(retry_after(&form, from), expected, "{}", form);
            }
        }

        #[test]
        fn every_duration_under_a_day_reads_back(h in 0..24_u64, m in 0..60_u64, ms in 0..60_000_u64) {
            let text = format!("{h}h{m}m{}.{:03}s", ms / 1_000, ms % 1_000);
            prop_assert_eq!(reset(&text, now()), millis((h * 60 + m) * 60_000 + ms));
        }
    }
}
