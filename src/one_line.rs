//! Somebody else's text in a sentence of ours.

use std::fmt::{self, Write as _};

/// A text told on one line: whatever breaks a line or moves a cursor is a space.
///
/// What an upstream answers, a panic says or a catalog holds goes into errors and log lines. There
/// it must not begin a line of its own, nor repaint the terminal of whoever reads the log.
pub(crate) struct OneLine<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for OneLine<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Unbroken(f), "{}", self.0)
    }
}

/// A formatter that gets whatever is written without what breaks a line.
struct Unbroken<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for Unbroken<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|c| self.0.write_char(if breaks(c) { ' ' } else { c }))
    }
}

/// Whether a text is one line as it is.
pub(crate) fn is_one_line(text: &str) -> bool {
    !text.chars().any(breaks)
}

fn breaks(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_line_or_moves_a_cursor_is_a_space() {
        let text = OneLine("a\r\nb\u{1b}[31m\tc\u{85}d\u{2028}é").to_string();
        assert_eq!(text, "a  b [31m c d é");
        assert!(is_one_line(&text) && !is_one_line("a\u{2029}b"));
    }
}
