//! Input from outside that means no good: responses and catalogs, as they are, mutated, and random.
//!
//! What must hold is in `response.rs` and `catalog.rs`, which the fuzz targets in `fuzz/` share: the
//! same checks run here on a stable toolchain.

mod catalog;
mod response;

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::select;

/// The corpus of a fuzz target, in the order of its names.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let read = || {
        let entries = std::fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        let mut paths: Vec<_> = entries.into_iter().map(|entry| entry.path()).collect();
        paths.sort();
        paths.into_iter().map(std::fs::read).collect::<Result<Vec<_>, _>>()
    };
    read().unwrap_or_default()
}

/// A published package has no `fuzz/`; a checkout has.
fn is_checkout() -> bool {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").exists()
}

#[test]
fn every_response_of_the_corpus_holds() {
    let corpus = corpus("headers");
    assert!(corpus.len() >= 10 || !is_checkout());
    corpus.iter().for_each(|response| response::hold(response));
}

#[test]
fn every_catalog_of_the_corpus_holds() {
    let corpus = corpus("catalog");
    assert!(corpus.len() >= 10 || !is_checkout());
    corpus.iter().for_each(|text| catalog::hold(&String::from_utf8_lossy(text)));
}

/// Names that are read, and two that are not.
const HEADERS: [&str; 14] = [
    "retry-after",
    "retry-after-ms",
    "ratelimit",
    "ratelimit-policy",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-tokens",
    "anthropic-ratelimit-input-tokens-remaining",
    "anthropic-ratelimit-requests-reset",
    "content-type",
    "X-RateLimit-Limit-Tokens",
];

fn value() -> impl Strategy<Value = Vec<u8>> {
    let pieces = [
        "\"burst\"",
        ";q=",
        ";w=60",
        ";r=",
        ";t=",
        "100",
        "-1",
        "18446744073709551616",
        "1.5",
        "6m0s",
        "20ms",
        ", ",
        ";",
        "=",
        "\"",
        "\\",
        ":c2VjcmV0:",
        "?1",
        "@1",
        "%\"x\"",
        "limit=",
        "reset=",
        "2024-06-01T12:00:30Z",
        "Sat, 01 Jun 2024 12:00:30 GMT",
        "999999999999999",
        "0",
        " ",
        "\t",
    ];
    prop_oneof![
        4 => prop::collection::vec(select(pieces.to_vec()), 0..12)
            .prop_map(|pieces| pieces.concat().into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..60),
        1 => "[0-9.:a-zTZ+-]{0,40}".prop_map(String::into_bytes),
    ]
}

fn response() -> impl Strategy<Value = Vec<u8>> {
    let status = prop_oneof![select(&[200, 402, 403, 429, 500, 503, 529][..]), any::<u16>()];
    let headers = prop::collection::vec((select(&HEADERS[..]), value()), 0..16);
    let body = prop_oneof![
        ".{0,40}",
        "[\\x00-\\x1f\\x7f-\\u{9f}a-z]{0,40}",
        Just("insufficient_quota\r\nbilling".to_owned()),
    ];
    (status, headers, body).prop_map(|(status, headers, body)| {
        let mut text = format!("{status}\n").into_bytes();
        for (name, value) in headers {
            text.extend(format!("{name}: ").bytes());
            text.extend(value);
            text.push(b'\n');
        }
        text.push(b'\n');
        text.extend(body.bytes());
        text
    })
}

/// A catalog that is taken: every kind of key is in it.
const CATALOG: &str = r#"# Models.
[[model]]
id = "gpt-x"
tokens_per_minute = 30_000
requests_per_minute = 500
prices = { input = "2.50", output = 10.0, cached_read_multiplier = 0.5 }

[[model]]
id = "llama-local"
max_concurrent = 2
[model.prices]
input = 1
output = 2
cached_write_multiplier = 1.25
"#;

