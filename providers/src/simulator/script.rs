//! What a prompt asks the simulator to do wrong: `[sim: key=value key=value:number flag]`.

/// When a fault strikes, seen from the job's being accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    Before,
    After,
}

/// What becomes of the reply to a create call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyFault {
    /// The connection closes without an answer.
    Drop(Moment),
    /// A page of a proxy, 502.
    BadGateway(Moment),
    /// No answer for so many seconds, then the connection closes.
    Hang(Moment, u64),
    /// 201, but the body ends early.
    Cut,
    /// 201 with something that is not JSON.
    Junk,
    /// 201 with JSON that names no job.
    NoId,
}

impl ReplyFault {
    pub(super) const fn moment(self) -> Moment {
        match self {
            Self::Drop(moment) | Self::BadGateway(moment) | Self::Hang(moment, _) => moment,
            Self::Cut | Self::Junk | Self::NoId => Moment::After,
        }
    }
}

/// A refusal of the create call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Status(u16),
    Moderation,
}

/// How a job fails after it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    Internal,
    Moderation,
    /// It waited too long inside the provider; where a provider has no word for that, it is internal.
    Expired,
    /// It looks like a success until its output is asked for, where a provider can look so; otherwise it is internal.
    Hidden,
}

impl Failure {
    /// The word in the tag and in the journal.
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Internal => "internal",
            Self::Moderation => "moderation",
            Self::Expired => "expired",
            Self::Hidden => "hidden",
        }
    }

    pub(super) fn of(word: &str) -> Option<Self> {
        [Self::Internal, Self::Moderation, Self::Expired, Self::Hidden].into_iter().find(|it| it.word() == word)
    }
}

/// The wishes of one prompt. The default is a job that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Script {
    /// The tag's own text, to recognise a job by; never the prompt.
    pub(super) tag: String,
    pub(super) run_ms: Option<u64>,
    pub(super) refuse: Option<Refusal>,
    pub(super) fail: Option<Failure>,
    /// The first so many creates of a reference answer 429.
    pub(super) throttle: u32,
    pub(super) reply: Option<ReplyFault>,
    /// The reply fault strikes the first so many creates of a reference (those after the throttled ones).
    pub(super) reply_times: u32,
    pub(super) never: bool,
    pub(super) callback_early: bool,
    pub(super) callback_none: bool,
    pub(super) callback_copies: u32,
    pub(super) callback_delay_ms: u64,
    /// The first so many downloads end early.
    pub(super) cut: u32,
    /// So many output addresses answer 403 before one works.
    pub(super) expire: u32,
    pub(super) weird_status: bool,
    /// The first so many cancels answer 500.
    pub(super) cancel_fails: u32,
    pub(super) cancel_ignored: bool,
    /// The HTTP status with which a taken id is refused, where the caller chooses ids.
    pub(super) conflict_status: u16,
    /// The list does not show the job before it is so old.
    pub(super) list_delay_ms: u64,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            tag: String::new(),
            run_ms: None,
            refuse: None,
            fail: None,
            throttle: 0,
            reply: None,
            reply_times: 1,
            never: false,
            callback_early: false,
            callback_none: false,
            callback_copies: 1,
            callback_delay_ms: 0,
            cut: 0,
            expire: 0,
            weird_status: false,
            cancel_fails: 0,
            cancel_ignored: false,
            conflict_status: 400,
            list_delay_ms: 0,
        }
    }
}

impl Script {
    /// Reads the tag in a prompt. `Err` holds the word that is not understood: a misspelt fault must fail the test that
    /// asks for it, not pass as a job without faults.
    pub(super) fn of(prompt: &str) -> Result<Self, String> {
        let mut script = Self::default();
        let Some((_, rest)) = prompt.split_once("[sim:") else {
            return Ok(script);
        };
        let (tag, _) = rest.split_once(']').ok_or("an open tag")?;
        script.tag = tag.trim().to_owned();
        for word in tag.split_whitespace() {
            script.wish(word).ok_or(word)?;
        }
        Ok(script)
    }

