//! The object store port over a folder and over a bucket.

use crate::support::s3::Bucket;
use crate::support::{LIMITS, Store, pieces, read_all, sha256, video_like, within};
use anyhow::{Context, Result};
use futures_util::{StreamExt, stream};
use media::{LinkRefused, Objects, ObjectsConfig, S3Config, Secret, StoreKind};
use std::io;
use std::time::{Duration, SystemTime};
use workers::ports::{ObjectStore, TransferError, TransferLimits};

const ROOMY: TransferLimits = TransferLimits { max_bytes: 100 << 20, deadline: Duration::from_secs(60) };

fn in_bucket(bucket: &Bucket) -> Result<Objects> {
    let mut config = ObjectsConfig::folder("unused", Secret::default(), "");
    config.kind = StoreKind::S3;
    config.s3 = Some(S3Config {
        endpoint: bucket.endpoint.clone(),
        bucket: "bucket".into(),
        region: "us-east-1".into(),
        access_key: Secret::new("id"),
        secret_key: Secret::new("confidential"),
        allow_http: true,
    });
    Ok(Objects::new(&config)?)
}

/// What every store must do.
async fn honours_the_port(objects: &Objects) -> Result<()> {
    assert_eq!(objects.measure("t/none").await?, None);
    let missing = objects.read("t/none", None).await.err().context("it was read")?;
    assert_eq!(missing, TransferError::Permanent("no such object".into()));

    for length in [0, 1, 1000, 20 << 20] {
        let content = video_like(length);
        let key = format!("t/{length}.mp4");
        let stored = objects.put(&key, pieces(&content), ROOMY).await?;
        assert_eq!((stored.bytes, &stored.sha256), (length as u64, &sha256(&content)));
        assert_eq!(stored.content_type, if length < 12 { "application/octet-stream" } else { "video/mp4" });
        assert_eq!(objects.measure(&key).await?.as_ref(), Some(&stored));
        assert_eq!(objects.put(&key, pieces(&content), ROOMY).await?, stored, "a repeated put is the same put");

        let folder = tempfile::tempdir()?;
        objects.download(&key, &folder.path().join("copy")).await?;
        assert_eq!(sha256(&std::fs::read(folder.path().join("copy"))?), stored.sha256);
        assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    }
    reads_ranges(objects).await
}

