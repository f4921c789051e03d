//! Asks and answers in words, for the author who reads of a breach.

use std::fmt;

use super::subject::{Answer, Opinion};
use crate::account::Ask;

/// `3 permits`, `3 permits with 2 permits reserved ahead`.
pub(super) fn of(ask: &Ask) -> String {
    match ask.reserved_ahead.is_none() {
        true if ask.mine.is_none() => "nothing".to_owned(),
        true => ask.mine.to_string(),
        false => format!("{} with {} reserved ahead", ask.mine, ask.reserved_ahead),
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Refused => "never (a refusal)",
        })
    }
}

/// `no (until 3s later)`: the answer, and the instant beside a no.
impl fmt::Display for Opinion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.earliest {
            Some(at) => {
                let wait = at.saturating_duration_since(self.ask.now);
                write!(f, "{} (until {wait:?} later)", self.answer)
            }
            None => self.answer.fmt(f),
        }
    }
}
