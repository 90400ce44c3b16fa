//! Media types from first bytes. What a server says in `Content-Type` is not asked: it is often wrong and never proof.

/// How many first bytes [`content_type`] looks at.
pub(crate) const HEAD: usize = 64;

const UNKNOWN: &str = "application/octet-stream";

/// The media type that the first bytes of a file show; `application/octet-stream` when they show none that is known here.
#[must_use]
pub fn content_type(head: &[u8]) -> &'static str {
    match head {
        [_, _, _, _, b'f', b't', b'y', b'p', brand @ ..] => iso_media(brand),
        [0x1a, 0x45, 0xdf, 0xa3, rest @ ..] => matroska(rest),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => "image/png",
        [0xff, 0xd8, 0xff, ..] => "image/jpeg",
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => "image/gif",
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => "image/webp",
        _ => UNKNOWN,
    }
}

fn iso_media(brand: &[u8]) -> &'static str {
    match brand {
        [b'q', b't', b' ', b' ', ..] => "video/quicktime",
        [b'M', b'4', b'A', b' ', ..] => "audio/mp4",
        [b'a', b'v', b'i', b'f' | b's', ..] => "image/avif",
        [b'h', b'e', b'i', b'c' | b'x', ..] => "image/heic",
        _ => "video/mp4",
    }
}

/// EBML: the document type stands in the header, which every known writer keeps within the first bytes.
fn matroska(rest: &[u8]) -> &'static str {
    let says = |word: &[u8]| rest.windows(word.len()).take(HEAD).any(|window| window == word);
    if says(b"webm") {
        "video/webm"
    } else if says(b"matroska") {
        "video/x-matroska"
    } else {
        UNKNOWN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_first_bytes() {
        let cases: [(&[u8], &str); 10] = [
            (b"\0\0\0\x20ftypisom\0\0", "video/mp4"),
            (b"\0\0\0\x14ftypqt  ", "video/quicktime"),
            (b"\0\0\0\x1cftypM4A ", "audio/mp4"),
            (b"\x1a\x45\xdf\xa3\x9f\x42\x86\x81\x01\x42\x82\x84webm", "video/webm"),
            (b"\x1a\x45\xdf\xa3\xa3\x42\x82\x88matroska", "video/x-matroska"),
            (b"\x89PNG\r\n\x1a\n\0", "image/png"),
            (b"\xff\xd8\xff\xe0", "image/jpeg"),
            (b"GIF89a", "image/gif"),
            (b"RIFF\x01\x02\x03\x04WEBPVP8 ", "image/webp"),
            (b"RIFF\x01\x02\x03\x04WAVE", UNKNOWN),
        ];
        for (head, expected) in cases {
            assert_eq!(content_type(head), expected);
        }
    }

    #[test]
    fn everything_else_is_just_bytes() {
        for head in [&b""[..], b"ftyp", b"#EXTM3U\n#EXT-X-VERSION:3\n", b"<html>", b"\xff\xd8"] {
            assert_eq!(content_type(head), UNKNOWN);
        }
    }
}
