//! What a model call used.

/// The tokens of one model call, or of several summed.
///
/// The four counters overlap nowhere: every token stands in exactly one of them, so that each is
/// priced once.
///
/// Providers disagree on what "input" means:
///
/// - Anthropic's `input_tokens` are those that neither came from nor went to the cache. They are
///   `input` as they are; `cache_read_input_tokens` and `cache_creation_input_tokens` come beside
///   them ([Anthropic, "Prompt caching"][anthropic]).
/// - OpenAI's `prompt_tokens` (or `input_tokens`) include `cached_tokens`. Subtract them:
///   `input = prompt_tokens - cached_tokens`, `cache_read = cached_tokens`. Where a provider of that
///   kind says what it wrote to the cache within its input, subtract that as well
///   ([OpenAI, "Prompt caching"][openai]).
///
/// Sums saturate.
///
/// [anthropic]: https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching#tracking-cache-performance
/// [openai]: https://platform.openai.com/docs/guides/prompt-caching
///
/// # Examples
///
/// ```
/// use admit::Usage;
///
/// // OpenAI: 2006 prompt tokens, 1920 of them cached.
/// let usage = Usage::new(2_006 - 1_920, 300).with_cache(1_920, 0);
/// assert_eq!(usage.total(), 2_306);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default, deny_unknown_fields))]
pub struct Usage {
    /// Input tokens that neither came from the provider's cache nor went to it.
    pub input: u64,
    /// Output tokens, those of reasoning among them.
    pub output: u64,
    /// Input tokens read from the provider's cache.
    pub cache_read: u64,
    /// Input tokens written to the provider's cache.
    pub cache_write: u64,
}

impl Usage {
    /// Input and output, without a cache.
    #[must_use]
    pub const fn new(input: u64, output: u64) -> Self {
        Self { input, output, cache_read: 0, cache_write: 0 }
    }

    /// The same usage with tokens read from the cache and written to it, beside the input.
    #[must_use]
    pub const fn with_cache(mut self, read: u64, write: u64) -> Self {
        self.cache_read = read;
        self.cache_write = write;
        self
    }

    /// The sum of both, counter by counter.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
        }
    }

    /// All tokens together.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.input
            .saturating_add(self.output)
            .saturating_add(self.cache_read)
            .saturating_add(self.cache_write)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_adds_counter_by_counter_and_saturates() {
        let one = Usage::new(1, 2).with_cache(3, 4);
        assert_eq!(one.total(), 10);
        assert_eq!(one.plus(Usage::new(10, 20)), Usage::new(11, 22).with_cache(3, 4));
        let most = Usage::new(u64::MAX, u64::MAX).with_cache(u64::MAX, u64::MAX);
        assert_eq!(most.plus(one), most);
        assert_eq!(most.total(), u64::MAX);
        assert_eq!(Usage::default().total(), 0);
    }
}
