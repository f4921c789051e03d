//! The IETF `RateLimit` and `RateLimit-Policy` fields.
//!
//! The current form of draft-ietf-httpapi-ratelimit-headers is a structured list of named policies
//! (`RateLimit-Policy: "burst";q=100;w=60` with `RateLimit: "burst";r=50;t=30`). The seventh draft
//! had unnamed ones (`RateLimit-Policy: 100;w=60` with `RateLimit: limit=100, remaining=50,
//! reset=5`). Both are read. As the draft demands, a field that is not well formed is ignored
//! whole.

use std::time::Duration;

use super::info::QuotaPolicy;
use super::retry_after::LONGEST;
use super::structured::{Bare, Member, list};

/// The policies of one response, each with what is said of its state.
pub(super) fn policies(policy: Option<&str>, state: Option<&str>) -> Vec<QuotaPolicy> {
    let mut found: Vec<QuotaPolicy> = members(policy).iter().filter_map(from_policy).collect();
    let state = members(state);
    for member in &state {
        if let (None, Bare::Text(name)) = (&member.key, &member.value) {
            let place = found.iter().position(|policy| policy.name == *name).unwrap_or_else(|| {
                found.push(unnamed(name.clone()));
                found.len() - 1
            });
            found[place].reading.remaining = member.count("r");
            found[place].reading.reset = member.count("t").and_then(seconds);
        }
    }
    apply_unnamed(&state, &mut found);
    found
}

/// The first number of a `RateLimit-Limit` field of the early drafts: `100, 100;w=60`.
///
/// It is the limit that runs out first, and those behind it say over what windows. `None` where that
/// is not a minute: a limit an hour would be taken for sixty times what it is.
pub(super) fn count_per_minute(text: &str) -> Option<u64> {
    let members = list(text)?;
    let limit = members.first()?.value.count()?;
    let is_of_a_minute =
        |member: &Member| member.parameter("w").is_none_or(|window| window.count() == Some(60));
    members
        .iter()
        .filter(|member| member.value.count() == Some(limit))
        .all(is_of_a_minute)
        .then_some(limit)
}

/// The members of a field; none when it is malformed, and none of a name that occurs twice: of
/// two that contradict each other neither is to be believed.
fn members(text: Option<&str>) -> Vec<Member> {
    let all = text.and_then(list).unwrap_or_default();
    let repeated = |member: &Member| {
        let twice =
            |same: &dyn Fn(&Member) -> bool| all.iter().filter(|other| same(other)).count() > 1;
        match (&member.key, &member.value) {
            (Some(key), _) => twice(&|other| other.key.as_ref() == Some(key)),
            (None, Bare::Text(name)) => {
                twice(&|other| matches!(&other.value, Bare::Text(text) if text == name))
            }
            (None, _) => false,
        }
    };
    let keep: Vec<bool> = all.iter().map(|member| !repeated(member)).collect();
    all.into_iter().zip(keep).filter_map(|(member, keep)| keep.then_some(member)).collect()
}

fn from_policy(member: &Member) -> Option<QuotaPolicy> {
    let mut policy = match (&member.key, &member.value) {
        (None, Bare::Text(name)) => {
            let mut policy = unnamed(name.clone());
            policy.reading.limit = member.count("q");
            policy
        }
        (None, value @ Bare::Integer(_)) => {
            let mut policy = unnamed(String::new());
            policy.reading.limit = value.count();
            policy
        }
        _ => return None,
    };
    policy.window = member.count("w").and_then(seconds);
    if let Some(Bare::Text(unit)) = member.parameter("qu") {
        policy.unit.clone_from(unit);
    }
    Some(policy)
}

/// The state of the seventh draft belongs to the unnamed policy of the same limit, if there is
/// one.
fn apply_unnamed(state: &[Member], found: &mut Vec<QuotaPolicy>) {
    let value = |name: &str| {
        let member = state.iter().find(|member| member.key.as_deref() == Some(name))?;
        member.value.count()
    };
    let (limit, remaining) = (value("limit"), value("remaining"));
    let reset = value("reset").and_then(seconds);
    if limit.is_none() && remaining.is_none() && reset.is_none() {
        return;
    }
    let same = |policy: &QuotaPolicy| policy.name.is_empty() && policy.reading.limit == limit;
    let place = found.iter().position(same).unwrap_or_else(|| {
        found.push(unnamed(String::new()));
        found.len() - 1
    });
    let reading = &mut found[place].reading;
    (reading.limit, reading.remaining, reading.reset) = (limit, remaining, reset);
}

