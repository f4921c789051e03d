//! The part of structured field values (RFC 9651) that rate limit fields are written in.
//!
//! A list of items with parameters, or a dictionary of them, read strictly: one wrong byte and
//! there is no list. Values that no rate limit field uses are skipped over, not kept.

/// The most members of a field that are read: somebody else's header is no reason to work long.
const MOST_MEMBERS: usize = 64;
/// The most parameters of a member.
const MOST_PARAMETERS: usize = 64;

/// A bare item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bare {
    Integer(i64),
    /// A string or a token.
    Text(String),
    /// Well formed, and of no interest here.
    Other,
}

impl Bare {
    pub(super) fn count(&self) -> Option<u64> {
        match self {
            Self::Integer(number) => u64::try_from(*number).ok(),
            Self::Text(_) | Self::Other => None,
        }
    }
}

/// A member of a list, or of a dictionary where it has a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) key: Option<String>,
    pub(super) value: Bare,
    parameters: Vec<(String, Bare)>,
}

impl Member {
    /// A parameter; `None` also when it is there twice.
    pub(super) fn parameter(&self, name: &str) -> Option<&Bare> {
        let mut named = self.parameters.iter().filter(|(key, _)| key == name);
        let (_, value) = named.next()?;
        if named.next().is_some() { None } else { Some(value) }
    }

    /// A parameter that is a whole number, not negative.
    pub(super) fn count(&self, name: &str) -> Option<u64> {
        self.parameter(name)?.count()
    }
}

/// The members of a list or a dictionary; `None` when it is malformed.
pub(super) fn list(text: &str) -> Option<Vec<Member>> {
    let mut scan = Scan(text.trim_matches(' ').as_bytes());
    let mut members = Vec::new();
    while !scan.0.is_empty() {
        if members.len() == MOST_MEMBERS {
            return None;
        }
        members.push(scan.member()?);
        scan.skip(|byte| byte == b' ' || byte == b'\t');
        if !scan.0.is_empty() {
            scan.expect(b',')?;
            scan.skip(|byte| byte == b' ' || byte == b'\t');
            // A comma announces one more.
            scan.peek()?;
        }
    }
    Some(members)
}

/// What is still to be read.
struct Scan<'a>(&'a [u8]);

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.0.first().copied()
    }

    fn expect(&mut self, byte: u8) -> Option<()> {
        self.0 = self.0.strip_prefix(&[byte])?;
        Some(())
    }

    /// The longest run of bytes that are wanted.
    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> &'a [u8] {
        let length = self.0.iter().position(|byte| !wanted(*byte)).unwrap_or(self.0.len());
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn skip(&mut self, unwanted: impl Fn(u8) -> bool) {
        self.take(unwanted);
    }

    fn member(&mut self) -> Option<Member> {
        let mut key = None;
        let mut value = self.bare()?;
        if self.peek() == Some(b'=') {
            // What looked like a token was a key; no token contains an equals sign.
            let Bare::Text(name) = value else { return None };
            self.expect(b'=')?;
            key = Some(name);
            value = self.bare()?;
        }
        Some(Member { key, value, parameters: self.parameters()? })
    }

    fn parameters(&mut self) -> Option<Vec<(String, Bare)>> {
        let mut parameters = Vec::new();
        while self.peek() == Some(b';') {
            self.expect(b';')?;
            if parameters.len() == MOST_PARAMETERS {
                return None;
            }
            self.skip(|byte| byte == b' ');
            if !self.peek().is_some_and(|byte| byte.is_ascii_lowercase() || byte == b'*') {
                return None;
            }
            let key = text(self.take(|byte| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte)
            }));
            let value = if self.peek() == Some(b'=') {
                self.expect(b'=')?;
                self.bare()?
            } else {
                Bare::Other
            };
            parameters.push((key, value));
        }
        Some(parameters)
    }

    fn bare(&mut self) -> Option<Bare> {
        match self.peek()? {
            b'"' => self.string().map(Bare::Text),
            b'-' | b'0'..=b'9' => self.number(),
            b'*' | b'a'..=b'z' | b'A'..=b'Z' => Some(Bare::Text(text(self.take(is_token)))),
            b':' => {
                self.enclosed(b':', |byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
            }
            b'?' => {
                self.expect(b'?')?;
                self.expect(b'0').or_else(|| self.expect(b'1'))?;
                Some(Bare::Other)
            }
            b'@' => {
                self.expect(b'@')?;
                self.number().map(|_| Bare::Other)
            }
            b'%' => {
                self.expect(b'%')?;
                self.enclosed(b'"', |byte| (b' '..=b'~').contains(&byte) && byte != b'"')
            }
            _ => None,
        }
    }

    fn enclosed(&mut self, mark: u8, inside: impl Fn(u8) -> bool) -> Option<Bare> {
        self.expect(mark)?;
        self.skip(inside);
        self.expect(mark)?;
        Some(Bare::Other)
    }

    fn string(&mut self) -> Option<String> {
        self.expect(b'"')?;
        let mut string = String::new();
        loop {
            string.push_str(&text(
                self.take(|byte| (b' '..=b'~').contains(&byte) && byte != b'"' && byte != b'\\'),
            ));
            match self.peek()? {
                b'"' => {
                    self.expect(b'"')?;
                    return Some(string);
                }
                b'\\' => {
                    self.expect(b'\\')?;
                    let escaped = self.peek().filter(|byte| matches!(byte, b'"' | b'\\'))?;
                    self.expect(escaped)?;
                    string.push(char::from(escaped));
                }
                _ => return None,
            }
        }
    }

    /// An integer of up to fifteen digits, or a decimal of up to twelve and three.
    fn number(&mut self) -> Option<Bare> {
        let negative = self.expect(b'-').is_some();
        let whole = self.take(|byte| byte.is_ascii_digit());
        if whole.is_empty() || whole.len() > 15 {
            return None;
        }
        if self.peek() == Some(b'.') {
            self.expect(b'.')?;
            let fraction = self.take(|byte| byte.is_ascii_digit());
            let fits = whole.len() <= 12 && (1..=3).contains(&fraction.len());
            return fits.then_some(Bare::Other);
        }
        let number: i64 = text(whole).parse().ok()?;
        Some(Bare::Integer(if negative { -number } else { number }))
    }
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~:/".contains(&byte)
}

