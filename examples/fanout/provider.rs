//! The stand-in: a chat-completions provider on a loopback port.
//!
//! It takes its time over an answer, counts tokens with a tokenizer of its own, takes the prompt
//! and the longest answer off its meter when a call comes in and gives back what was not used,
//! answers 429 with the usual headers when the meter is short or a model has its hands full, and can
//! be told to fail.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use admit::{ModelSpec, Usage};
use axum::extract::{Json, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, serve};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::dice::{Dice, fingerprint};
use crate::meter::{Budget, Meter, Reading, Refusal, Standing};

/// Milliseconds a token of the answer takes to write.
const MS_A_TOKEN: u64 = 6;

/// Tokens a minute of a model that has no limit of them: more than anybody can ask for.
const UNLIMITED: u64 = 1 << 50;

/// How the stand-in behaves.
#[derive(Clone, Debug)]
pub(crate) struct Character {
    /// Time it thinks before it writes.
    pub(crate) latency: Duration,
    /// Share of calls that fail, in percent.
    pub(crate) chaos: u8,
    /// Seed of lengths, latencies and failures.
    pub(crate) seed: u64,
}

/// A running stand-in. It ends with the runtime.
#[derive(Debug)]
pub(crate) struct StandIn {
    /// The base URL to give to a client.
    pub(crate) url: String,
    desk: Arc<Desk>,
}

/// What the stand-in has seen so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Calls that were answered.
    pub(crate) answered: u64,
    /// Calls that were refused: the budget was short, or too many others in flight.
    pub(crate) refused: u64,
    /// Calls that failed because it was told to.
    pub(crate) failed: u64,
    /// What it sold of each model.
    pub(crate) sold: BTreeMap<String, Usage>,
}

impl Seen {
    /// Tokens it counted, in and out.
    pub(crate) fn tokens(&self) -> u64 {
        self.sold.values().map(|usage| usage.total()).sum()
    }
}

#[derive(Debug)]
struct Desk {
    character: Character,
    state: Mutex<Books>,
}

#[derive(Debug)]
struct Books {
    models: HashMap<String, Model>,
    seen: Seen,
    /// How often each question was put: a failure must not repeat itself for ever.
    asked: HashMap<u64, u32>,
}

/// One model, and what it allows.
#[derive(Debug)]
struct Model {
    meter: Meter,
    /// Calls it answers at once, where that is its limit.
    at_once: Option<u32>,
    in_flight: u32,
}

/// A call in flight. Its end is seen to even when the caller hangs up.
struct InFlight {
    desk: Arc<Desk>,
    model: String,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.desk.books(|books| {
            if let Some(model) = books.models.get_mut(&self.model) {
                model.in_flight -= 1;
            }
        });
    }
}

impl StandIn {
    /// Opens for business on a free loopback port, each model with its own meter.
    ///
    /// # Errors
    ///
    /// When no port can be had.
    pub(crate) async fn start(models: &[ModelSpec], character: Character) -> io::Result<Self> {
        let now = Instant::now();
        let models = models.iter().map(|model| {
            let (requests, tokens) = match model.max_concurrent {
                None => (u64::from(model.limits().requests), model.limits().tokens),
                // Limited by how many calls there are at once, not by the minute.
                Some(_) => (u64::from(u32::MAX), UNLIMITED),
            };
            let meter = Meter::new(requests, tokens, now);
            (model.id.clone(), Model { meter, at_once: model.max_concurrent, in_flight: 0 })
        });
        let books =
            Books { models: models.collect(), seen: Seen::default(), asked: HashMap::new() };
        let desk = Arc::new(Desk { character, state: Mutex::new(books) });
        let routes = Router::new()
            .route("/v1/models", get(models_list))
            .route("/v1/chat/completions", post(completions))
            .with_state(Arc::clone(&desk));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let url = format!("http://{}/v1", listener.local_addr()?);
        tokio::spawn(async move { serve(listener, routes).await });
        Ok(Self { url, desk })
    }

    /// What it has seen so far.
    pub(crate) fn seen(&self) -> Seen {
        self.desk.books(|books| books.seen.clone())
    }
}

