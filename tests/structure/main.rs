//! The crates' dependencies point one way. The manifest alone does not say why; this test does.

use cargo_metadata::{DependencyKind, MetadataCommand};
use std::collections::BTreeMap;

type Anyhow = Result<(), Box<dyn std::error::Error>>;

/// Which of our crates may name which others.
fn allowed() -> BTreeMap<&'static str, &'static [&'static str]> {
    BTreeMap::from([
        ("domain", &[][..]),
        ("simulation", &["domain"]),
        ("eventstore", &["domain"]),
        ("projections", &["domain", "eventstore"]),
        ("messaging", &["domain", "eventstore"]),
        ("admission", &["domain"]),
        ("workers", &["domain", "eventstore", "admission"]),
        ("providers", &["domain", "workers"]),
        ("media", &["domain", "workers"]),
        ("api", &["domain", "eventstore", "projections", "workers"]),
        ("bench", &["domain", "eventstore", "projections"]),
        (
            "app",
            &["domain", "admission", "eventstore", "projections", "messaging", "workers", "providers", "media", "api"],
        ),
    ])
}

/// Outside crates that only some of ours may name, and why.
const WRAPPED: &[(&str, &[&str], &str)] = &[
    ("reqwest", &["providers", "media", "app", "tests"], "who can call out can call out inside a transaction"),
    ("sqlx", &["eventstore", "projections", "bench", "tests"], "a business transaction is opened in one place only"),
    ("rocketmq-client-rust", &["messaging"], "one place maps to an acknowledgement"),
    ("redis", &["admission"], "losing Redis must cost nothing but counts"),
    ("object_store", &["media", "tests"], "bytes go through the ObjectStore port"),
    (
        "rand",
        &["eventstore", "projections", "workers", "providers", "messaging", "app", "tests", "media", "api"],
        "the domain draws no random numbers",
    ),
    (
        "tokio",
        &[
            "eventstore",
            "projections",
            "messaging",
            "admission",
            "workers",
            "providers",
            "media",
            "api",
            "app",
            "bench",
            "tests",
        ],
        "the domain awaits nothing",
    ),
];

#[test]
fn dependencies_point_one_way() -> Anyhow {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let allowed = allowed();
    let ours: Vec<&str> = metadata.packages.iter().map(|package| package.name.as_str()).collect();
    let mut refused = vec![];
    for package in &metadata.packages {
        let name = package.name.as_str();
        for dependency in package.dependencies.iter().filter(|it| it.kind == DependencyKind::Normal) {
            let to = dependency.name.as_str();
            let edge_allowed = allowed.get(name).is_none_or(|may| may.contains(&to));
            if ours.contains(&to) && !edge_allowed {
                refused.push(format!("{name} -> {to}: it may only name {:?}", allowed[name]));
            }
            if let Some((_, may, why)) = WRAPPED.iter().find(|(wrapped, ..)| *wrapped == to)
                && !may.contains(&name)
            {
                refused.push(format!("{name} -> {to}: {why}"));
            }
        }
    }
    assert!(ours.len() >= 10, "only {} packages were looked at", ours.len());
    assert!(refused.is_empty(), "refused dependencies:\n  {}", refused.join("\n  "));
    Ok(())
}

#[test]
fn the_domain_depends_on_plain_data_only() -> Anyhow {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let domain = metadata.packages.iter().find(|it| it.name.as_str() == "domain").ok_or("no domain")?;
    let normal = || domain.dependencies.iter().filter(|it| it.kind == DependencyKind::Normal);
    let met: Vec<&str> = normal().filter(|it| !it.optional).map(|it| it.name.as_str()).collect();
    for name in &met {
        assert!(
            ["serde", "serde_json", "uuid", "chrono", "thiserror"].contains(name),
            "domain -> {name}: facts and rules need no more than plain data"
        );
    }
    assert!(!met.is_empty());
    let optional: Vec<&str> = normal().filter(|it| it.optional).map(|it| it.name.as_str()).collect();
    // `schemars` only derives: the types say the same with and without it.
    assert_eq!(optional, ["proptest", "schemars"], "only the test kit and the published schemas need more");
    assert!(!domain.features.contains_key("default"), "nobody gets the test kit or the schemas unasked");
    Ok(())
}
