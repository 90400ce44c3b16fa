//! Downloads and stores from the outside: the field cases of output downloads (D1 to D6, without resume, which there is not).

use crate::support::server::{Server, Step};
use crate::support::{LIMITS, Scripted, Store, read_all, sha256, video_like, within};
use anyhow::{Context, Result, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::time::{Duration, Instant};
use workers::ports::{ObjectStore, StoredObject, TransferError};

/// One download from a server that may be reached.
async fn fetch(server: &Server) -> Result<(Result<StoredObject, TransferError>, Store)> {
    let store = Store::new(&[server.pair()])?;
    let result = store.objects.fetch(&server.url(), "t/out.mp4", LIMITS).await;
    Ok((result, store))
}

/// What a download from this answer ends with. Whatever it is, a failure leaves no file and names no address.
async fn failure(answer: impl Into<Vec<u8>>) -> Result<TransferError> {
    failure_of(Server::saying(answer).await?).await
}

async fn failure_of(server: Server) -> Result<TransferError> {
    let (result, store) = fetch(&server).await?;
    let error = result.err().context("it was stored")?;
    ensure!(store.files()?.is_empty(), "files are left: {:?}", store.files()?);
    ensure!(store.objects.measure("t/out.mp4").await?.is_none());
    ensure!(!error.to_string().contains("confidential") && !error.to_string().contains("127.0.0.1"), "{error}");
    Ok(error)
}

fn is_transient(error: &TransferError) -> bool {
    matches!(error, TransferError::Transient(_))
}

fn is_permanent(error: &TransferError) -> bool {
    matches!(error, TransferError::Permanent(_))
}

fn gzip(content: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(content)?;
    Ok(encoder.finish()?)
}

fn gzip_answer(body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn a_whole_body_is_stored_and_measured() -> Result<()> {
    let content = video_like(300_000);
    let server = Server::serving(&content).await?;
    let (result, store) = fetch(&server).await?;
    let stored = result?;
    let expected = StoredObject {
        key: "t/out.mp4".into(),
        bytes: 300_000,
        sha256: sha256(&content),
        content_type: "video/mp4".into(),
    };
    assert_eq!(stored, expected);
    assert_eq!(store.objects.measure("t/out.mp4").await?, Some(expected));
    assert_eq!(read_all(&store.objects, "t/out.mp4", None).await?, (300_000, content));
    let request = server.requests().concat();
    assert!(request.contains("accept-encoding: identity\r\n") && !request.contains("\r\nrange:"), "{request}");
    Ok(())
}

// D1
#[tokio::test]
async fn a_truncated_body_is_never_taken_for_complete() -> Result<()> {
    let half = video_like(500_000);
    let announced = [b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", half.as_slice()].concat();
    assert!(is_transient(&failure(announced).await?));

    let chunk = [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n".as_slice(), b"8\r\nab"];
    assert!(is_transient(&failure(chunk[0]).await?), "without the last chunk");
    assert!(is_transient(&failure(chunk.concat()).await?), "within a chunk");

    let zipped = gzip(&half)?;
    assert!(is_transient(&failure(gzip_answer(&zipped[..zipped.len() / 2])).await?), "within gzip");
    assert!(is_transient(&failure(gzip_answer(&zipped[..zipped.len() - 4])).await?), "without the checksum");
    Ok(())
}

// D1
#[tokio::test]
async fn a_whole_body_is_not_refused_for_its_framing() -> Result<()> {
    let content = video_like(200_000);
    let closed = [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &content].concat();
    let head = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n", content.len());
    let chunked = [head.as_bytes(), &content, b"\r\n0\r\n\r\n"];
    // The announced length is that of the compressed bytes.
    for answer in [closed, chunked.concat(), gzip_answer(&gzip(&content)?)] {
        let (result, _store) = fetch(&Server::saying(answer).await?).await?;
        assert_eq!(result?.sha256, sha256(&content));
    }
    Ok(())
}

// D2
#[tokio::test]
async fn no_redirect_leads_inside() -> Result<()> {
    let canary = Server::serving(b"secret").await?;
    let second = Server::redirecting(&canary.url()).await?;
    let first = Server::redirecting(&second.url()).await?;
    let store = Store::new(&[first.pair(), second.pair()])?;
    let error = store.objects.fetch(&first.url(), "k", LIMITS).await.err().context("it was stored")?;
    assert!(is_permanent(&error), "{error}");
    assert_eq!((first.hits(), second.hits(), canary.hits()), (1, 1, 0));
    assert!(store.files()?.is_empty());

    // The same way is fine when the last host is allowed as well.
    let store = Store::new(&[first.pair(), second.pair(), canary.pair()])?;
    assert_eq!(store.objects.fetch(&first.url(), "k", LIMITS).await?.bytes, 6);
    Ok(())
}

// D2
#[tokio::test]
async fn inside_addresses_are_refused_however_they_are_written() -> Result<()> {
    let canary = Server::serving(b"secret").await?;
    let store = Store::new(&["127.0.0.1:1".to_owned()])?;
    let port = canary.port();
    let hosts =
        "127.0.0.1 127.1 2130706433 0x7f000001 0177.0.0.1 0.0.0.0 [::1] [::ffff:127.0.0.1] [::] localhost LOCALHOST";
    let urls = hosts.split(' ').map(|host| format!("http://{host}:{port}/")).chain([
        "http://169.254.169.254/latest/meta-data/".to_owned(),
        format!("http://user:word@127.0.0.1:{port}/"),
        format!("https://127.0.0.1:{port}/"),
        "file:///etc/passwd".to_owned(),
        "gopher://127.0.0.1/".to_owned(),
        "data:text/plain,x".to_owned(),
        "/relative".to_owned(),
    ]);
    for url in urls {
        let error = store.objects.fetch(&url, "k", LIMITS).await.err().context("it was stored")?;
        assert!(is_permanent(&error), "{url}: {error}");
    }
    assert_eq!(canary.hits(), 0);
    assert!(store.files()?.is_empty());
    Ok(())
}

// D2
#[tokio::test]
async fn a_name_is_judged_by_the_addresses_that_are_connected_to() -> Result<()> {
    let canary = Server::serving(b"secret").await?;
    let url = format!("http://cdn.example:{}/", canary.port());
    for answer in [&["127.0.0.1"][..], &["8.8.8.8", "127.0.0.1"], &["::ffff:127.0.0.1"], &["10.0.0.1"]] {
        let lookup = Scripted::new(answer)?;
        let store = Store::resolving(&[], lookup.clone())?;
        let error = store.objects.fetch(&url, "k", LIMITS).await.err().context("it was stored")?;
        assert!(is_permanent(&error), "{answer:?}: {error}");
        assert_eq!(lookup.asked(), 1);
    }
    assert_eq!(canary.hits(), 0);

    // One question for one connection: there is no second answer that could differ from the checked one.
    let lookup = Scripted::new(&["127.0.0.1"])?;
    let store = Store::resolving(&[format!("cdn.example:{}", canary.port())], lookup.clone())?;
    store.objects.fetch(&url, "k", LIMITS).await?;
    assert_eq!((lookup.asked(), canary.hits()), (1, 1));
    Ok(())
}

// D2
#[tokio::test]
async fn redirects_end() -> Result<()> {
    let last = Server::serving(b"content").await?;
    let mut servers = vec![last];
    for _ in 0..4 {
        let next = servers.last().context("a server")?.url();
        servers.push(Server::redirecting(&next).await?);
    }
    let store = Store::new(&servers.iter().map(Server::pair).collect::<Vec<_>>())?;
    assert_eq!(store.objects.fetch(&servers[3].url(), "k", LIMITS).await?.bytes, 7, "three redirects are fine");
    let four = store.objects.fetch(&servers[4].url(), "k2", LIMITS).await;
    assert_eq!(four, Err(TransferError::Permanent("too many redirects".into())));
    assert!(is_permanent(&failure("HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n").await?));
    assert!(is_permanent(
        &failure("HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n").await?
    ));
    Ok(())
}

// D3
#[tokio::test]
async fn an_endless_body_is_stopped_by_the_cap() -> Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let chunk = [b"10000\r\n".as_slice(), &vec![7; 0x10000], b"\r\n"].concat();
    let endless = Server::start(vec![Step::Send(head), Step::Repeat(chunk, Duration::ZERO)]).await?;
    assert!(is_permanent(&failure_of(endless).await?));

    let unframed =
        vec![Step::Send(b"HTTP/1.1 200 OK\r\n\r\n".to_vec()), Step::Repeat(vec![7; 0x10000], Duration::ZERO)];
    assert!(is_permanent(&failure_of(Server::start(unframed).await?).await?));
    assert!(is_permanent(&failure("HTTP/1.1 200 OK\r\nContent-Length: 1048577\r\n\r\n").await?), "not even begun");
    Ok(())
}

// D3
#[tokio::test]
async fn the_cap_counts_decoded_bytes() -> Result<()> {
    let bomb = gzip(&vec![0; 64 << 20])?;
    assert!(bomb.len() < 100_000);
    assert!(is_permanent(&failure(gzip_answer(&bomb)).await?));
    let zstd = "HTTP/1.1 200 OK\r\nContent-Encoding: zstd\r\nContent-Length: 4\r\n\r\nabcd";
    assert!(is_permanent(&failure(zstd).await?), "an encoding nobody asked for is not decoded");
    assert!(is_permanent(&failure(gzip_answer(b"not gzip at all")).await?));
    Ok(())
}

// D3
#[tokio::test]
async fn a_trickle_is_stopped_by_the_deadline_and_hinders_nobody() -> Result<()> {
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n".to_vec();
    let trickle = Server::start(vec![Step::Send(head), Step::Repeat(vec![7], Duration::from_millis(100))]).await?;
    let quick = Server::serving(b"content").await?;
    let store = Store::new(&[trickle.pair(), quick.pair()])?;
    let (slow_url, quick_url, started) = (trickle.url(), quick.url(), Instant::now());
    let slow = store.objects.fetch(&slow_url, "slow", within(Duration::from_millis(1500)));
    let other = store.objects.fetch(&quick_url, "quick", within(Duration::from_secs(1)));
    let (slow, other) = tokio::join!(slow, other);
    assert_eq!(slow, Err(TransferError::Transient("the transfer took too long".into())));
    assert_eq!(other?.bytes, 7);
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(store.files()?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn silence_is_given_up() -> Result<()> {
    let pause = Step::Wait(Duration::from_secs(20));
    let started = Instant::now();
    assert!(is_transient(&failure_of(Server::start(vec![pause.clone()]).await?).await?), "before the answer");
    let head = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc".to_vec();
    assert!(is_transient(&failure_of(Server::start(vec![Step::Send(head), pause]).await?).await?), "within the body");
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());

    // Nobody listens on a port that was just given back.
    let gone = Server::serving(b"").await?;
    let (url, pair) = (gone.url(), gone.pair());
    drop(gone);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let error = Store::new(&[pair])?.objects.fetch(&url, "k", LIMITS).await.err().context("it was stored")?;
    assert_eq!(error, TransferError::Transient("no connection".into()));
    Ok(())
}

// D4
#[tokio::test]
async fn statuses_say_what_to_do() -> Result<()> {
    let with =
        |status: &str, body: &str| format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let xml = "<Error><Code>AccessDenied</Code><Message>Request has Expired</Message></Error>";
    for (status, body) in [("401", ""), ("403", ""), ("404", ""), ("410", ""), ("400", xml), ("404", "link expired")] {
        assert_eq!(failure(with(status, body)).await?, TransferError::Expired, "{status}");
    }
    for status in ["429", "408", "500", "502", "503", "504", "202", "206", "204"] {
        assert!(is_transient(&failure(with(status, "")).await?), "{status}");
    }
    for status in ["400", "405", "416", "451"] {
        assert!(is_permanent(&failure(with(status, "gone")).await?), "{status}");
    }
    Ok(())
}

/// D5: what was cut is fetched anew, from its first byte. Nothing is asked for that a server could answer from another place, or
/// from another version of the file.
#[tokio::test]
async fn d5_a_download_is_never_resumed() -> Result<()> {
    let content = video_like(100_000);
    let part = |range: &str| {
        let head = format!(
            "HTTP/1.1 206 Partial\r\nContent-Range: {range}\r\nETag: \"other\"\r\nContent-Length: 50000\r\n\r\n"
        );
        [head.as_bytes(), &content[50_000..]].concat()
    };
    for answer in [part("bytes 50000-99999/100000"), part("bytes 10000-59999/100000")] {
        assert!(is_transient(&failure(answer).await?), "a part is not the file");
    }
    let cut = [b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n".as_slice(), &content[..50_000]].concat();
    let server = Server::saying(cut).await?;
    let (first, _store) = fetch(&server).await?;
    assert!(first.is_err_and(|error| is_transient(&error)));
    let whole = Server::serving(&content).await?;
    let (again, _store) = fetch(&whole).await?;
    assert_eq!(again?.sha256, sha256(&content));
    for request in server.requests().into_iter().chain(whole.requests()) {
        assert!(!request.contains("\r\nrange:") && !request.contains("if-range"), "{request}");
    }
    Ok(())
}

// D6
#[tokio::test]
async fn what_is_there_already_is_judged_by_its_checksum() -> Result<()> {
    let content = video_like(50_000);
    let mut wrong = content.clone();
    wrong[40_000] ^= 1;
    let server = Server::serving(&content).await?;
    let store = Store::new(&[server.pair()])?;
    store.objects.put("t/out.mp4", crate::support::pieces(&wrong), LIMITS).await?;
    let stored = store.objects.fetch(&server.url(), "t/out.mp4", LIMITS).await?;
    assert_eq!(stored.sha256, sha256(&content));
    assert_eq!(store.objects.measure("t/out.mp4").await?, Some(stored.clone()));

    // Once more: the same object, untouched, and no second file.
    let before = std::fs::metadata(&store.files()?[0])?.modified()?;
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(store.objects.fetch(&server.url(), "t/out.mp4", LIMITS).await?, stored);
    assert_eq!(store.files()?.len(), 1);
    assert_eq!(std::fs::metadata(&store.files()?[0])?.modified()?, before);
    Ok(())
}

// D6
#[tokio::test]
async fn a_failed_download_leaves_what_was_there() -> Result<()> {
    let server = Server::saying("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort").await?;
    let store = Store::new(&[server.pair()])?;
    let before = store.objects.put("k", crate::support::pieces(b"first"), LIMITS).await?;
    assert!(store.objects.fetch(&server.url(), "k", LIMITS).await.is_err());
    assert_eq!(store.objects.measure("k").await?, Some(before));
    Ok(())
}