async fn reads_ranges(objects: &Objects) -> Result<()> {
    objects.put("t/ten", pieces(b"0123456789"), LIMITS).await?;
    for ((from, to), expected) in
        [((0, 1), "0"), ((3, 7), "3456"), ((9, 10), "9"), ((5, 999), "56789"), ((0, 10), "0123456789")]
    {
        let (size, content) = read_all(objects, "t/ten", Some((from, to))).await?;
        assert_eq!((size, content.as_slice()), (10, expected.as_bytes()), "{from}..{to}");
    }
    for range in [(10, 11), (3, 3), (7, 3), (u64::MAX, u64::MAX)] {
        let error = objects.read("t/ten", Some(range)).await.err().context("it was read")?;
        assert!(matches!(error, TransferError::Permanent(_)), "{range:?}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_folder_honours_the_port() -> Result<()> {
    let store = Store::new(&[])?;
    honours_the_port(&store.objects).await?;
    assert_eq!(store.files()?.len(), 5, "{:?}", store.files()?);
    Ok(())
}

#[tokio::test]
async fn a_bucket_honours_the_port() -> Result<()> {
    let bucket = Bucket::start().await?;
    honours_the_port(&in_bucket(&bucket)?).await?;
    let contents = bucket.contents();
    assert_eq!(contents.uploads.len(), 0, "an unfinished upload is left");
    assert!(contents.writes.iter().any(|write| write.contains("partNumber=3")), "{:?}", contents.writes);
    for key in ["t/1000.mp4", "t/20971520.mp4"] {
        assert_eq!(
            contents.objects.get(key).map(|(_, content_type)| content_type.as_str()),
            Some("video/mp4"),
            "{key}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn what_does_not_arrive_whole_is_not_seen() -> Result<()> {
    let bucket = Bucket::start().await?;
    let store = Store::new(&[])?;
    for objects in [&store.objects, &in_bucket(&bucket)?] {
        // Long enough that the parts before the failure have gone up already.
        let long = video_like(20 << 20);
        let broken = pieces(&long).chain(stream::iter([Err(io::Error::other("the prompt"))]));
        let error = objects.put("k", broken.boxed(), ROOMY).await;
        assert_eq!(error, Err(TransferError::Transient("the content broke off".into())));

        let small = TransferLimits { max_bytes: 19 << 20, ..ROOMY };
        assert!(matches!(objects.put("k", pieces(&long), small).await, Err(TransferError::Permanent(_))));

        let hanging = pieces(&long).chain(stream::pending());
        let error =
            objects.put("k", hanging.boxed(), TransferLimits { deadline: Duration::from_secs(5), ..ROOMY }).await;
        assert_eq!(error, Err(TransferError::Transient("the transfer took too long".into())));
        assert_eq!(objects.measure("k").await?, None);
    }
    assert!(store.files()?.is_empty(), "{:?}", store.files()?);
    assert!(bucket.contents().uploads.is_empty() && bucket.contents().objects.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_put_that_is_dropped_leaves_no_file() -> Result<()> {
    let store = Store::new(&[])?;
    let hanging = pieces(&video_like(20 << 20)).chain(stream::pending());
    let put = store.objects.put("k", hanging.boxed(), ROOMY);
    assert!(tokio::time::timeout(Duration::from_secs(3), put).await.is_err());
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(store.files()?.is_empty(), "{:?}", store.files()?);
    Ok(())
}

// D6: the store has done it and could not say so.
#[tokio::test]
async fn a_lost_answer_of_the_store_is_settled_by_checksum() -> Result<()> {
    let bucket = Bucket::start().await?;
    let objects = in_bucket(&bucket)?;
    let content = video_like(1000);
    // Lost as often as the client asks.
    bucket.contents().lost_answers = 100;
    let stored = objects.put("k", pieces(&content), ROOMY).await?;
    assert_eq!(stored.sha256, sha256(&content));
    assert_eq!(bucket.contents().objects.len(), 1);

    // An equal length is no proof: what lies there is replaced, even when no answer comes.
    bucket.contents().objects.insert("k".into(), (vec![0; 1000], String::new()));
    assert_eq!(objects.put("k", pieces(&content), ROOMY).await?, stored);
    assert_eq!(bucket.contents().objects.get("k").map(|(bytes, _)| sha256(bytes)), Some(stored.sha256));
    Ok(())
}

#[tokio::test]
async fn no_key_leaves_the_store() -> Result<()> {
    let store = Store::new(&[])?;
    for key in ["", "../k", "a/../../k", "/etc/passwd", "a//b", "a/", "a\\..\\b", "k#1", "a%2f..%2fb", "k\0"] {
        let refused = |error: Option<TransferError>| matches!(error, Some(TransferError::Permanent(_)));
        assert!(refused(store.objects.put(key, pieces(b"x"), LIMITS).await.err()), "{key:?}");
        assert!(refused(store.objects.fetch("http://127.0.0.1:1/", key, LIMITS).await.err()), "{key:?}");
        assert!(refused(store.objects.read(key, None).await.err()), "{key:?}");
        assert!(refused(store.objects.measure(key).await.err()), "{key:?}");
        assert!(refused(store.objects.signed_url(key, Duration::from_secs(9)).await.err()), "{key:?}");
        assert!(refused(store.objects.download(key, &store.folder.path().join("x")).await.err()), "{key:?}");
    }
    assert!(store.files()?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_folders_link_is_checked_by_its_own_store() -> Result<()> {
    let store = Store::new(&[])?;
    let url = store.objects.signed_url("t/out.mp4", Duration::from_secs(60)).await?;
    let query = url.strip_prefix("http://127.0.0.1:1/objects/t/out.mp4?exp=").context("not our link")?;
    let (expires, signature) = query.split_once("&sig=").context("no signature")?;
    let expires: u64 = expires.parse()?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
    assert!((59..=60).contains(&(expires - now)), "{expires} {now}");

    let links = store.objects.links().context("a folder has links")?;
    let at = |seconds| domain::time::Timestamp::UNIX_EPOCH + domain::time::seconds(seconds);
    assert_eq!(links.verify("t/out.mp4", expires, signature, at(now)), Ok(()));
    assert_eq!(links.verify("t/out.mp4", expires, signature, at(expires)), Err(LinkRefused::Expired));
    assert_eq!(links.verify("t/out.mp4", expires + 1, signature, at(now)), Err(LinkRefused::Forged));
    assert_eq!(links.verify("t/other.mp4", expires, signature, at(now)), Err(LinkRefused::Forged));
    assert_eq!(
        Store::new(&[])?.objects.links().map(|links| links.verify("t/out.mp4", expires, signature, at(now))),
        Some(Ok(()))
    );
    Ok(())
}

#[tokio::test]
async fn a_buckets_link_is_the_stores_own() -> Result<()> {
    let bucket = Bucket::start().await?;
    let objects = in_bucket(&bucket)?;
    let url = objects.signed_url("t/out.mp4", Duration::from_secs(600)).await?;
    assert!(url.starts_with(&format!("{}/bucket/t/out.mp4?", bucket.endpoint)), "{url}");
    assert!(
        url.contains("X-Amz-Expires=600") && url.contains("X-Amz-Signature=") && !url.contains("confidential"),
        "{url}"
    );
    assert!(objects.links().is_none());
    Ok(())
}

#[tokio::test]
async fn what_a_killed_process_left_is_removed() -> Result<()> {
    let store = Store::new(&[])?;
    store.objects.put("t/out.mp4", pieces(b"whole"), LIMITS).await?;
    std::fs::write(store.folder.path().join("t/other.mp4#1"), b"half")?;
    assert_eq!(store.objects.remove_abandoned(Duration::from_secs(3600)).await?, 0, "it may still be written to");
    assert_eq!(store.objects.remove_abandoned(Duration::ZERO).await?, 1);
    assert_eq!(store.files()?.len(), 1);
    Ok(())
}

#[tokio::test]
async fn a_deadline_that_has_passed_stores_nothing() -> Result<()> {
    let store = Store::new(&[])?;
    let result = store.objects.put("k", stream::pending().boxed(), within(Duration::ZERO)).await;
    assert_eq!(result, Err(TransferError::Transient("the transfer took too long".into())));
    Ok(())
}

#[test]
fn settings_are_strict_and_silent() -> Result<()> {
    let json =
        |extra: &str| format!(r#"{{"kind":"folder","folder":"/tmp/x","link_secret":"confidential secret"{extra}}}"#);
    let config: ObjectsConfig = serde_json::from_str(&json(""))?;
    assert!(!format!("{config:?}").contains("confidential"), "{config:?}");
    assert!(serde_json::from_str::<ObjectsConfig>(&json(r#","alow_hosts":[]"#)).is_err());
    let s3 = r#","s3":{"endpoint":"http://x","bucket":"b","region":"r","access_key":"conf1","secret_key":"conf2"}"#;
    let config: ObjectsConfig = serde_json::from_str(&json(s3))?;
    assert!(!format!("{config:?}").contains("conf1") && !format!("{config:?}").contains("conf2"), "{config:?}");
    assert!(serde_json::from_str::<media::MediaConfig>(r#"{"treads":1}"#).is_err());

    let folder = tempfile::tempdir()?;
    let with_secret =
        |secret: &str, url: &str| Objects::new(&ObjectsConfig::folder(folder.path(), Secret::new(secret), url)).err();
    assert!(with_secret("short", "http://x").is_some());
    assert!(with_secret("sixteen bytes or more", "").is_some());
    assert!(with_secret("sixteen bytes or more", "http://x").is_none());
    Ok(())
}
