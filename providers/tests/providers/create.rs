//! Create calls against raw sockets: what is sent, and what each way of failing means.

use crate::support::{Act, Raw, TOKEN, attempt, config, order};
use domain::id::AttemptId;
use providers::replicate::Replicate;
use serde_json::{Value, json};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use uuid::Uuid;
use workers::ports::{Created, FaultClass, Provider};

const CALLBACK: &str = "https://video.example/in";

async fn created(act: Act) -> anyhow::Result<(Created, Raw)> {
    let raw = Raw::start(vec![act]).await?;
    let adapter = Replicate::new("replicate", config(&raw.base_url, CALLBACK))?;
    let mut order = order(attempt(), "a cat on a mat");
    order.timeout = Duration::from_millis(2_000);
    Ok((adapter.create(&order).await, raw))
}

#[tokio::test]
async fn the_request_is_exactly_this() -> anyhow::Result<()> {
    let raw = Raw::start(vec![Act::reply("201 Created", "", r#"{"id":"abc123","status":"starting"}"#)]).await?;
    let adapter = Replicate::new("replicate", config(&raw.base_url, CALLBACK))?;
    let attempt = AttemptId(Uuid::from_u128(7));
    let mut order = order(attempt, "a \"cat\"\non a mat");
    assert_eq!(adapter.create(&order).await, Created::Accepted { job: "abc123".to_owned() });
    order.request.image_url = Some("https://store.example/i.png?sig=1".to_owned());
    order.request.duration_seconds = 8;
    assert_eq!(adapter.create(&order).await, Created::Accepted { job: "abc123".to_owned() });

    let requests = raw.requests();
    assert_eq!(requests.len(), 2, "two calls are two connections");
    let (head, body) = requests[0].split_once("\r\n\r\n").expect("a head and a body");
    let mut lines: Vec<String> = head.lines().map(str::to_lowercase).collect();
    assert_eq!(lines.remove(0), "post /v1/models/acme/video-1/predictions http/1.1");
    lines.sort();
    let host = raw.base_url.trim_start_matches("http://").trim_end_matches("/v1");
    let expected = [
        "accept: application/json".to_owned(),
        format!("authorization: bearer {TOKEN}"),
        format!("content-length: {}", body.len()),
        "content-type: application/json".to_owned(),
        format!("host: {host}"),
        format!("user-agent: aivideo/{}", env!("CARGO_PKG_VERSION")),
    ];
    assert_eq!(lines, expected);
    let webhook = "https://video.example/in/callbacks/replicate?ref=00000000-0000-0000-0000-000000000007";
    let body: Value = serde_json::from_str(body)?;
    let expected = json!({
        "input": { "prompt": "a \"cat\"\non a mat", "duration": 1 },
        "webhook": webhook,
        "webhook_events_filter": ["completed"],
    });
    assert_eq!(body, expected);

    let (_, body) = requests[1].split_once("\r\n\r\n").expect("a head and a body");
    let input = &serde_json::from_str::<Value>(body)?["input"];
    let expected =
        json!({ "prompt": "a \"cat\"\non a mat", "duration": 8, "image": "https://store.example/i.png?sig=1" });
    assert_eq!(*input, expected);
    Ok(())
}

/// What a reply should come to.
enum Expect {
    Accepted,
    Unknown,
    Rejected(FaultClass),
    Throttled(Option<u64>),
}

fn replies() -> Vec<(&'static str, Act, Expect)> {
    use Expect::{Accepted, Rejected, Throttled, Unknown};
    use FaultClass::{Account, BadRequest, Moderation};
    let problem = r#"{"title":"No","detail":"input.duration: must be less than 11","status":422}"#;
    let own = r#"{"title":"No","detail":"as we say"}"#;
    let moderated = r#"{"detail":"The input was flagged as sensitive (E005)","status":422}"#;
    let html = "<html>403</html>";
    let slow = r#"{"detail":"Request was throttled.","status":429,"retry_after":5}"#;
    vec![
        ("created", Act::reply("201 Created", "", r#"{"id":"a-1","status":"starting"}"#), Accepted),
        ("ok", Act::reply("200 OK", "", r#"{"id":"a","extra":[null]}"#), Accepted),
        ("2xx without an id", Act::reply("201 Created", "", r#"{"status":"starting"}"#), Unknown),
        ("2xx with an empty id", Act::reply("201 Created", "", r#"{"id":""}"#), Unknown),
        ("2xx with a path for an id", Act::reply("201 Created", "", r#"{"id":"../x"}"#), Unknown),
        ("2xx not JSON", Act::reply("201 Created", "", "OK"), Unknown),
        ("2xx empty", Act::reply("202 Accepted", "", ""), Unknown),
        ("2xx cut", Act::Say(b"HTTP/1.1 201 Created\r\ncontent-length: 90\r\n\r\n{\"id\":\"a\"}".to_vec()), Unknown),
        ("head cut", Act::Say(b"HTTP/1.1 201 Crea".to_vec()), Unknown),
        ("not HTTP", Act::Say(b"hello\r\n\r\n".to_vec()), Unknown),
        ("no answer", Act::Say(Vec::new()), Unknown),
        ("2xx of 2 MiB", Act::reply("201 Created", "", &" ".repeat(2 << 20)), Unknown),
        ("silence", Act::Hang, Unknown),
        ("reset after the request", Act::Reset, Unknown),
        ("reset at once", Act::ResetAtOnce, Unknown),
        ("redirect", Act::reply("307 Temporary Redirect", "location: http://127.0.0.1:1/\r\n", ""), Unknown),
        ("400", Act::reply("400 Bad Request", "", own), Rejected(BadRequest)),
        ("401", Act::reply("401 Unauthorized", "", own), Rejected(Account)),
        ("402", Act::reply("402 Payment Required", "", own), Rejected(Account)),
        ("403", Act::reply("403 Forbidden", "", own), Rejected(Account)),
        ("404", Act::reply("404 Not Found", "", own), Rejected(BadRequest)),
        ("422", Act::reply("422 Unprocessable Entity", "", problem), Rejected(BadRequest)),
        ("422 moderation", Act::reply("422 Unprocessable Entity", "", moderated), Rejected(Moderation)),
        ("403 of a proxy", Act::reply("403 Forbidden", "", html), Unknown),
        ("404 of a proxy", Act::reply("404 Not Found", "", r#"{"message":"no route"}"#), Unknown),
        ("422 about another status", Act::reply("422 X", "", r#"{"detail":"x","status":500}"#), Unknown),
        ("405", Act::reply("405 Method Not Allowed", "", own), Unknown),
        ("408", Act::reply("408 Request Timeout", "", own), Unknown),
        ("409", Act::reply("409 Conflict", "", own), Unknown),
        ("500", Act::reply("500 Internal Server Error", "", own), Unknown),
        ("502", Act::reply("502 Bad Gateway", "", html), Unknown),
        ("503", Act::reply("503 Service Unavailable", "retry-after: 5\r\n", own), Unknown),
        ("504", Act::reply("504 Gateway Timeout", "", html), Unknown),
        ("429, header", Act::reply("429 X", "retry-after: 120\r\n", slow), Throttled(Some(120))),
        ("429, two headers", Act::reply("429 X", "retry-after: 9\r\nretry-after: 30\r\n", slow), Throttled(Some(30))),
        ("429, junk and body", Act::reply("429 X", "retry-after: 1000abc\r\n", slow), Throttled(Some(5))),
        ("429, date", Act::reply("429 X", DATES, slow), Throttled(Some(60))),
        ("429, nothing said", Act::reply("429 X", "", own), Throttled(None)),
        ("429 of a proxy", Act::reply("429 X", "retry-after: 5\r\n", html), Unknown),
    ]
}

/// A date one minute after the sender's own clock, which is 30 years slow.
const DATES: &str = "date: Sun, 06 Nov 1994 08:49:37 GMT\r\nretry-after: Sun, 06 Nov 1994 08:50:37 GMT\r\n";

#[tokio::test]
async fn each_reply_means_what_the_table_says_and_is_asked_for_once() -> anyhow::Result<()> {
    for (name, act, expected) in replies() {
        let (created, raw) = created(act).await?;
        let right = match (&created, &expected) {
            (Created::Accepted { .. }, Expect::Accepted) | (Created::Unknown { .. }, Expect::Unknown) => true,
            (Created::Rejected(fault), Expect::Rejected(class)) => {
                fault.class == *class && fault.code.starts_with("http_4")
            }
            (Created::Throttled { retry_after }, Expect::Throttled(wait)) => {
                *retry_after == wait.map(Duration::from_secs)
            }
            _ => false,
        };
        assert!(right, "{name}: {created:?}");
        assert_eq!(raw.requests().len(), 1, "{name}: the call is made once");
    }
    Ok(())
}

#[tokio::test]
async fn a_redirect_is_not_followed() -> anyhow::Result<()> {
    let elsewhere = Raw::start(vec![Act::reply("201 Created", "", r#"{"id":"stolen"}"#)]).await?;
    let location = format!("location: {}\r\n", elsewhere.base_url);
    for status in ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"] {
        let (created, _raw) = created(Act::reply(status, &location, "")).await?;
        assert!(matches!(created, Created::Unknown { .. }), "{status}: {created:?}");
    }
    assert!(elsewhere.requests().is_empty());
    Ok(())
}

async fn created_at(base_url: &str) -> anyhow::Result<Created> {
    let mut config = config(base_url, CALLBACK);
    config.connection.connect_timeout_ms = 400;
    Ok(Replicate::new("replicate", config)?.create(&order(attempt(), "a cat")).await)
}

#[tokio::test]
async fn what_never_left_is_not_sent() -> anyhow::Result<()> {
    let free = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    let created = created_at(&format!("http://{free}/v1")).await?;
    assert_eq!(created, Created::NotSent { cause: "connection refused".to_owned() });

    let created = created_at("https://no-such-host.invalid/v1").await?;
    assert!(matches!(created, Created::NotSent { .. }), "no such name: {created:?}");

    // The handshake fails, for the other side does not speak TLS.
    let raw = Raw::start(vec![Act::Say(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec())]).await?;
    let created = created_at(&raw.base_url.replace("http:", "https:")).await?;
    assert!(matches!(created, Created::NotSent { .. }), "TLS: {created:?}");
    Ok(())
}

#[tokio::test]
async fn a_connect_that_times_out_is_not_sent() -> anyhow::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.bind("127.0.0.1:0".parse()?)?;
    let listener = socket.listen(1)?;
    let address = listener.local_addr()?;
    // Nobody accepts: once the queue is full, the kernel lets new connects wait.
    let mut waiting = Vec::new();
    while let Ok(connected) = tokio::time::timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
        waiting.push(connected?);
        anyhow::ensure!(waiting.len() < 64, "the queue does not fill");
    }
    let created = created_at(&format!("http://{address}/v1")).await?;
    assert_eq!(created, Created::NotSent { cause: "connect timed out".to_owned() });
    Ok(())
}

#[tokio::test]
async fn a_model_that_is_not_owner_and_name_is_refused_here() -> anyhow::Result<()> {
    let raw = Raw::start(vec![Act::reply("201 Created", "", r#"{"id":"a"}"#)]).await?;
    let adapter = Replicate::new("replicate", config(&raw.base_url, CALLBACK))?;
    for model in ["video", "../predictions", "a/b/c", "a/b?c=d"] {
        let mut order = order(attempt(), "a cat");
        order.request.model = model.to_owned();
        let created = adapter.create(&order).await;
        assert!(matches!(&created, Created::Rejected(fault) if fault.class == FaultClass::BadRequest), "{created:?}");
    }
    assert!(raw.requests().is_empty(), "nothing is sent");
    Ok(())
}

#[tokio::test]
async fn a_refusal_shows_neither_prompt_nor_address_nor_token() -> anyhow::Result<()> {
    let prompt = "Maria Beispiel walks along the river at dawn, slowly";
    let detail = format!(
        "input \"{prompt}\" with\u{0} https://u:p@store.example/i?sig=1 and {TOKEN} is wrong {}",
        "x".repeat(900)
    );
    let raw = Raw::start(vec![Act::reply("422 X", "", &json!({ "detail": detail }).to_string())]).await?;
    let adapter = Replicate::new("replicate", config(&raw.base_url, CALLBACK))?;
    let Created::Rejected(fault) = adapter.create(&order(attempt(), prompt)).await else {
        anyhow::bail!("it is a refusal")
    };
    assert!(
        fault.message.starts_with("input \"[private]\" with\u{fffd} [url] and [private] is wrong xxx"),
        "{fault:?}"
    );
    assert_eq!(fault.message.chars().count(), 500);
    Ok(())
}
