use super::*;

fn model(requests_per_minute: u32, tokens_per_minute: u64) -> ModelSpec {
    ModelSpec::new("m", tokens_per_minute).with_requests_per_minute(requests_per_minute)
}

fn character(chaos: u8) -> Character {
    Character { latency: Duration::ZERO, chaos, seed: 1 }
}

async fn ask(stand_in: &StandIn, text: &str, max_tokens: u64) -> (u16, HeaderMap, Value) {
    let body = json!({
        "model": "m",
        "max_tokens": max_tokens,
        "messages": [{ "role": "user", "content": text }],
    });
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/chat/completions", stand_in.url);
    let answer = client.post(url).json(&body).send().await.unwrap();
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    (status, headers, answer.json().await.unwrap())
}

fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers[name].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_answer_counts_its_usage_and_says_how_the_budget_stands() {
    let stand_in = StandIn::start(&[model(10, 1_000)], character(0)).await.unwrap();
    let (status, headers, body) = ask(&stand_in, "four words of text", 100).await;
    assert_eq!(status, 200);
    let usage = &body["usage"];
    assert_eq!(usage["prompt_tokens"], 4);
    let completion = usage["completion_tokens"].as_u64().unwrap();
    assert!((1..=100).contains(&completion));
    assert_eq!(usage["total_tokens"], 4 + completion);
    assert!(body["choices"][0]["message"]["content"].as_str().unwrap().len() > 10);
    assert_eq!(number(&headers, "x-ratelimit-limit-tokens"), 1_000);
    assert_eq!(number(&headers, "x-ratelimit-remaining-tokens"), 1_000 - 104);
    assert_eq!(number(&headers, "x-ratelimit-remaining-requests"), 9);
    let seen = stand_in.seen();
    assert_eq!((seen.answered, seen.tokens()), (1, 4 + completion));
    assert_eq!(seen.sold["m"], Usage::new(4, completion));
}

#[tokio::test]
async fn a_call_past_the_budget_is_answered_429_with_the_time_to_come_back() {
    let stand_in = StandIn::start(&[model(1, 1_000)], character(0)).await.unwrap();
    assert_eq!(ask(&stand_in, "one", 10).await.0, 200);
    let (status, headers, body) = ask(&stand_in, "two", 10).await;
    assert_eq!(status, 429);
    let milliseconds = number(&headers, "retry-after-ms");
    assert!((50_000..=60_000).contains(&milliseconds), "{milliseconds}");
    assert_eq!(number(&headers, "retry-after"), milliseconds.div_ceil(1_000));
    assert_eq!(number(&headers, "x-ratelimit-remaining-requests"), 0);
    assert!(body["error"]["message"].as_str().unwrap().contains("requests per min"));
    assert_eq!(stand_in.seen().refused, 1);
}

#[tokio::test]
async fn a_model_that_answers_so_many_at_once_refuses_one_more() {
    let model = ModelSpec::concurrent("m", 2);
    let slow = Character { latency: Duration::from_millis(200), ..character(0) };
    let stand_in = StandIn::start(&[model], slow).await.unwrap();
    let three = ["one", "two", "three"].map(|text| ask(&stand_in, text, 10));
    let mut answers: Vec<_> = futures::future::join_all(three).await;
    answers.sort_by_key(|answer| answer.0);
    assert_eq!(answers.iter().map(|answer| answer.0).collect::<Vec<_>>(), [200, 200, 429]);
    let message = answers[2].2["error"]["message"].as_str().unwrap();
    assert!(message.contains("concurrent requests: limit 2"), "{message}");
    assert_eq!((stand_in.seen().answered, stand_in.seen().refused), (2, 1));
    // One after the other, each the moment the one before was answered.
    for _ in 0..3 {
        assert_eq!(ask(&stand_in, "again", 10).await.0, 200);
    }
}

#[tokio::test]
async fn a_caller_who_hangs_up_makes_room_for_the_next() {
    let model = ModelSpec::concurrent("m", 1);
    let slow = Character { latency: Duration::from_millis(100), ..character(0) };
    let stand_in = StandIn::start(&[model], slow).await.unwrap();
    let hung_up = tokio::time::timeout(Duration::from_millis(40), ask(&stand_in, "one", 10));
    assert!(hung_up.await.is_err());
    let answered = async {
        while ask(&stand_in, "two", 10).await.0 == 429 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), answered).await.unwrap();
    assert_eq!(stand_in.seen().answered, 1);
}

#[tokio::test]
async fn a_call_that_makes_no_sense_is_answered_4xx() {
    let stand_in = StandIn::start(&[model(10, 100)], character(0)).await.unwrap();
    assert_eq!(ask(&stand_in, "too much", 1_000).await.0, 400);
    assert_eq!(ask(&stand_in, "nothing", 0).await.0, 400);
}

#[tokio::test]
async fn chaos_fails_its_share_and_counts_nothing_for_it() {
    let stand_in = StandIn::start(&[model(1_000, 1_000_000)], character(50)).await.unwrap();
    let mut answers = HashMap::new();
    for call in 0..100 {
        let (status, headers, _) = ask(&stand_in, &format!("call {call}"), 10).await;
        assert_eq!(headers.contains_key("retry-after"), status == 529);
        *answers.entry(status).or_insert(0) += 1;
    }
    let share = |status| answers.get(&status).copied().unwrap_or(0);
    assert_eq!(share(200) + share(500) + share(529), 100);
    assert!((30..=70).contains(&share(200)), "{answers:?}");
    assert!(share(500) > 5 && share(529) > 5, "{answers:?}");
    assert_eq!(stand_in.seen().failed, share(500) + share(529));
}

#[test]
fn spans_read_like_a_providers() {
    assert_eq!(span(Duration::from_micros(19_001)), "20ms");
    assert_eq!(span(Duration::from_millis(1_500)), "1.500s");
    assert_eq!(span(Duration::from_secs(2)), "2s");
    assert_eq!(span(Duration::from_secs(360)), "6m0s");
}

#[test]
fn tokens_are_counted_by_words_marks_and_lines() {
    assert_eq!(count(""), 0);
    assert_eq!(count("word"), 1);
    assert_eq!(count("wonderful words"), 3);
    assert_eq!(count("a += b;\n\n  c"), 6);
    assert_eq!(count("日本"), 2);
}
