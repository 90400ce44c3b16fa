//! Signed links to objects in the folder store: `{public_url}/objects/{key}?exp={unix seconds}&sig={hex}`.
//!
//! The signature covers the key and the expiry, so neither can be changed. A holder of a link can read that one object until
//! it expires and nothing else.

use crate::config::Secret;
use crate::keys::check_key;
use domain::time::Timestamp;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Put in front of what is signed, so that a signature made with the same secret for another purpose is not a link.
const PURPOSE: &[u8] = b"aivideo object link 1\n";

/// The shortest secret that is accepted, in bytes.
pub(crate) const MIN_SECRET: usize = 16;

/// A link that is not honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkRefused {
    /// The key, the expiry or the signature is not ours.
    #[error("the link's signature does not match")]
    Forged,
    /// Signed by us, and over.
    #[error("the link has expired")]
    Expired,
}

/// Makes and checks signed links.
#[derive(Clone, Debug)]
pub struct Links {
    secret: Secret,
    public_url: String,
}

impl Links {
    /// Links below `public_url`. [`crate::Objects::new`] has checked the secret's length.
    pub(crate) fn new(secret: Secret, public_url: &str) -> Self {
        Self { secret, public_url: public_url.trim_end_matches('/').to_owned() }
    }

    /// The link to `key` that is good until `expires`, in Unix seconds. The key must have passed [`check_key`], after which
    /// it needs no escaping.
    #[must_use]
    pub fn sign(&self, key: &str, expires: u64) -> String {
        let signature = hex::encode(self.mac(key, expires).finalize().into_bytes());
        format!("{}/objects/{key}?exp={expires}&sig={signature}", self.public_url)
    }

    /// Checks the parts of a link as they came in. The comparison takes the same time wherever the first difference is.
    ///
    /// # Errors
    /// [`LinkRefused::Forged`] for anything not signed here, whether or not it would have expired, so that nothing is
    /// learnt from the answer; [`LinkRefused::Expired`] for our own link after its time.
    pub fn verify(&self, key: &str, expires: u64, signature: &str, now: Timestamp) -> Result<(), LinkRefused> {
        check_key(key).map_err(|_| LinkRefused::Forged)?;
        let signature = hex::decode(signature).map_err(|_| LinkRefused::Forged)?;
        self.mac(key, expires).verify_slice(&signature).map_err(|_| LinkRefused::Forged)?;
        let running = i64::try_from(expires).is_ok_and(|expires| now.timestamp() < expires);
        if running { Ok(()) } else { Err(LinkRefused::Expired) }
    }

    fn mac(&self, key: &str, expires: u64) -> Hmac<Sha256> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(self.secret.expose().as_bytes()).expect("HMAC takes a key of any length");
        mac.update(PURPOSE);
        mac.update(expires.to_string().as_bytes());
        mac.update(b"\n");
        mac.update(key.as_bytes());
        mac
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links() -> Links {
        Links::new(Secret::new("0123456789abcdef"), "http://127.0.0.1:8080/")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + domain::time::seconds(seconds.unsigned_abs())
    }

    fn signature(link: &str) -> &str {
        link.split_once("&sig=").map_or("", |(_, signature)| signature)
    }

    #[test]
    fn a_link_is_good_until_it_expires() {
        let link = links().sign("t/video.mp4", 1_000);
        assert!(link.starts_with("http://127.0.0.1:8080/objects/t/video.mp4?exp=1000&sig="), "{link}");
        assert_eq!(signature(&link).len(), 64);
        assert_eq!(links().verify("t/video.mp4", 1_000, signature(&link), at(999)), Ok(()));
        assert_eq!(links().verify("t/video.mp4", 1_000, signature(&link), at(1_000)), Err(LinkRefused::Expired));
    }

    #[test]
    fn no_part_of_a_link_can_be_changed() {
        let link = links().sign("t/video.mp4", 1_000);
        let good = signature(&link);
        let refused = |links: &Links, key: &str, expires, signature: &str| {
            assert_eq!(
                links.verify(key, expires, signature, at(1)),
                Err(LinkRefused::Forged),
                "{key} {expires} {signature}"
            );
        };
        refused(&links(), "t/other.mp4", 1_000, good);
        refused(&links(), "t/video.mp4", 2_000, good);
        refused(&links(), "t/video.mp4", 1_000, &good[..62]);
        refused(&links(), "t/video.mp4", 1_000, "");
        refused(&links(), "t/video.mp4", 1_000, "zz");
        refused(&links(), "t/video.mp4", 1_000, &"0".repeat(64));
        refused(&links(), "t/../video.mp4", 1_000, good);
        refused(&Links::new(Secret::new("another secret, as long"), "http://x"), "t/video.mp4", 1_000, good);
    }

    #[test]
    fn debug_hides_the_secret() {
        assert!(!format!("{:?}", links()).contains("0123456789"));
    }
}
