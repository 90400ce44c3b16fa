//! The steps of the handlers at which a process dies, and the caller that lets it die there.

use crate::cell::Cell;
use domain::message::Message;
use domain::outcome::{Answer, Call};
use eventstore::{CallContext, Caller, Committed};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use workers::Outside;

/// How long a request has been on its way when the process dies in the middle of the call.
const UNDER_WAY: Duration = Duration::from_millis(30);

/// What is being handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Handler {
    Submit,
    LookUp,
    Poll,
    /// The provider's request to us.
    Hook,
    /// The message that applies it.
    Callback,
    Cancel,
}

/// How far it got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Moment {
    /// The broker loses the message: nobody ever takes it.
    Lost,
    /// Taken, and nothing done.
    Taken,
    /// The intent is durable, the call not made.
    Committed,
    /// The call is on its way.
    UnderWay,
    /// The answer is heard, and not recorded.
    Answered,
    /// All is recorded, and nobody knows: the message is not acknowledged, the provider not answered.
    Recorded,
}

/// A step of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Point(pub Handler, pub Moment);

impl Handler {
    const ALL: [(Self, &str); 6] = [
        (Self::Submit, "submit"),
        (Self::LookUp, "look-up"),
        (Self::Poll, "poll"),
        (Self::Hook, "hook"),
        (Self::Callback, "callback"),
        (Self::Cancel, "cancel"),
    ];
}

impl Moment {
    const ALL: [(Self, &str); 6] = [
        (Self::Lost, "lost"),
        (Self::Taken, "taken"),
        (Self::Committed, "committed"),
        (Self::UnderWay, "under way"),
        (Self::Answered, "answered"),
        (Self::Recorded, "recorded"),
    ];
}

impl Point {
    /// Every step, in the order of the table's columns. A callback's own request makes no call.
    pub fn all() -> impl Iterator<Item = Self> {
        let points =
            Handler::ALL.into_iter().flat_map(|(handler, _)| Moment::ALL.map(|(moment, _)| Self(handler, moment)));
        points.filter(|it| it.0 != Handler::Hook || matches!(it.1, Moment::Taken | Moment::Recorded))
    }

    pub fn name(self) -> String {
        let handler = Handler::ALL.iter().find(|it| it.0 == self.0).map_or("", |it| it.1);
        let moment = Moment::ALL.iter().find(|it| it.0 == self.1).map_or("", |it| it.1);
        format!("{handler}, {moment}")
    }

    /// Whether a create call's answer may be lost by it.
    pub fn may_lose_the_answer(self) -> bool {
        self.0 == Handler::Submit && matches!(self.1, Moment::Committed | Moment::UnderWay | Moment::Answered)
    }
}

/// The handler that a message is for.
pub fn handler_of(message: &Message, cell: &Cell) -> Option<Handler> {
    match message {
        Message::SubmitRequested(_) | Message::SubmitDue(_) => Some(Handler::Submit),
        Message::PollDue(_) => Some(Handler::Poll),
        Message::CallbackReceived(_) => Some(Handler::Callback),
        Message::ReconcileDue(_) if cell.fault.cancel.is_some() => Some(Handler::Cancel),
        Message::ReconcileDue(_) => Some(Handler::LookUp),
        _ => None,
    }
}

/// The outside world, in which the process dies at the step that the cell says.
pub struct Mortal<'a> {
    pub outside: &'a Outside,
    pub cell: &'a Arc<Cell>,
    pub handler: Option<Handler>,
    pub died: &'a Notify,
}

impl Mortal<'_> {
    /// Which handler's step a call is. A poll of one that called back, or of a cancel, is that one's.
    fn step(&self, call: &Call) -> Option<Handler> {
        match call {
            Call::Create { .. } => Some(Handler::Submit),
            Call::Find { .. } => Some(Handler::LookUp),
            Call::Cancel { .. } => Some(Handler::Cancel),
            Call::Poll { .. } => self.handler,
            _ => None,
        }
    }

    async fn dies(&self) -> Answer {
        self.died.notify_one();
        std::future::pending().await
    }
}

impl Caller for Mortal<'_> {
    fn call<'a>(&'a self, call: &'a Committed<Call>, context: CallContext) -> BoxFuture<'a, Answer> {
        Box::pin(async move {
            let Some(handler) = self.step(call.get()) else { return self.outside.call(call, context).await };
            if self.cell.reaches(Point(handler, Moment::Committed)) {
                return self.dies().await;
            }
            let asked = self.outside.call(call, context);
            if self.cell.reaches(Point(handler, Moment::UnderWay)) {
                // The connection goes with the process.
                drop(tokio::time::timeout(UNDER_WAY, asked).await);
                return self.dies().await;
            }
            let answer = asked.await;
            if self.cell.reaches(Point(handler, Moment::Answered)) {
                return self.dies().await;
            }
            answer
        })
    }
}
