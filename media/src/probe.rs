//! Reads what `ffprobe` prints. Everything in it may be missing, `N/A` or nonsense: the files come from outside.

use serde::Deserialize;
use workers::ports::{MediaError, Probe};

/// The longest duration that is believed, in seconds: a year. More is a broken header.
const LONGEST: f64 = 365.0 * 24.0 * 3600.0;

/// The answer of `ffprobe -print_format json -show_error -show_format -show_streams`.
#[derive(Deserialize)]
pub(crate) struct Report {
    #[serde(default)]
    streams: Vec<Stream>,
    #[serde(default)]
    format: Format,
    /// Why the file could not be opened.
    pub error: Option<ReportedError>,
}

/// An error of the tool about the file or about itself.
#[derive(Deserialize)]
pub(crate) struct ReportedError {
    code: i64,
}

impl ReportedError {
    /// Whether the code speaks of the machine rather than of the file. Codes of the tool itself are large; small ones are
    /// those of the operating system, of which `EINVAL` (22) is what a refused format or protocol gives.
    pub(crate) fn is_the_machines(&self) -> bool {
        (-200..0).contains(&self.code) && self.code != -22
    }
}

#[derive(Default, Deserialize)]
struct Format {
    duration: Option<String>,
}

#[derive(Deserialize)]
struct Stream {
    codec_type: Option<String>,
    codec_name: Option<String>,
    #[serde(default)]
    width: i64,
    #[serde(default)]
    height: i64,
    duration: Option<String>,
    avg_frame_rate: Option<String>,
    r_frame_rate: Option<String>,
    #[serde(default)]
    tags: Tags,
    #[serde(default)]
    disposition: Disposition,
    #[serde(default)]
    side_data_list: Vec<SideData>,
}

#[derive(Default, Deserialize)]
struct Tags {
    /// Matroska writers put the length of a track here: `00:00:02.040000000`.
    #[serde(rename = "DURATION", alias = "duration")]
    duration: Option<String>,
    /// How older tools report rotation.
    rotate: Option<String>,
}

#[derive(Default, Deserialize)]
struct Disposition {
    /// A cover picture of a sound file, which is not a video.
    #[serde(default)]
    attached_pic: i64,
}

#[derive(Deserialize)]
struct SideData {
    rotation: Option<f64>,
}

impl Report {
    /// The facts, without the duration if the file does not say it.
    pub(crate) fn facts(&self) -> Result<Probe, MediaError> {
        let corrupt = |why: &str| MediaError::Corrupt(why.to_owned());
        let video = self.video().ok_or_else(|| corrupt("there is no video in it"))?;
        let (Ok(width @ 1..), Ok(height @ 1..)) = (u32::try_from(video.width), u32::try_from(video.height)) else {
            return Err(corrupt("the picture has no size"));
        };
        let (width, height) = if video.lies_on_its_side() { (height, width) } else { (width, height) };
        let audio = self.streams.iter().find(|stream| stream.is("audio"));
        Ok(Probe {
            duration_millis: self.duration_millis(video),
            width,
            height,
            video_codec: video.codec_name.clone().ok_or_else(|| corrupt("the video codec is not known"))?,
            audio_codec: audio.and_then(|stream| stream.codec_name.clone()),
            millihertz: video.frame_rate().map(millis),
        })
    }

    fn video(&self) -> Option<&Stream> {
        self.streams.iter().find(|stream| stream.is("video") && stream.disposition.attached_pic == 0)
    }

    /// The length by stream, container or tag, in this order.
    fn duration_millis(&self, video: &Stream) -> Option<u64> {
        let stream = video.duration.as_deref().and_then(seconds);
        let format = || self.format.duration.as_deref().and_then(seconds);
        let tag = || video.tags.duration.as_deref().and_then(clock_seconds);
        stream.or_else(format).or_else(tag).map(millis)
    }
}

impl Stream {
    fn is(&self, kind: &str) -> bool {
        self.codec_type.as_deref() == Some(kind)
    }

    /// Rotated by about 90 or 270 degrees, to either side.
    fn lies_on_its_side(&self) -> bool {
        let side_data = self.side_data_list.iter().find_map(|data| data.rotation);
        let tag = || self.tags.rotate.as_deref().and_then(|text| text.trim().parse().ok());
        let degrees: f64 = side_data.or_else(tag).unwrap_or_default();
        let turned = degrees.rem_euclid(180.0);
        (45.0..135.0).contains(&turned)
    }

    /// Frames per second.
    fn frame_rate(&self) -> Option<f64> {
        let average = self.avg_frame_rate.as_deref().and_then(ratio);
        average.or_else(|| self.r_frame_rate.as_deref().and_then(ratio))
    }
}

/// The length from a list of packets, one a line as `pts,duration` in seconds (either may be `N/A`). Without time stamps it
/// is the number of packets by the frame rate.
pub(crate) fn packets_millis(list: &str, millihertz: Option<u64>) -> Option<u64> {
    let (mut first, mut end, mut count) = (f64::INFINITY, f64::NEG_INFINITY, 0_u32);
    for line in list.lines().filter(|line| !line.trim().is_empty()) {
        count += 1;
        let mut fields =
            line.split(',').map(|field| field.trim().parse::<f64>().ok().filter(|value| value.is_finite()));
        if let Some(start) = fields.next().flatten() {
            let length = fields.next().flatten().unwrap_or_default();
            first = first.min(start);
            end = end.max(start + length);
        }
    }
    let by_rate = || millihertz.filter(|rate| *rate > 0).map(|rate| f64::from(count) * 1000.0 / rate as f64);
    believable(end - first).or_else(|| by_rate().and_then(believable)).map(millis)
}