fn unnamed(name: String) -> QuotaPolicy {
    QuotaPolicy { name, unit: QuotaPolicy::REQUESTS.to_owned(), ..QuotaPolicy::default() }
}

fn seconds(seconds: u64) -> Option<Duration> {
    Some(Duration::from_secs(seconds)).filter(|duration| *duration <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::LimitReading;

    type Row = (&'static str, &'static str, Option<u64>, Option<u64>, Option<u64>, Option<u64>);

    fn rows(policy: &str, state: &str) -> Vec<(String, String, [Option<u64>; 4])> {
        let secs = |duration: Option<Duration>| duration.map(|duration| duration.as_secs());
        policies(Some(policy), Some(state))
            .into_iter()
            .map(|policy| {
                let LimitReading { limit, remaining, reset } = policy.reading;
                (policy.name, policy.unit, [limit, secs(policy.window), remaining, secs(reset)])
            })
            .collect()
    }

    fn expect(policy: &str, state: &str, expected: &[Row]) {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, unit, q, w, r, t)| {
                ((*name).to_owned(), (*unit).to_owned(), [*q, *w, *r, *t])
            })
            .collect();
        assert_eq!(rows(policy, state), expected, "{policy:?} {state:?}");
    }

    #[test]
    fn named_policies_meet_their_state() {
        expect(
            r#""burst";q=100;w=60, "daily";q=1000;w=86400;qu="content-bytes";pk=:c2VjcmV0:"#,
            r#""daily";r=399;t=2402, "burst";r=20;t=23"#,
            &[
                ("burst", "requests", Some(100), Some(60), Some(20), Some(23)),
                ("daily", "content-bytes", Some(1_000), Some(86_400), Some(399), Some(2_402)),
            ],
        );
        expect("tok;q=1", "tok;r=0", &[("tok", "requests", Some(1), None, Some(0), None)]);
        expect("", r#""alone";r=5"#, &[("alone", "requests", None, None, Some(5), None)]);
    }

    #[test]
    fn the_seventh_drafts_form_is_read_too() {
        expect(
            "10;w=1, 100;w=3600",
            "limit=100, remaining=50, reset=5",
            &[
                ("", "requests", Some(10), Some(1), None, None),
                ("", "requests", Some(100), Some(3_600), Some(50), Some(5)),
            ],
        );
        expect("", "remaining=3", &[("", "requests", None, None, Some(3), None)]);
        assert_eq!(count_per_minute("100, 100;w=60"), Some(100));
        assert_eq!(count_per_minute("-1"), None);
        assert_eq!(count_per_minute("abc"), None);
    }

    #[test]
    fn what_is_negative_repeated_or_over_a_day_is_absent() {
        expect(r#""a";q=-1;w=86401"#, "", &[("a", "requests", None, None, None, None)]);
        expect("", r#""a";r=-5;t=999999"#, &[("a", "requests", None, None, None, None)]);
        expect(r#""a";q=1;q=2;w=60"#, "", &[("a", "requests", None, Some(60), None, None)]);
        expect(r#""a";q=1, "a";q=2, "b";q=3"#, "", &[("b", "requests", Some(3), None, None, None)]);
        expect("", r#""a";r=1, "a";r=2"#, &[]);
        expect("", "remaining=1, remaining=2", &[]);
        expect(r#""a";q="9";w=1.5"#, "", &[("a", "requests", None, None, None, None)]);
    }

    #[test]
    fn a_malformed_field_is_ignored_and_the_other_still_read() {
        expect(r#""a";q=100"#, r#""a";r=1,"#, &[("a", "requests", Some(100), None, None, None)]);
        expect(r#""a;q=100"#, r#""a";r=1"#, &[("a", "requests", None, None, Some(1), None)]);
    }
}
