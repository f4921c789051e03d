//! A client of a chat-completions endpoint, as much of one as a summary needs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use admit::{RateLimitInfo, UpstreamFailure, Usage};
use reqwest::{StatusCode, Url};
use serde_json::{Value, json};

use crate::error::{Fatal, root_cause};
use crate::plan::INSTRUCTION;

/// The longest time a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Asks one endpoint for summaries.
#[derive(Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: Url,
    key: Option<String>,
    /// Newer models take `max_completion_tokens` and refuse `max_tokens`; most servers the reverse.
    newer: AtomicBool,
}

/// What the endpoint answered to one question.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The summary, or why there is none.
    pub(crate) answer: Result<Answer, UpstreamFailure>,
    /// What the response's headers say about the provider's limits.
    pub(crate) limits: RateLimitInfo,
    /// The question was put and nobody knows what became of it: it may have cost what it could.
    pub(crate) is_lost: bool,
}

/// A summary and what it cost.
#[derive(Debug)]
pub(crate) struct Answer {
    /// The summary.
    pub(crate) text: String,
    /// Tokens in and out; `None` when the endpoint does not count them.
    pub(crate) usage: Option<Usage>,
}

impl Client {
    /// A client of the API at `base`, such as `https://api.openai.com/v1`.
    ///
    /// # Errors
    ///
    /// When `base` is no URL of HTTP, or the client cannot be set up.
    pub(crate) fn new(base: &str, key: Option<String>, timeout: Duration) -> Result<Self, Fatal> {
        let trimmed = base.trim_end_matches('/').trim_end_matches("/chat/completions");
        let base = Url::parse(trimmed)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
            .ok_or_else(|| Fatal::BadEndpoint(base.to_owned()))?;
        let mut builder =
            reqwest::Client::builder().timeout(timeout).connect_timeout(CONNECT_TIMEOUT);
        // A proxy is for the way out; there is none to a server on this machine.
        if matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]")) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| Fatal::Client(root_cause(&error)))?;
        Ok(Self { http, base, key, newer: AtomicBool::new(false) })
    }

    /// Finds out, before any job starts, whether there is anybody and whether the key is good.
    ///
    /// # Errors
    ///
    /// When nobody answers, or the key is refused. A server without a list of models will do.
    pub(crate) async fn check(&self) -> Result<(), Fatal> {
        let url = self.url("models");
        let request = self.authorised(self.http.get(url).timeout(CONNECT_TIMEOUT));
        let reply = request.send().await.map_err(|error| Fatal::Unreachable {
            url: self.base.to_string(),
            reason: reason(&error),
        })?;
        match reply.status() {
            status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                Err(Fatal::KeyRefused { url: self.base.to_string(), status: status.as_u16() })
            }
            _ => Ok(()),
        }
    }

    /// Asks `model` for a summary of a file, in at most `max_output` tokens.
    pub(crate) async fn summarise(
        &self,
        model: &str,
        path: &str,
        text: &str,
        max_output: u32,
    ) -> Reply {
        let newer = self.newer.load(Ordering::Relaxed);
        let reply = self.ask(model, path, text, max_output, newer).await;
        // By what this call said, not by what others have learned since it was sent.
        if !newer && wants_the_newer_name(&reply) {
            self.newer.store(true, Ordering::Relaxed);
            return self.ask(model, path, text, max_output, true).await;
        }
        reply
    }

    async fn ask(
        &self,
        model: &str,
        path: &str,
        text: &str,
        max_output: u32,
        newer: bool,
    ) -> Reply {
        let bound = if newer { "max_completion_tokens" } else { "max_tokens" };
        let body = json!({
            "model": model,
            bound: max_output,
            "messages": [
                { "role": "system", "content": INSTRUCTION },
                { "role": "user", "content": format!("File `{path}`:\n\n{text}") },
            ],
        });
        let request = self.authorised(self.http.post(self.url("chat/completions"))).json(&body);
        let no_response = |error: &reqwest::Error| Reply {
            answer: Err(UpstreamFailure::no_response(model, reason(error))),
            limits: RateLimitInfo::default(),
            is_lost: !error.is_connect(),
        };
        let response = match request.send().await {
            Ok(response) => response,
            Err(error) => return no_response(&error),
        };
        let (status, headers) = (response.status(), response.headers().clone());
        let body = match response.text().await {
            Ok(body) => body,
            Err(error) => return no_response(&error),
        };
        let now = SystemTime::now();
        let limits = RateLimitInfo::from_response(status.as_u16(), &headers, &body, now);
        let answer = if status.is_success() {
            read_answer(&body)
                .ok_or_else(|| UpstreamFailure::no_response(model, "an answer without a summary"))
        } else {
            let status = status.as_u16();
            let mut failure = UpstreamFailure::from_response(status, model, &headers, &body, now);
            failure.message = message(&body);
            Err(failure)
        };
        Reply { is_lost: status.is_success() && answer.is_err(), answer, limits }
    }

    fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base.as_str().trim_end_matches('/'))
    }

    fn authorised(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }
}

/// Whether the model refuses `max_tokens` and says what it takes instead.
fn wants_the_newer_name(reply: &Reply) -> bool {
    reply.answer.as_ref().is_err_and(|failure| {
        failure.status == Some(400) && failure.message.contains("max_completion_tokens")
    })
}