/// What is done to a catalog: a stretch of it goes, and a piece comes in its place.
type Mutation = (usize, usize, &'static str);

fn mutation() -> impl Strategy<Value = Mutation> {
    let pieces = [
        "",
        "\n",
        "\"",
        "'''",
        "=",
        "[",
        "]",
        "[[model]]",
        "[model]",
        "[[[",
        "{",
        "}",
        "#",
        ",",
        ".",
        "0",
        "-1",
        "nan",
        "inf",
        "1e400",
        "18446744073709551616",
        "4294967296",
        "0x7f",
        "1979-05-27",
        "id",
        "id = \"gpt-x\"\n",
        "tokens_per_minute",
        "max_concurrent = 0\n",
        "prices",
        "a.b.c = 1\n",
        "\\u0000",
        "\"\\u001b[31m\" = 1\n",
        "\u{0}",
        "\u{7f}",
        "\u{2028}",
        "é",
        "\r",
        "\r\n",
        "true",
        "\"a\\nb\" = 1\n",
        "id = \"a\\nb\"\n",
        "input = -1\n",
        "79228162514264337593543950336",
    ];
    (any::<prop::sample::Index>(), 0..30_usize, select(pieces.to_vec()))
        .prop_map(|(at, length, piece)| (at.index(CATALOG.len()), length, piece))
}

fn mutated(mutations: &[Mutation]) -> String {
    let mut text = CATALOG.to_owned();
    for &(at, length, piece) in mutations {
        let start = text.floor_char_boundary(at.min(text.len()));
        let end = text.ceil_char_boundary((at + length).min(text.len()));
        text.replace_range(start..end.max(start), piece);
    }
    text
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: ProptestConfig::default().cases.max(600),
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn no_response_moves_anything_further_than_it_may_go(response in response()) {
        response::hold(&response);
    }

    #[test]
    fn random_bytes_for_a_response_say_nothing_or_something_bounded(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
    ) {
        response::hold(&bytes);
    }

    #[test]
    fn a_mutated_catalog_is_taken_or_told_where_it_is_wrong(
        mutations in prop::collection::vec(mutation(), 1..6),
    ) {
        catalog::hold(&mutated(&mutations));
    }

    #[test]
    fn any_text_for_a_catalog_is_told_where_it_is_wrong(text in "\\PC{0,200}") {
        catalog::hold(&text);
    }
}

/// A stack is not for an outsider to fill: brackets and dots nest no deeper than the parser allows.
#[test]
fn a_catalog_nested_without_end_is_refused_and_not_followed() {
    for text in [
        format!("a = {}", "[".repeat(100_000)),
        format!("a = {}1{}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("a = {}", "{ b = ".repeat(100_000)),
        format!("{}a = 1", "a.".repeat(100_000)),
        format!("[{}a]", "a.".repeat(100_000)),
        format!("[[model]]\nid = {}\"a\"", "[".repeat(100_000)),
        format!("[[model]]\nprices{} = 1", ".a".repeat(100_000)),
    ] {
        catalog::hold(&text);
    }
}

/// A header as long as no HTTP client lets through is read in one go, and little is made of it.
#[test]
fn a_header_without_end_is_read_in_proportion() {
    let many = r#""a";q=1, "#.repeat(20_000);
    let parameters = format!("\"a\"{}", ";q=1".repeat(40_000));
    let quoted = format!("\"{}\";q=1", "x".repeat(1 << 17));
    let digits = "9".repeat(1 << 17);
    for value in [many, parameters, quoted, digits] {
        for name in ["ratelimit-policy", "ratelimit", "retry-after", "x-ratelimit-reset-tokens"] {
            response::hold(format!("429\n{name}: {value}\n\n").as_bytes());
        }
    }
    response::hold(format!("429\n\n{}", "rate limit ".repeat(1 << 16)).as_bytes());
}

/// Headers that no limit is in are not kept, nor is a policy's partition key: neither can come out
/// again in a log, an event or an error.
#[test]
fn what_is_not_read_of_a_response_is_not_kept() {
    let mut headers = http::HeaderMap::new();
    for (name, value) in [
        ("set-cookie", "session=hunter2"),
        ("authorization", "Bearer hunter2"),
        ("x-request-id", "hunter2"),
        ("ratelimit-policy", r#""burst";q=100;w=60;pk=:aHVudGVyMg==:;partition="hunter2""#),
        ("retry-after", "7"),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let now = std::time::SystemTime::now();
    let info = admit::RateLimitInfo::from_response(429, &headers, "slow down", now);
    let failure = admit::UpstreamFailure::from_response(429, "maps", &headers, "slow down", now);
    let told = format!("{info:?} {failure:?} {failure}");
    assert!(told.contains("burst") && told.contains("slow down"), "{told}");
    assert!(!told.contains("hunter2") && !told.contains("aHVudGVyMg"), "{told}");
}
