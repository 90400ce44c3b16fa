//! Uploads and signed links.

use crate::doubles::png;
use crate::world::{Answer, World, input, token};
use anyhow::{Context, Result};
use api::Role;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use domain::id::TenantId;
use futures_util::stream;
use serde_json::json;
use uuid::Uuid;

async fn upload(world: &World, token: &str, content_type: &str, key: Option<&str>, body: Vec<u8>) -> Result<Answer> {
    let mut request = Request::post("/uploads")
        .header("authorization", format!("Bearer {token}"))
        .header("content-type", content_type);
    if let Some(key) = key {
        request = request.header("Idempotency-Key", key);
    }
    // In chunks and without a length, as a browser streams it.
    let chunks: Vec<Result<Vec<u8>, std::io::Error>> = body.chunks(5_000).map(|chunk| Ok(chunk.to_vec())).collect();
    world.call(request.body(Body::from_stream(stream::iter(chunks)))?).await
}

#[tokio::test]
async fn an_image_is_stored_and_can_be_used() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let answer = upload(&world, &creator, "image/png; charset=x", None, png(20_000)).await?;
    assert_eq!(answer.status, StatusCode::OK, "{:?}", answer.body);
    let told = answer.json()?;
    assert_eq!((&told["bytes"], &told["contentType"]), (&json!(20_016), &json!("image/png")));
    let asset = told["assetId"].as_str().context("an id")?;
    assert_eq!(world.objects.keys(), [format!("tenants/{}/uploads/{asset}", world.tenant)]);
    let mut with_image = input("a boat");
    with_image["inputAssetIds"] = json!([asset]);
    let accepted = world.submit(&creator, Some("k"), &with_image).await?;
    assert_eq!(accepted["version"], 1, "{accepted}");
    let stranger = TenantId(Uuid::new_v4());
    world.grant(stranger, 1_000).await?;
    let refused = world.submit(&token(stranger, &[Role::Creator])?, Some("k"), &with_image).await?;
    assert_eq!(refused["refusal"]["code"], "INVALID_INPUT_ASSETS");
    Ok(())
}