/// What went wrong with a call that has no response, in a few words.
fn reason(error: &reqwest::Error) -> String {
    if error.is_timeout() { "timed out".to_owned() } else { root_cause(error) }
}

/// The summary and the usage out of a successful response's body.
fn read_answer(body: &str) -> Option<Answer> {
    let body: Value = serde_json::from_str(body).ok()?;
    let text = body["choices"][0]["message"]["content"].as_str()?.trim();
    let usage = read_usage(&body["usage"]);
    (!text.is_empty()).then(|| Answer { text: text.to_owned(), usage })
}

/// The tokens of a call. What was read from the provider's cache is among its `prompt_tokens`.
fn read_usage(usage: &Value) -> Option<Usage> {
    let (prompt, completion) =
        usage["prompt_tokens"].as_u64().zip(usage["completion_tokens"].as_u64())?;
    let cached = usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap_or(0).min(prompt);
    Some(Usage::new(prompt - cached, completion).with_cache(cached, 0))
}

/// What a failed response's body says: the provider's message and code, else the body itself.
fn message(body: &str) -> String {
    let parsed: Value = serde_json::from_str(body).unwrap_or_default();
    let error = &parsed["error"];
    let text = match (error["message"].as_str(), error["code"].as_str()) {
        (Some(message), Some(code)) => format!("{message} ({code})"),
        (Some(message), None) => message.to_owned(),
        _ => body.to_owned(),
    };
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(UpstreamFailure::MAX_MESSAGE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_without_usage_is_an_answer() {
        let body = r#"{"choices":[{"message":{"content":" A file. "}}]}"#;
        let answer = read_answer(body).unwrap();
        assert_eq!((answer.text.as_str(), answer.usage), ("A file.", None));
    }

    #[test]
    fn an_answer_that_says_nothing_is_none() {
        for body in ["", "{}", "[]", r#"{"choices":[]}"#, "<html>"] {
            assert!(read_answer(body).is_none(), "{body}");
        }
        assert!(read_answer(r#"{"choices":[{"message":{"content":"  "}}]}"#).is_none());
        assert!(read_answer(r#"{"choices":[{"message":{"content":null}}]}"#).is_none());
    }

    #[test]
    fn what_came_from_the_cache_is_counted_once() {
        let usage = json!({"prompt_tokens": 2_006, "completion_tokens": 300});
        assert_eq!(read_usage(&usage), Some(Usage::new(2_006, 300)));
        let mut cached = usage;
        cached["prompt_tokens_details"] = json!({"cached_tokens": 1_920});
        assert_eq!(read_usage(&cached), Some(Usage::new(86, 300).with_cache(1_920, 0)));
        assert_eq!(read_usage(&json!({"prompt_tokens": 1})), None);
    }

    #[test]
    fn a_failures_message_keeps_the_code() {
        let body = r#"{"error":{"message":"slow down","code":"insufficient_quota"}}"#;
        assert_eq!(message(body), "slow down (insufficient_quota)");
        assert_eq!(message("<h1>Bad\n gateway</h1>"), "<h1>Bad gateway</h1>");
    }

    #[test]
    fn an_endpoint_must_be_a_url_of_http() {
        let client = |base| Client::new(base, None, CONNECT_TIMEOUT);
        for bad in ["", "localhost:8080/v1", "ftp://host/v1", "/v1", "http://"] {
            assert!(matches!(client(bad), Err(Fatal::BadEndpoint(_))), "{bad}");
        }
        for good in ["http://host/v1", "http://host/v1/", "http://host/v1/chat/completions"] {
            let url = client(good).unwrap().url("chat/completions");
            assert_eq!(url, "http://host/v1/chat/completions", "{good}");
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_nobody_serves_is_named_with_the_reason() {
        // A port that was free a moment ago.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}/v1", listener.local_addr().unwrap());
        drop(listener);
        let client = Client::new(&base, None, CONNECT_TIMEOUT).unwrap();
        let error = client.check().await.unwrap_err().to_string();
        assert!(error.contains(&base) && error.contains("refused"), "{error}");
        let reply = client.summarise("m", "a", "text", 10).await;
        let failure = reply.answer.unwrap_err();
        assert!(failure.status.is_none() && failure.is_retryable());
        assert!(!reply.is_lost, "nobody was asked");
    }

    #[tokio::test]
    async fn calls_in_flight_together_each_learn_the_newer_name() {
        use axum::extract::Json;
        use axum::http::StatusCode as Status;

        let answer = |Json(call): Json<Value>| async move {
            if call["max_tokens"].is_null() {
                return (Status::OK, Json(json!({"choices":[{"message":{"content":"Yes."}}]})));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
            let message = "use 'max_completion_tokens' instead";
            (Status::BAD_REQUEST, Json(json!({"error":{"message":message}})))
        };
        let routes = axum::Router::new().route("/chat/completions", axum::routing::post(answer));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let client = Client::new(&base, None, CONNECT_TIMEOUT).unwrap();
        let ask = || client.summarise("m", "a", "text", 10);
        let (one, two, three) = tokio::join!(ask(), ask(), ask());
        for reply in [one, two, three] {
            assert_eq!(reply.answer.unwrap().text, "Yes.");
        }
    }
}