fn text(ascii: &[u8]) -> String {
    ascii.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn well_formed_lists_are_read() {
        for (text, members) in [
            ("", 0),
            ("a", 1),
            (r#""with \"quotes\" and \\";q=1"#, 1),
            ("100;w=60;burst=1000;comment=\"x\"", 1),
            ("a;x;y=?1;z=:YQ==:;v=1.5;u=@1717243200;d=%\"caf%c3%a9\"", 1),
            ("limit=100, remaining=50 ,\treset=5", 3),
            ("  a;  q=1  ", 1),
        ] {
            assert_eq!(list(text).map(|list| list.len()), Some(members), "{text:?}");
        }
        let member = &list(r#""a\"b";q=7;q2=-7"#).unwrap()[0];
        assert_eq!(member.value, Bare::Text("a\"b".into()));
        assert_eq!(
            (member.count("q"), member.count("q2"), member.count("w")),
            (Some(7), None, None)
        );
    }

    #[test]
    fn one_wrong_byte_and_there_is_no_list() {
        for text in [
            ",",
            "a,",
            "a,,b",
            "a b",
            "\"a",
            "a;",
            "a;=1",
            "a;Q=1",
            "a;q=",
            "a;q=1e3",
            "a;q=--1",
            "(a b)",
            "1234567890123456",
            "1.",
            "1.2345",
            "\"a\\b\"",
            "a;q=:::",
            "?2",
            "1=2",
            "=1",
            "\"é\"",
            "a=b=c",
            "\0",
            "a;q=%c",
        ] {
            assert_eq!(list(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_field_without_end_is_not_read() {
        let long = |members: usize| vec!["a"; members].join(",");
        assert!(list(&long(MOST_MEMBERS)).is_some());
        assert!(list(&long(MOST_MEMBERS + 1)).is_none());
        let member = |parameters| format!("a{}", ";q=1".repeat(parameters));
        assert!(list(&member(MOST_PARAMETERS)).is_some());
        assert!(list(&member(MOST_PARAMETERS + 1)).is_none());
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "\\PC*", soup in r#"[a-c"\\;=,:?@%() 0-9.-]{0,40}"#) {
            let _ = (list(&text), list(&soup));
        }
    }
}
