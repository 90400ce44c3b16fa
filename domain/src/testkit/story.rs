//! Given, when, then: a test of a state machine as a sentence. A story that lacks its end does not compile, or is warned
//! about; one that ends otherwise panics with what was given, met and done.
//!
//! ```
//! use domain::ledger::{Account, Command, Event, State};
//! use domain::id::TaskId;
//! use domain::money::Credits;
//! use domain::testkit::story::given;
//!
//! let task = TaskId(uuid::Uuid::from_u128(1));
//! given::<Account>([
//!     Event::Granted { key: "welcome".to_owned(), amount: Credits(100) },
//!     Event::Held { task, amount: Credits(60), expires_at: None },
//! ])
//! .when(Command::Settle { task, charge: Credits(61) })
//! .then_refused("charge_exceeds_hold")
//! .when(Command::Settle { task, charge: Credits(40) })
//! .then([Event::Settled { task, charged: Credits(40), released: Credits(20) }])
//! .then_state(State::Settled);
//! ```
//!
//! Nothing can be expected before something was done:
//!
//! ```compile_fail
//! # use domain::ledger::{Account, State};
//! # use domain::testkit::story::given;
//! given::<Account>([]).then_state(State::NoPosting);
//! ```
//!
//! And an answer can not be expected twice:
//!
//! ```compile_fail
//! # use domain::ledger::{Account, Command};
//! # use domain::money::Credits;
//! # use domain::testkit::story::given;
//! given::<Account>([])
//!     .when(Command::Grant { key: "a".to_owned(), amount: Credits(0) })
//!     .then_refused("not_positive")
//!     .then_already_so();
//! ```

use super::Subject;
use super::strategies::start;
use crate::aggregate::{Decision, Refusal};
use crate::stored::StoredEvent;
use crate::time::Timestamp;
use std::fmt::Write;

/// Begins a story with a history; an empty one is the state before anything happened.
///
/// # Panics
/// The history does not fold: it can not have happened.
#[track_caller]
pub fn given<A: Subject>(events: impl IntoIterator<Item = A::Event>) -> Given<A> {
    let mut given = Given { history: Vec::new(), state: A::absent(), now: start() };
    for event in events {
        given.state = match given.state.evolve(&event) {
            Ok(state) => state,
            Err(misfit) => panic!("this can not be given: {misfit}\n{}", list("given", &given.history)),
        };
        given.history.push(event);
    }
    given
}

/// A history, and a time.
#[derive(Clone, Debug)]
#[must_use = "a story needs a `when`"]
pub struct Given<A: Subject> {
    history: Vec<A::Event>,
    state: A,
    now: Timestamp,
}

impl<A: Subject> Given<A> {
    /// Sets the time of what follows. Without it, it is [`start`].
    pub fn at(self, now: Timestamp) -> Self {
        Self { now, ..self }
    }

    /// Gives a command.
    pub fn when(self, command: A::Command) -> When<A> {
        let answer = self.state.decide(command.clone(), self.now);
        When { given: self, command, answer }
    }
}

/// A command was given; what came of it is still to be said.
#[derive(Clone, Debug)]
#[must_use = "a story needs a `then`"]
pub struct When<A: Subject> {
    given: Given<A>,
    command: A::Command,
    answer: Result<Decision<A::Event>, Refusal>,
}

impl<A: Subject> When<A> {
    /// These events, no more, no less, in this order.
    ///
    /// # Panics
    /// It came otherwise.
    #[track_caller]
    pub fn then(self, events: impl IntoIterator<Item = A::Event>) -> Then<A> {
        let wanted: Vec<A::Event> = events.into_iter().collect();
        match &self.answer {
            Ok(Decision::Record(got)) if *got == wanted => self.go_on(),
            _ => panic!("{}", self.otherwise(&list("wanted", &wanted))),
        }
    }

    /// Refused with this code; nothing happened.
    ///
    /// # Panics
    /// It came otherwise.
    #[track_caller]
    pub fn then_refused(self, code: &str) -> Then<A> {
        match &self.answer {
            Err(refusal) if refusal.code == code => self.go_on(),
            _ => panic!("{}", self.otherwise(&format!("  wanted  a refusal: {code}\n"))),
        }
    }

    /// It had been done before; nothing happened.
    ///
    /// # Panics
    /// It came otherwise.
    #[track_caller]
    pub fn then_already_so(self) -> Then<A> {
        match &self.answer {
            Ok(Decision::AlreadySo) => self.go_on(),
            _ => panic!("{}", self.otherwise("  wanted  already so\n")),
        }
    }

    /// Something was recorded, and led to this state.
    ///
    /// # Panics
    /// It came otherwise.
    #[track_caller]
    pub fn then_state(self, state: A::State) -> Then<A> {
        match &self.answer {
            Ok(Decision::Record(_)) => self.go_on().then_state(state),
            _ => panic!("{}", self.otherwise(&format!("  wanted  to reach {}\n", A::state_name(state)))),
        }
    }

    #[track_caller]
    fn go_on(self) -> Then<A> {
        let Self { mut given, command, answer } = self;
        if let Ok(Decision::Record(events)) = answer {
            for event in events {
                given.state = match given.state.evolve(&event) {
                    Ok(state) => state,
                    Err(misfit) => panic!("{} was decided, and can not be: {misfit}", event.name()),
                };
                given.history.push(event);
            }
        }
        Then { given, command }
    }

    fn otherwise(&self, wanted: &str) -> String {
        let met = A::state_name(self.given.state.state_met(&self.command));
        let got = match &self.answer {
            Ok(Decision::Record(events)) => list("got", events),
            Ok(Decision::AlreadySo) => "  got     already so\n".to_owned(),
            Err(refusal) => format!("  got     a refusal: {} ({refusal})\n", refusal.code),
        };
        format!(
            "the story goes otherwise: {} in state {met}\n{}  when    {:?}\n  at      {}\n{wanted}{got}",
            A::CATEGORY.name(),
            list("given", &self.given.history),
            self.command,
            self.given.now,
        )
    }
}

/// What came of it was as it was said. The story may end here, or go on.
#[derive(Clone, Debug)]
pub struct Then<A: Subject> {
    given: Given<A>,
    command: A::Command,
}

impl<A: Subject> Then<A> {
    /// The state that the same command would meet now.
    ///
    /// # Panics
    /// It is another one.
    #[track_caller]
    pub fn then_state(self, state: A::State) -> Self {
        let met = self.given.state.state_met(&self.command);
        assert!(
            met == state,
            "the story goes otherwise: {} after {:?}\n{}  wanted  to be in {}\n  got     {}\n",
            A::CATEGORY.name(),
            self.command,
            list("given", &self.given.history),
            A::state_name(state),
            A::state_name(met),
        );
        self
    }

    /// Sets the time of what follows.
    pub fn at(self, now: Timestamp) -> Given<A> {
        self.given.at(now)
    }

    /// Gives another command, at the same time.
    pub fn when(self, command: A::Command) -> When<A> {
        self.given.when(command)
    }

    /// Where the story has come to, for what no state's name says.
    pub const fn state(&self) -> &A {
        &self.given.state
    }
}

fn list<E: std::fmt::Debug>(word: &str, events: &[E]) -> String {
    let mut text = if events.is_empty() { format!("  {word:<7} nothing\n") } else { String::new() };
    for (number, event) in (1..).zip(events) {
        let word = if number == 1 { word } else { "" };
        // Writing to a string can not fail.
        let _ = writeln!(text, "  {word:<7} {number}. {event:?}");
    }
    text
}