    fn wish(&mut self, word: &str) -> Option<()> {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        let (value, number) = match value.split_once(':') {
            Some((value, number)) => (value, Some(number.parse::<u32>().ok()?)),
            None => (value, None),
        };
        match key {
            "run" => self.run_ms = Some(value.parse().ok()?),
            "throttle" => self.throttle = value.parse().ok()?,
            "cut" => self.cut = value.parse().ok()?,
            "expire" => self.expire = value.parse().ok()?,
            "conflict" => self.conflict_status = value.parse().ok().filter(|it| (200..500).contains(it))?,
            "never" => self.never = true,
            "refuse" => self.refuse = Some(refusal(value)?),
            "fail" => self.fail = Some(Failure::of(value)?),
            "status" if value == "weird" => self.weird_status = true,
            "list" if value == "late" => self.list_delay_ms = number.unwrap_or(1_000).into(),
            "callback" => self.callback(value, number)?,
            "cancel" => self.cancel(value, number)?,
            _ => {
                self.reply = Some(reply(key, value, number)?);
                self.reply_times = if key == "hang" { 1 } else { number.unwrap_or(1) };
            }
        }
        Some(())
    }

    fn callback(&mut self, value: &str, number: Option<u32>) -> Option<()> {
        match value {
            "early" => self.callback_early = true,
            "duplicate" => self.callback_copies = number.unwrap_or(3),
            "none" => self.callback_none = true,
            "late" => self.callback_delay_ms = number.unwrap_or(3_000).into(),
            _ => return None,
        }
        Some(())
    }

    fn cancel(&mut self, value: &str, number: Option<u32>) -> Option<()> {
        match value {
            "fail" => self.cancel_fails = number.unwrap_or(1),
            "late" => self.cancel_ignored = true,
            _ => return None,
        }
        Some(())
    }

    /// What becomes of the reply to a reference's create number `count` (from 1).
    pub(super) fn reply_to(&self, count: u32) -> Option<ReplyFault> {
        self.reply.filter(|_| count.saturating_sub(self.throttle) <= self.reply_times)
    }
}

fn refusal(value: &str) -> Option<Refusal> {
    match value {
        "moderation" => Some(Refusal::Moderation),
        status => status.parse().ok().filter(|status| (400..500).contains(status)).map(Refusal::Status),
    }
}

fn reply(key: &str, value: &str, number: Option<u32>) -> Option<ReplyFault> {
    let moment = match value {
        "before" => Some(Moment::Before),
        "after" => Some(Moment::After),
        _ => None,
    };
    Some(match (key, value) {
        ("drop", _) => ReplyFault::Drop(moment?),
        ("5xx", _) => ReplyFault::BadGateway(moment?),
        ("hang", _) => ReplyFault::Hang(moment?, number.unwrap_or(30).into()),
        ("reply", "cut") => ReplyFault::Cut,
        ("reply", "junk") => ReplyFault::Junk,
        ("reply", "noid") => ReplyFault::NoId,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_without_a_tag_asks_for_nothing() {
        assert_eq!(Script::of("a cat [looking] at =x"), Ok(Script::default()));
    }

    #[test]
    fn wishes_combine() {
        let asked = Script::of(
            "a cat [sim: run=1500 throttle=2 drop=after:3 callback=early callback=duplicate never] at night",
        );
        let expected = Script {
            tag: "run=1500 throttle=2 drop=after:3 callback=early callback=duplicate never".to_owned(),
            run_ms: Some(1500),
            throttle: 2,
            reply: Some(ReplyFault::Drop(Moment::After)),
            reply_times: 3,
            callback_early: true,
            callback_copies: 3,
            never: true,
            ..Script::default()
        };
        assert_eq!(asked, Ok(expected));
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (prompt, word) in [
            ("[sim: runs=1]", "runs=1"),
            ("[sim: drop=sometimes]", "drop=sometimes"),
            ("[sim: run=1 refuse=200]", "refuse=200"),
            ("[sim: hang=after:x]", "hang=after:x"),
            ("[sim: run=1", "an open tag"),
        ] {
            assert_eq!(Script::of(prompt), Err(word.to_owned()));
        }
    }

    #[test]
    fn a_reply_fault_strikes_the_first_creates_after_the_throttled_ones() {
        let script = Script { throttle: 1, reply: Some(ReplyFault::Junk), reply_times: 2, ..Script::default() };
        let struck: Vec<bool> = (1..=5).map(|count| script.reply_to(count).is_some()).collect();
        assert_eq!(struck, [true, true, true, false, false], "the first is throttled before it comes to this");
    }
}