#[tokio::test]
async fn an_upload_with_a_key_is_one_asset() -> Result<()> {
    let world = World::new().await?;
    let creator = world.creator()?;
    let first = upload(&world, &creator, "image/png", Some("photo"), png(10)).await?.json()?;
    let again = upload(&world, &creator, "image/png", Some(" photo "), png(10)).await?.json()?;
    assert_eq!(first, again);
    let other = upload(&world, &creator, "image/png", Some("photo"), png(11)).await?;
    assert_eq!(other.status, StatusCode::CONFLICT);
    assert_eq!(other.json()?["error"]["code"], "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(world.objects.keys().len(), 1, "the first image is untouched");
    let elsewhere = token(TenantId(Uuid::new_v4()), &[Role::Creator])?;
    let theirs = upload(&world, &elsewhere, "image/png", Some("photo"), png(11)).await?.json()?;
    assert_ne!(theirs["assetId"], first["assetId"]);
    let bad = upload(&world, &creator, "image/png", Some("a b"), png(10)).await?;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    Ok(())
}

#[tokio::test]
async fn what_is_no_image_or_too_large_or_nobody_s_is_not_stored() -> Result<()> {
    let world = World::with(|config| config.max_upload_bytes = 10_000).await?;
    let creator = world.creator()?;
    let cases = [
        (creator.clone(), "image/png", b"<html>".to_vec(), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (creator.clone(), "image/png", Vec::new(), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (creator.clone(), "video/mp4", png(10), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (creator.clone(), "image/svg+xml", png(10), StatusCode::UNSUPPORTED_MEDIA_TYPE),
        (creator, "image/png", png(10_000), StatusCode::PAYLOAD_TOO_LARGE),
        (token(world.tenant, &[Role::Auditor])?, "image/png", png(10), StatusCode::FORBIDDEN),
        ("nonsense".to_owned(), "image/png", png(10), StatusCode::UNAUTHORIZED),
    ];
    for (token, content_type, body, expected) in cases {
        let answer = upload(&world, &token, content_type, None, body).await?;
        assert_eq!(answer.status, expected, "{content_type}");
    }
    assert!(world.objects.keys().is_empty());
    assert_eq!(world.count("SELECT count(*) FROM uploads").await?, 0);
    Ok(())
}

#[tokio::test]
async fn signed_links_serve_ranges() -> Result<()> {
    let world = World::new().await?;
    let mut video = b"\0\0\0\x20ftypisom".to_vec();
    video.extend((0..988_u32).map(|n| u8::try_from(n % 251).unwrap_or(0)));
    world.objects.keep("tenants/t/video.mp4", video.clone());
    let good = "/objects/tenants/t/video.mp4?exp=4102444800&sig=good";
    let get = async |path: &str, range: Option<&str>| -> Result<Answer> {
        let request = range.into_iter().fold(Request::get(path), |request, range| request.header("range", range));
        world.call(request.body(Body::empty())?).await
    };
    let header = |answer: &Answer, name: &str| -> String {
        answer.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
    };
    let whole = get(good, None).await?;
    assert_eq!((whole.status, whole.body.as_ref()), (StatusCode::OK, video.as_slice()));
    assert_eq!(header(&whole, "content-length"), "1000");
    assert_eq!(header(&whole, "content-type"), "video/mp4");
    assert_eq!(header(&whole, "accept-ranges"), "bytes");
    for (range, from, to) in
        [("bytes=0-1", 0, 2), ("bytes=990-", 990, 1000), ("bytes=-4", 996, 1000), ("bytes=10-5000", 10, 1000)]
    {
        let part = get(good, Some(range)).await?;
        assert_eq!((part.status, part.body.as_ref()), (StatusCode::PARTIAL_CONTENT, &video[from..to]), "{range}");
        assert_eq!(header(&part, "content-range"), format!("bytes {from}-{}/1000", to - 1));
        assert_eq!(header(&part, "content-length"), (to - from).to_string());
        assert_eq!(header(&part, "content-type"), "video/mp4", "also in the middle of it");
    }
    let outside = get(good, Some("bytes=1000-")).await?;
    assert_eq!(outside.status, StatusCode::RANGE_NOT_SATISFIABLE);
    assert_eq!(header(&outside, "content-range"), "bytes */1000");
    let head = world.call(Request::head(good).body(Body::empty())?).await?;
    assert_eq!((head.status, header(&head, "content-length").as_str()), (StatusCode::OK, "1000"));
    let refused = [
        ("/objects/tenants/t/video.mp4?exp=4102444800&sig=bad", StatusCode::FORBIDDEN, "BAD_LINK"),
        ("/objects/tenants/t/video.mp4", StatusCode::FORBIDDEN, "BAD_LINK"),
        ("/objects/tenants/t/video.mp4?exp=x&sig=good", StatusCode::FORBIDDEN, "BAD_LINK"),
        ("/objects/tenants/t/video.mp4?exp=1&sig=good", StatusCode::FORBIDDEN, "LINK_EXPIRED"),
        ("/objects/tenants/t/none.mp4?exp=4102444800&sig=good", StatusCode::NOT_FOUND, "NOT_FOUND"),
    ];
    for (path, status, code) in refused {
        let answer = get(path, None).await?;
        assert_eq!((answer.status, answer.json()?["error"]["code"].as_str()), (status, Some(code)), "{path}");
    }
    Ok(())
}

/// What was accepted stays accepted: the retry of a request whose input is not to be had any more gets the first answer.
#[tokio::test]
async fn a_retry_is_answered_though_its_input_is_gone() -> Result<()> {
    let world = World::new().await?;
    world.grant(world.tenant, 1_000).await?;
    let creator = world.creator()?;
    let image = upload(&world, &creator, "image/png", None, png(10)).await?.json()?;
    let mut input = input("a boat");
    input["inputAssetIds"] = json!([image["assetId"]]);
    let first = world.submit(&creator, Some("k"), &input).await?;
    assert!(first["refusal"].is_null(), "{first}");
    let gone = world.count("WITH gone AS (DELETE FROM uploads RETURNING 1) SELECT count(*) FROM gone").await?;
    assert_eq!(gone, 1);
    let again = world.submit(&creator, Some("k"), &input).await?;
    assert_eq!((&again["taskId"], &again["replayed"]), (&first["taskId"], &json!(true)), "{again}");
    let other = world.submit(&creator, Some("another"), &input).await?;
    assert_eq!(other["refusal"]["code"], "INVALID_INPUT_ASSETS");
    input["prompt"] = json!("a ship");
    let reused = world.submit(&creator, Some("k"), &input).await?;
    assert_eq!(reused["refusal"]["code"], "IDEMPOTENCY_KEY_REUSED");
    Ok(())
}