impl Desk {
    fn books<R>(&self, look: impl FnOnce(&mut Books) -> R) -> R {
        look(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn models_list(State(desk): State<Arc<Desk>>) -> Json<Value> {
    let names = desk.books(|books| books.models.keys().cloned().collect::<Vec<_>>());
    let models: Vec<_> =
        names.iter().map(|name| json!({ "id": name, "object": "model" })).collect();
    Json(json!({ "object": "list", "data": models }))
}

async fn completions(State(desk): State<Arc<Desk>>, Json(call): Json<Value>) -> Response {
    let model = call["model"].as_str().unwrap_or_default().to_owned();
    let question = question(&call);
    let Some(max_output) = call["max_tokens"].as_u64().filter(|&most| most > 0) else {
        return error(StatusCode::BAD_REQUEST, "invalid_value", "max_tokens must be positive");
    };
    let prompt = count(&question);
    let wanted = prompt.saturating_add(max_output);

    let (mut dice, taken, standing) = match desk.books(|books| books.open(&desk, &call, wanted)) {
        Ok(taken) => taken,
        Err(answer) => return *answer,
    };
    // Over before the answer goes out, or who has it could be too early with the next call.
    let in_flight = InFlight { desk: Arc::clone(&desk), model: model.clone() };
    if let Some(failure) = failure(&mut dice, desk.character.chaos) {
        // It failed before it did anything, so nothing is counted.
        desk.books(|books| {
            books.settle(&model, taken, 0);
            books.seen.failed += 1;
        });
        return failure;
    }

    let (text, completion) = answer(&question, max_output, &mut dice);
    let thinking = desk.character.latency.mul_f64(0.5 + dice.fraction());
    // A stand-in without latency is one that is to be fast.
    let writing = if thinking.is_zero() { 0 } else { completion * MS_A_TOKEN };
    sleep(thinking + Duration::from_millis(writing)).await;

    let used = Usage::new(prompt, completion);
    desk.books(|books| {
        books.settle(&model, taken, used.total());
        books.seen.answered += 1;
        let sold = books.seen.sold.entry(model.clone()).or_default();
        *sold = sold.plus(used);
    });
    drop(in_flight);
    let body = json!({
        "object": "chat.completion",
        "model": model,
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": text },
            "finish_reason": "stop",
        }],
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": used.total(),
        },
    });
    (headers(standing), Json(body)).into_response()
}

impl Books {
    /// Takes a call in: its chances, what it took, and how the meter stands after it.
    fn open(
        &mut self,
        desk: &Desk,
        call: &Value,
        wanted: u64,
    ) -> Result<(Dice, u64, Standing), Box<Response>> {
        let now = Instant::now();
        let model = call["model"].as_str().unwrap_or_default();
        let Some(Model { meter, at_once, in_flight }) = self.models.get_mut(model) else {
            let message = format!("the model `{model}` does not exist");
            return Err(Box::new(error(StatusCode::NOT_FOUND, "model_not_found", &message)));
        };
        if let Some(most) = at_once.filter(|most| *in_flight >= *most) {
            self.seen.refused += 1;
            return Err(Box::new(too_many(model, most)));
        }
        let taken = meter.take(wanted, now);
        let standing = meter.standing(now);
        if let Err(refusal) = taken {
            self.seen.refused += 1;
            return Err(Box::new(refused(model, wanted, refusal, standing)));
        }
        *in_flight += 1;
        let question = question(call);
        let times = self.asked.entry(fingerprint((model, &question))).or_default();
        *times += 1;
        Ok((Dice::new(desk.character.seed, (model, &question, *times)), wanted, standing))
    }

    fn settle(&mut self, model: &str, taken: u64, used: u64) {
        if let Some(model) = self.models.get_mut(model) {
            model.meter.settle(taken, used, Instant::now());
        }
    }
}

/// All that was said in a call.
fn question(call: &Value) -> String {
    let said = call["messages"].as_array().into_iter().flatten();
    let said: Vec<_> = said.filter_map(|message| message["content"].as_str()).collect();
    said.join("\n")
}

/// Tokens of a text: a word's every five letters, a run of marks' every two, a break of line.
fn count(text: &str) -> u64 {
    #[derive(Clone, Copy, PartialEq)]
    enum Run {
        Word,
        Marks,
        Space,
        Wide,
    }
    let kind = |character: char| match character {
        c if c.is_ascii_alphanumeric() || c == '_' => Run::Word,
        c if c.is_whitespace() => Run::Space,
        c if c.is_ascii() => Run::Marks,
        _ => Run::Wide,
    };
    let tokens = |run, length: u64, breaks: u64| match run {
        Run::Word => length.div_ceil(5),
        Run::Marks => length.div_ceil(2),
        Run::Space => breaks.min(1),
        Run::Wide => length,
    };
    let (mut total, mut run, mut length, mut breaks) = (0, Run::Space, 0, 0);
    for character in text.chars() {
        if kind(character) != run {
            total += tokens(run, length, breaks);
            (run, length, breaks) = (kind(character), 0, 0);
        }
        length += 1;
        breaks += u64::from(character == '\n');
    }
    total + tokens(run, length, breaks)
}

