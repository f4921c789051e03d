//! Numbers and times the way people read them.

use std::time::Duration;

/// With a comma between thousands.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Seconds with one decimal, or minutes and seconds from two minutes on.
pub(crate) fn seconds(time: Duration) -> String {
    if time < Duration::from_secs(120) {
        return format!("{:.1} s", time.as_secs_f64());
    }
    let whole = time.as_secs();
    format!("{} min {:02} s", whole / 60, whole % 60)
}

/// A number with its noun, in the plural where it belongs.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000), "1,000");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn times_are_short() {
        assert_eq!(seconds(Duration::from_millis(1_249)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 05 s");
    }
}
