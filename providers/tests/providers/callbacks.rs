//! Which callbacks are believed.

use crate::support::{WEBHOOK_SECRET, attempt, config};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, TimeDelta, Utc};
use domain::id::AttemptId;
use hmac::{Hmac, KeyInit, Mac};
use providers::ConfigError;
use providers::replicate::Replicate;
use sha2::Sha256;
use workers::ports::{Callback, CallbackRefused, Provider};

const KEY: [u8; 24] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23];

#[tokio::test]
async fn a_secret_that_was_changed_is_believed_until_it_is_taken_out() -> anyhow::Result<()> {
    let (earlier, attempt) = ([7_u8; 24], attempt());
    let body = format!(r#"{{"id":"job1","webhook":"https://video.example/callbacks/replicate?ref={attempt}"}}"#);
    let timestamp = now().timestamp().to_string();
    let believed = |earlier_secrets: &[&str], key: &[u8]| -> anyhow::Result<_> {
        let mut config = config("https://api.example/v1", "https://video.example");
        config.earlier_webhook_secrets = earlier_secrets.iter().map(|it| (*it).into()).collect();
        let adapter = Replicate::new("replicate", config)?;
        let signature = sign(key, "msg_1", &timestamp, body.as_bytes())?;
        let header = |name: &str| match name {
            "webhook-id" => Some("msg_1".to_owned()),
            "webhook-timestamp" => Some(timestamp.clone()),
            "webhook-signature" => Some(signature.clone()),
            _ => None,
        };
        Ok(adapter.callback(&header, &format!("ref={attempt}"), body.as_bytes(), now()).map(|it| it.job))
    };
    let secret = format!("whsec_{}", STANDARD.encode(earlier));
    assert_eq!(believed(&[&secret], &earlier)?, Ok("job1".to_owned()));
    assert_eq!(believed(&[&secret], &KEY)?, Ok("job1".to_owned()));
    assert_eq!(believed(&[], &earlier)?, Err(CallbackRefused::Forged));
    let mut config = config("https://api.example/v1", "https://video.example");
    config.earlier_webhook_secrets = vec!["whsec_".into()];
    assert!(
        matches!(Replicate::new("replicate", config), Err(ConfigError::WebhookSecret(_))),
        "an empty one signs for all"
    );
    Ok(())
}

/// Signed here independently of the code under test.
fn sign(key: &[u8], id: &str, timestamp: &str, body: &[u8]) -> anyhow::Result<String> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key)?;
    mac.update(&[id.as_bytes(), b".", timestamp.as_bytes(), b".", body].concat());
    Ok(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
}

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_790_000_000, 0).unwrap_or_default()
}

/// A callback that would be believed, for tests to spoil.
struct Sent {
    id: Option<String>,
    timestamp: Option<String>,
    signature: Option<String>,
    query: String,
    body: Vec<u8>,
}

impl Sent {
    fn new(attempt: AttemptId, body: &str) -> anyhow::Result<Self> {
        let timestamp = now().timestamp().to_string();
        Ok(Self {
            id: Some("msg_1".to_owned()),
            signature: Some(sign(&KEY, "msg_1", &timestamp, body.as_bytes())?),
            timestamp: Some(timestamp),
            query: format!("ref={attempt}"),
            body: body.as_bytes().to_vec(),
        })
    }

    fn read(&self) -> anyhow::Result<Result<Callback, CallbackRefused>> {
        self.read_at(now())
    }

    fn read_at(&self, now: DateTime<Utc>) -> anyhow::Result<Result<Callback, CallbackRefused>> {
        let adapter = Replicate::new("replicate", config("https://api.example/v1", "https://video.example"))?;
        let header = |name: &str| match name {
            "webhook-id" => self.id.clone(),
            "webhook-timestamp" => self.timestamp.clone(),
            "webhook-signature" => self.signature.clone(),
            _ => None,
        };
        Ok(adapter.callback(&header, &self.query, &self.body, now))
    }
}

/// Odd white space and escapes: written again by any JSON library, it would be other bytes.
const BODY: &str = "{ \"id\" :\t\"job1\",\r\n \"status\":\"succeeded\", \"x\": \"\\u00e9\" , \"n\": 1.0e0 }\n\n";