/// Something like a summary, and how many tokens it came to.
fn answer(question: &str, max_output: u64, dice: &mut Dice) -> (String, u64) {
    let lines = question.lines().count();
    let said = question
        .lines()
        .skip(2)
        .map(|line| line.trim_matches(|c: char| !c.is_alphanumeric() && c != '`'))
        .find(|line| line.split_whitespace().count() >= 4)
        .unwrap_or("nothing in words");
    let mut said: String = said.chars().take(160).collect();
    said.insert_str(0, "It begins with: ");
    let text = format!("{said}. {lines} lines in all.");
    // A model that is asked for sentences is seldom as short as this, and never exactly so.
    let longest = max_output.min(160);
    let completion = dice.between(count(&text), 160).min(longest);
    (text, completion)
}

/// A failure, if this call is to be one.
fn failure(dice: &mut Dice, chaos: u8) -> Option<Response> {
    if dice.fraction() * 100.0 >= f64::from(chaos) {
        return None;
    }
    if dice.fraction() < 0.5 {
        let message = "the server had an error while processing your request";
        return Some(error(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message));
    }
    let overloaded = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut answer = error(overloaded, "overloaded_error", "overloaded, come back later");
    put(answer.headers_mut(), "retry-after", "1");
    Some(answer)
}

/// It cannot say when one of them will be over.
fn too_many(model: &str, most: u32) -> Response {
    let message =
        format!("rate limit reached for {model} on concurrent requests: limit {most}, used {most}");
    error(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", &message)
}

fn refused(model: &str, wanted: u64, refusal: Refusal, standing: Standing) -> Response {
    let (short, retry_after) = match refusal {
        Refusal::TooLarge { limit } => {
            let message = format!(
                "request too large for {model}: limit {limit} tokens per min, requested {wanted}"
            );
            return error(StatusCode::BAD_REQUEST, "request_too_large", &message);
        }
        Refusal::Later { short, retry_after } => (short, retry_after),
    };
    let (what, reading, wanted) = match short {
        Budget::Requests => ("requests per min (RPM)", standing.requests, 1),
        Budget::Tokens => ("tokens per min (TPM)", standing.tokens, wanted),
    };
    let message = format!(
        "rate limit reached for {model} on {what}: limit {}, used {}, requested {wanted}; \
         please try again in {}",
        reading.limit,
        reading.limit - reading.remaining,
        span(retry_after),
    );
    let mut answer = error(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", &message);
    answer.headers_mut().extend(headers(standing));
    // Rounded up: a caller who comes back then is not to be sent away again for a rounding.
    let milliseconds = retry_after.as_nanos().div_ceil(1_000_000);
    put(answer.headers_mut(), "retry-after-ms", &milliseconds.to_string());
    put(answer.headers_mut(), "retry-after", &milliseconds.div_ceil(1_000).to_string());
    answer
}

fn error(status: StatusCode, code: &str, message: &str) -> Response {
    let body = json!({ "error": { "message": message, "type": code, "code": code } });
    (status, Json(body)).into_response()
}

fn headers(standing: Standing) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (what, reading) in [("requests", standing.requests), ("tokens", standing.tokens)] {
        let Reading { limit, remaining, reset } = reading;
        put(&mut headers, &format!("x-ratelimit-limit-{what}"), &limit.to_string());
        put(&mut headers, &format!("x-ratelimit-remaining-{what}"), &remaining.to_string());
        put(&mut headers, &format!("x-ratelimit-reset-{what}"), &span(reset));
    }
    headers
}

fn put(headers: &mut HeaderMap, name: &str, value: &str) {
    if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
        headers.insert(name, value);
    }
}

/// A span the way these headers have it: `20ms`, `1.5s`, `6m0s`.
fn span(time: Duration) -> String {
    let milliseconds = time.as_nanos().div_ceil(1_000_000);
    let (seconds, rest) = (milliseconds / 1_000, milliseconds % 1_000);
    match (seconds, rest) {
        (0, rest) => format!("{rest}ms"),
        (60.., _) => format!("{}m{}s", seconds / 60, seconds % 60),
        (_, 0) => format!("{seconds}s"),
        (_, rest) => format!("{seconds}.{rest:03}s"),
    }
}

#[cfg(test)]
mod tests;
