//! A bucket's numbers at one instant.

use std::fmt;

use tokio::time::Instant;

use crate::time_left::TimeLeft;

/// What a [`TokenBucket`](crate::TokenBucket) holds at one instant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct TokenBucketStatus {
    /// The budget of requests a minute.
    pub requests_per_minute: u32,
    /// Whole requests that could go now, but for a hold.
    pub available_requests: u32,
    /// The budget of tokens a minute.
    pub tokens_per_minute: u64,
    /// Whole tokens that could be taken now, but for a hold; zero while in debt.
    pub available_tokens: u64,
    /// How many tokens were used beyond what was there, rounded up.
    pub debt_tokens: u64,
    /// How far the minute is stretched: 0.5 is a budget in ninety seconds.
    pub throttle: f64,
    /// Nothing is granted before this instant, because the upstream asked for it; `None` when
    /// there is no such instant ahead.
    pub held_until: Option<Instant>,
    /// When this was read.
    pub read_at: Instant,
}

impl TokenBucketStatus {
    /// Whether one request of `tokens` tokens is there, but for a hold.
    #[must_use]
    pub const fn has_capacity(&self, tokens: u64) -> bool {
        self.available_requests >= 1 && self.available_tokens >= tokens
    }

    /// One line naming the numbers.
    #[must_use]
    pub fn summary(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for TokenBucketStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} requests and {} of {} tokens a minute available",
            self.available_requests,
            self.requests_per_minute,
            self.available_tokens,
            self.tokens_per_minute
        )?;
        if self.debt_tokens > 0 {
            write!(f, ", {} tokens of debt", self.debt_tokens)?;
        }
        if self.throttle > 0.0 {
            write!(f, ", throttle {:.1}", self.throttle)?;
        }
        if let Some(until) = self.held_until {
            let left = until.saturating_duration_since(self.read_at);
            write!(f, ", held for {}", TimeLeft(left))?;
        }
        Ok(())
    }
}