#[test]
fn the_raw_body_is_what_counts() -> anyhow::Result<()> {
    let attempt = attempt();
    let read = Sent::new(attempt, BODY)?.read()?;
    assert_eq!(read, Ok(Callback { delivery: "msg_1".to_owned(), attempt, job: "job1".to_owned() }));
    Ok(())
}

#[test]
fn a_published_example_verifies() -> anyhow::Result<()> {
    // The example of the Standard Webhooks specification, with its secret, id, timestamp, body and signature.
    let mut config = config("https://api.example/v1", "https://video.example");
    config.webhook_secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into();
    let adapter = Replicate::new("replicate", config)?;
    let header = |name: &str| match name {
        "webhook-id" => Some("msg_p5jXN8AQM9LWM0D4loKWxJek".to_owned()),
        "webhook-timestamp" => Some("1614265330".to_owned()),
        "webhook-signature" => Some("v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=".to_owned()),
        _ => None,
    };
    let at = DateTime::from_timestamp(1_614_265_330, 0).unwrap_or_default();
    let read = adapter.callback(&header, "", br#"{"test": 2432232314}"#, at);
    assert_eq!(read, Err(CallbackRefused::Unreadable), "the signature is right; the body is not one of ours");
    let read = adapter.callback(&header, "", br#"{"test": 2432232315}"#, at);
    assert_eq!(read, Err(CallbackRefused::Forged));
    Ok(())
}

#[test]
fn every_flipped_bit_of_the_body_is_noticed() -> anyhow::Result<()> {
    let attempt = attempt();
    for at in 0..BODY.len() {
        let mut sent = Sent::new(attempt, BODY)?;
        sent.body[at] ^= 1 << (at % 8);
        assert_eq!(sent.read()?, Err(CallbackRefused::Forged), "byte {at}");
    }
    Ok(())
}

#[test]
fn missing_and_malformed_headers() -> anyhow::Result<()> {
    let spoil: [fn(&mut Sent); 10] = [
        |sent| sent.id = None,
        |sent| sent.timestamp = None,
        |sent| sent.signature = None,
        |sent| sent.id = Some(String::new()),
        |sent| sent.signature = Some(String::new()),
        |sent| sent.timestamp = Some("soon".to_owned()),
        |sent| sent.timestamp = Some("-5".to_owned()),
        |sent| sent.timestamp = Some("1790000000.5".to_owned()),
        |sent| sent.timestamp = Some("9".repeat(40)),
        |sent| sent.id = Some("msg 1\n".to_owned()),
    ];
    for (number, spoil) in spoil.into_iter().enumerate() {
        let mut sent = Sent::new(attempt(), BODY)?;
        spoil(&mut sent);
        assert_eq!(sent.read()?, Err(CallbackRefused::Unsigned), "case {number}");
    }
    Ok(())
}

#[test]
fn forgeries() -> anyhow::Result<()> {
    let right = Sent::new(attempt(), BODY)?;
    let good = right.signature.clone().unwrap_or_default();
    let stamp = right.timestamp.clone().unwrap_or_default();
    let forged = [
        sign(&[9; 24], "msg_1", &stamp, BODY.as_bytes())?,
        sign(&[], "msg_1", &stamp, BODY.as_bytes())?,
        sign(&KEY, "msg_2", &stamp, BODY.as_bytes())?,
        sign(&KEY, "msg_1", "1790000001", BODY.as_bytes())?,
        good.replace("v1,", "v2,"),
        good.replace("v1,", ""),
        good.replace("v1,", "v1,v1,"),
        good[..good.len() - 8].to_owned(),
        "v1,".to_owned(),
        "v1,!!!".to_owned(),
        WEBHOOK_SECRET.to_owned(),
    ];
    for signature in forged {
        let mut sent = Sent::new(attempt(), BODY)?;
        sent.signature = Some(signature.clone());
        assert_eq!(sent.read()?, Err(CallbackRefused::Forged), "{signature}");
    }
    Ok(())
}

#[test]
fn one_right_signature_of_several_is_enough() -> anyhow::Result<()> {
    let mut sent = Sent::new(attempt(), BODY)?;
    let good = sent.signature.clone().unwrap_or_default();
    sent.signature = Some(format!("v1a,abc v1,AAAA  {good} v1,!!"));
    assert!(sent.read()?.is_ok());
    Ok(())
}

#[test]
fn the_timestamp_is_believed_for_300_seconds_either_way() -> anyhow::Result<()> {
    let sent = Sent::new(attempt(), BODY)?;
    for (offset, fresh) in [(0, true), (300, true), (-300, true), (301, false), (-301, false), (86_400, false)] {
        let read = sent.read_at(now() + TimeDelta::seconds(offset))?;
        assert_eq!(read.is_ok(), fresh, "{offset}");
        assert_eq!(read.err(), (!fresh).then_some(CallbackRefused::Stale), "{offset}");
    }
    Ok(())
}

#[test]
fn signed_bodies_that_say_nothing() -> anyhow::Result<()> {
    for body in ["", "{}", "[]", "null", r#"{"id":7}"#, r#"{"id":""}"#, r#"{"id":"a/b"}"#, "\u{0}"] {
        assert_eq!(Sent::new(attempt(), body)?.read()?, Err(CallbackRefused::Unreadable), "{body:?}");
    }
    let mut sent = Sent::new(attempt(), BODY)?;
    for query in ["", "ref=", "ref=abc", "reff=x", "x=1"] {
        sent.query = query.to_owned();
        assert_eq!(sent.read()?, Err(CallbackRefused::Unreadable), "{query:?}");
    }
    sent.query = format!("ref={}&ref={}", attempt(), attempt());
    assert_eq!(sent.read()?, Err(CallbackRefused::Unreadable), "two references");
    Ok(())
}

#[test]
fn the_unsigned_query_must_agree_with_the_signed_body() -> anyhow::Result<()> {
    let (ours, other) = (attempt(), attempt());
    let body = format!(r#"{{"id":"job1","webhook":"https://video.example/callbacks/replicate?ref={ours}"}}"#);
    assert!(Sent::new(ours, &body)?.read()?.is_ok());
    assert_eq!(Sent::new(other, &body)?.read()?, Err(CallbackRefused::Forged));
    Ok(())
}

#[test]
fn settings_that_would_believe_anyone_or_show_the_token_are_refused() -> anyhow::Result<()> {
    for secret in ["", "whsec_", "whsec_AAAA", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYX", "whsec_not base64!"] {
        let mut config = config("https://api.example/v1", "https://video.example");
        config.webhook_secret = secret.into();
        let refused = Replicate::new("replicate", config).err();
        assert!(matches!(refused, Some(ConfigError::WebhookSecret(_))), "{secret:?}: {refused:?}");
    }
    for (base, callback) in [
        ("http://api.example/v1", "https://video.example"),
        ("ftp://api.example", "https://video.example"),
        ("https://u:p@api.example", "https://video.example"),
        ("https://api.example/v1", "video.example"),
        ("https://api.example/v1", "https://video.example?x=1"),
    ] {
        let refused = Replicate::new("replicate", config(base, callback)).err();
        assert!(matches!(refused, Some(ConfigError::Address { .. })), "{base} {callback}: {refused:?}");
    }
    for token in ["", "a\nb"] {
        let mut config = config("https://api.example/v1", "https://video.example");
        config.connection.token = token.into();
        assert_eq!(Replicate::new("replicate", config).err(), Some(ConfigError::Token));
    }
    let shown = format!("{:?}", config("https://api.example/v1", "https://video.example"));
    assert!(!shown.contains("r8_test_token") && !shown.contains("AAECAw"), "{shown}");
    let unknown = serde_json::from_str::<providers::replicate::ReplicateConfig>(
        r#"{"token":"t","callback_base_url":"https://v.example","webhook_secret":"whsec_x","request_timeout":5}"#,
    );
    assert!(unknown.is_err_and(|error| error.to_string().contains("unknown field")));
    Ok(())
}