fn believable(seconds: f64) -> Option<f64> {
    (seconds.is_finite() && seconds > 0.0 && seconds < LONGEST).then_some(seconds)
}

fn seconds(text: &str) -> Option<f64> {
    text.trim().parse().ok().and_then(believable)
}

/// `HH:MM:SS.fraction` as seconds.
fn clock_seconds(text: &str) -> Option<f64> {
    let mut total = 0.0;
    for part in text.trim().split(':') {
        total = total * 60.0 + part.parse::<f64>().ok()?;
    }
    believable(total)
}

/// `30000/1001` as a number; `0/0` is how the tool says "unknown".
fn ratio(text: &str) -> Option<f64> {
    let (above, below) = text.split_once('/')?;
    let value = above.parse::<f64>().ok()? / below.parse::<f64>().ok()?;
    (value.is_finite() && value > 0.0 && value < 1e6).then_some(value)
}

/// Thousandths, rounded; at least one, for a value that is there is not nothing.
fn millis(value: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive and bounded by its reader")]
    let rounded = (value * 1000.0).round() as u64;
    rounded.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(json: &str) -> Result<Probe, MediaError> {
        let report: Report = serde_json::from_str(json).map_err(|error| MediaError::Tool(error.to_string()))?;
        report.facts()
    }

    fn video(fields: &str) -> String {
        format!(r#"{{"codec_type":"video","codec_name":"h264","width":640,"height":360{fields}}}"#)
    }

    #[test]
    fn duration_comes_from_stream_then_format_then_tag() -> Result<(), MediaError> {
        let tag = r#","tags":{"DURATION":"00:01:02.500000000"}"#;
        let stream = r#","duration":"1.5""#;
        let of = |fields: &str, format: &str| {
            probe(&format!(r#"{{"streams":[{}],"format":{{{format}}}}}"#, video(fields)))
                .map(|probe| probe.duration_millis)
        };
        assert_eq!(of(&format!("{stream}{tag}"), r#""duration":"2.5""#)?, Some(1_500));
        assert_eq!(of(tag, r#""duration":"2.5""#)?, Some(2_500));
        assert_eq!(of(tag, "")?, Some(62_500));
        assert_eq!(of("", "")?, None);
        for nonsense in ["N/A", "nan", "inf", "-1", "0.000000", "1e300", ""] {
            assert_eq!(of(&format!(r#","duration":"{nonsense}""#), "")?, None, "{nonsense}");
        }
        Ok(())
    }

    #[test]
    fn rotation_by_side_data_or_tag_swaps_the_sides() -> Result<(), MediaError> {
        for (degrees, side) in
            [(0, false), (90, true), (-90, true), (180, false), (-180, false), (270, true), (-270, true)]
        {
            let side_data = format!(r#","side_data_list":[{{"side_data_type":"x"}},{{"rotation":{degrees}}}]"#);
            let tag = format!(r#","tags":{{"rotate":"{degrees}"}}"#);
            for fields in [side_data, tag] {
                let probe = probe(&format!(r#"{{"streams":[{}]}}"#, video(&fields)))?;
                assert_eq!((probe.width, probe.height), if side { (360, 640) } else { (640, 360) }, "{fields}");
            }
        }
        Ok(())
    }

    #[test]
    fn rates_stay_exact_enough() -> Result<(), MediaError> {
        for (rate, expected) in [("30000/1001", Some(29_970)), ("25/1", Some(25_000)), ("0/0", None), ("x", None)] {
            let probe = probe(&format!(r#"{{"streams":[{}]}}"#, video(&format!(r#","avg_frame_rate":"{rate}""#))))?;
            assert_eq!(probe.millihertz, expected, "{rate}");
        }
        Ok(())
    }

    #[test]
    fn what_is_not_a_video_is_corrupt() {
        let cover = r#","disposition":{"attached_pic":1}"#;
        let no_size = r#"{"codec_type":"video","codec_name":"h264","width":0,"height":0}"#;
        for streams in ["", r#"{"codec_type":"audio","codec_name":"aac"}"#, &video(cover), no_size] {
            assert!(
                matches!(probe(&format!(r#"{{"streams":[{streams}]}}"#)), Err(MediaError::Corrupt(_))),
                "{streams}"
            );
        }
    }

    #[test]
    fn packets_give_a_length() {
        assert_eq!(packets_millis("0.000000,0.040000\n0.080000,0.040000\n0.040000,0.040000\n", None), Some(120));
        assert_eq!(packets_millis("10.0,N/A\n12.5,N/A\n", None), Some(2_500));
        assert_eq!(packets_millis("N/A,0.04\nN/A,0.04\n", Some(25_000)), Some(80));
        assert_eq!(packets_millis("N/A,N/A\n", None), None);
        assert_eq!(packets_millis("", Some(25_000)), None);
    }
}
