//! Statements of many callers, sent as one.
//!
//! A trip to the database costs about the same whether it carries what one caller wants or what thirty do. So while a few batches
//! are on their way, whoever comes waits, and those who wait go out together with the next one. Nobody waits for company: where
//! nothing is on its way, what a caller wants is sent at once and alone, so a quiet system is as fast as without batches.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use uuid::Uuid;

/// The most callers in one batch.
const MOST: usize = 64;

/// What only one of several callers can take: the version of a stream, the inbox row of a message.
pub(crate) type Prize = (&'static str, Uuid, i64);

/// What one caller wants.
pub(crate) trait Want: Send + 'static {
    /// What it comes to.
    type Answer: Send + 'static;

    /// Whether one statement can do both.
    fn goes_with(&self, other: &Self) -> bool;

    /// What it takes if it succeeds. Two who are after the same are never in one batch, nor on their way in two: one of them would
    /// fail, and with it all that were sent along.
    fn prizes(&self) -> Vec<Prize> {
        Vec::new()
    }

    /// Where `answer` says that the prizes were taken: the answer to all who are after one of them.
    fn too_late(answer: &Self::Answer) -> Option<Self::Answer> {
        let _ = answer;
        None
    }
}

/// Brings a batch to the database.
pub(crate) trait Carrier: Send + Sync + 'static {
    /// What it brings.
    type Want: Want;

    /// Does what all of them want, and answers each, in the order given.
    fn carry(&self, wants: Vec<Self::Want>) -> impl Future<Output = Vec<<Self::Want as Want>::Answer>> + Send;
}

type Answer<C> = <<C as Carrier>::Want as Want>::Answer;

struct Waiting<C: Carrier> {
    want: C::Want,
    prizes: Vec<Prize>,
    answer: oneshot::Sender<Answer<C>>,
}

struct Queue<C: Carrier> {
    waiting: VecDeque<Waiting<C>>,
    /// How many batches are on their way, or are about to be.
    running: usize,
    /// What they are after.
    claimed: HashSet<Prize>,
}

/// A queue of wants and the batches that empty it. Cheap to clone: clones share the queue.
pub(crate) struct Batches<C: Carrier> {
    shared: Arc<Shared<C>>,
}

struct Shared<C: Carrier> {
    carrier: C,
    at_once: usize,
    queue: Mutex<Queue<C>>,
    tasks: Mutex<JoinSet<()>>,
}

impl<C: Carrier> Clone for Batches<C> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<C: Carrier> Batches<C> {
    /// A queue of which at most `at_once` batches are on their way.
    pub(crate) fn new(carrier: C, at_once: usize) -> Self {
        let queue = Queue { waiting: VecDeque::new(), running: 0, claimed: HashSet::new() };
        Self { shared: Arc::new(Shared { carrier, at_once, queue: Mutex::new(queue), tasks: Mutex::default() }) }
    }

    /// What `want` came to. `None`: the runtime that carried it was shut down on the way, and nobody knows.
    pub(crate) async fn ask(&self, want: C::Want) -> Option<Answer<C>> {
        let (answer, answered) = oneshot::channel();
        let prizes = want.prizes();
        let start = self.shared.queue().push(Waiting { want, prizes, answer }, self.shared.at_once);
        if start {
            // In a task of its own: a caller who goes away takes nobody along.
            self.shared.start();
        }
        answered.await.ok()
    }
}

impl<C: Carrier> Shared<C> {
    fn queue(&self) -> MutexGuard<'_, Queue<C>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends batches out from one more place, until nobody is left who can go.
    fn start(self: &Arc<Self>) {
        let running = Running { shared: Arc::clone(self), prizes: Vec::new(), done: false };
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = tasks.try_join_next() {
            if ended.is_err_and(|broken| broken.is_panic()) {
                tracing::error!("a batch of statements broke off; its callers have no answer");
            }
        }
        tasks.spawn(run(running));
    }
}

impl<C: Carrier> Queue<C> {
    /// Takes a caller in. `true`: another batch may set out.
    fn push(&mut self, waiting: Waiting<C>, at_once: usize) -> bool {
        self.waiting.push_back(waiting);
        let start = self.running < at_once;
        self.running += usize::from(start);
        start
    }

    /// The next batch: the first who can go, and all who can go along.
    fn take(&mut self) -> Vec<Waiting<C>> {
        let mut batch: Vec<Waiting<C>> = Vec::new();
        let mut stay = VecDeque::new();
        while let Some(it) = self.waiting.pop_front() {
            let fits = batch.len() < MOST && batch.first().is_none_or(|first| first.want.goes_with(&it.want));
            if fits && !it.prizes.iter().any(|prize| self.claimed.contains(prize)) {
                self.claimed.extend(it.prizes.iter().copied());
                batch.push(it);
            } else {
                stay.push_back(it);
            }
        }
        self.waiting = stay;
        batch
    }

    /// A batch has come back; those who are after what it took are told, and need not be sent to find out.
    fn arrived(&mut self, prizes: &[Prize], taken: &HashSet<Prize>, too_late: impl Fn() -> Option<Answer<C>>) {
        for prize in prizes {
            self.claimed.remove(prize);
        }
        if taken.is_empty() {
            return;
        }
        let waiting = std::mem::take(&mut self.waiting);
        for it in waiting {
            let beaten = it.prizes.iter().any(|prize| taken.contains(prize));
            match beaten.then(&too_late).flatten() {
                // Whoever does not wait any more needs no answer.
                Some(answer) => drop(it.answer.send(answer)),
                None => self.waiting.push_back(it),
            }
        }
    }
}

/// One of the batches on their way. However it ends, its place and its prizes become free.
struct Running<C: Carrier> {
    shared: Arc<Shared<C>>,
    prizes: Vec<Prize>,
    done: bool,
}

impl<C: Carrier> Running<C> {
    /// The next batch. `None`: nobody can go, and this place is given up.
    fn next(&mut self) -> Option<Vec<Waiting<C>>> {
        let mut queue = self.shared.queue();
        let batch = queue.take();
        if batch.is_empty() {
            queue.running -= 1;
            self.done = true;
            return None;
        }
        self.prizes = batch.iter().flat_map(|it| it.prizes.iter().copied()).collect();
        // Who is left may go at once, in a place that was given up when nobody could.
        let more = !queue.waiting.is_empty() && queue.running < self.shared.at_once;
        queue.running += usize::from(more);
        drop(queue);
        if more {
            self.shared.start();
        }
        Some(batch)
    }

    async fn carry(&mut self, batch: Vec<Waiting<C>>) {
        let mut wants = Vec::with_capacity(batch.len());
        let mut callers = Vec::with_capacity(batch.len());
        for it in batch {
            wants.push(it.want);
            callers.push((it.prizes, it.answer));
        }
        let answers = self.shared.carrier.carry(wants).await;
        let winners = callers.iter().zip(&answers).filter(|(_, answer)| C::Want::too_late(answer).is_some());
        let taken: HashSet<Prize> = winners.flat_map(|((prizes, _), _)| prizes.iter().copied()).collect();
        let prizes = std::mem::take(&mut self.prizes);
        self.shared.queue().arrived(&prizes, &taken, || answers.iter().find_map(C::Want::too_late));
        for ((_, caller), answer) in callers.into_iter().zip(answers) {
            drop(caller.send(answer));
        }
    }
}

impl<C: Carrier> Drop for Running<C> {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let mut queue = self.shared.queue();
        queue.running -= 1;
        for prize in &self.prizes {
            queue.claimed.remove(prize);
        }
    }
}

async fn run<C: Carrier>(mut running: Running<C>) {
    while let Some(batch) = running.next() {
        running.carry(batch).await;
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test ends what it starts, and sees how it ended")]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use tokio::sync::Semaphore;

    /// After which prize, and of which kind.
    struct After(i64, u8);

    impl Want for After {
        /// Whether it was carried, and in a batch of how many.
        type Answer = Result<usize, &'static str>;

        fn goes_with(&self, other: &Self) -> bool {
            self.1 == other.1
        }

        fn prizes(&self) -> Vec<Prize> {
            vec![("prize", Uuid::nil(), self.0)]
        }

        fn too_late(answer: &Self::Answer) -> Option<Self::Answer> {
            answer.is_ok().then_some(Err("too late"))
        }
    }

    /// Carries when it is let; prize 0 can not be had.
    struct Gate {
        open: Arc<Semaphore>,
        carried: Arc<AtomicUsize>,
    }

    impl Carrier for Gate {
        type Want = After;

        async fn carry(&self, wants: Vec<After>) -> Vec<Result<usize, &'static str>> {
            self.carried.fetch_add(1, Ordering::SeqCst);
            self.open.acquire().await.expect("a gate that is never closed").forget();
            assert!(wants.iter().all(|it| it.0 != 13), "a carrier that breaks");
            wants.iter().map(|it| if it.0 == 0 { Err("lost") } else { Ok(wants.len()) }).collect()
        }
    }

    struct Scene {
        batches: Batches<Gate>,
        open: Arc<Semaphore>,
        carried: Arc<AtomicUsize>,
    }

    impl Scene {
        fn new(at_once: usize) -> Self {
            let (open, carried) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
            let gate = Gate { open: Arc::clone(&open), carried: Arc::clone(&carried) };
            Self { batches: Batches::new(gate, at_once), open, carried }
        }

        /// Asks, and comes back when it is queued or on its way.
        async fn ask(&self, want: After) -> tokio::task::JoinHandle<Option<Result<usize, &'static str>>> {
            let batches = self.batches.clone();
            let asked = tokio::spawn(async move { batches.ask(want).await });
            // On one thread, whoever can go has gone then.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            asked
        }
    }

    #[tokio::test]
    async fn the_first_goes_at_once_and_those_who_come_meanwhile_go_together() {
        let scene = Scene::new(1);
        let first = scene.ask(After(1, 0)).await;
        let others = [scene.ask(After(2, 0)).await, scene.ask(After(3, 0)).await, scene.ask(After(4, 0)).await];
        assert_eq!(scene.carried.load(Ordering::SeqCst), 1);
        scene.open.add_permits(2);
        assert_eq!(first.await.expect("no panic"), Some(Ok(1)));
        for other in others {
            assert_eq!(other.await.expect("no panic"), Some(Ok(3)));
        }
    }

    #[tokio::test]
    async fn two_who_are_after_the_same_are_not_on_their_way_at_once_and_the_second_hears_that_it_is_too_late() {
        let scene = Scene::new(8);
        let (first, second) = (scene.ask(After(1, 0)).await, scene.ask(After(1, 0)).await);
        let other = scene.ask(After(2, 0)).await;
        assert_eq!(scene.carried.load(Ordering::SeqCst), 2, "the second waits, the other does not");
        scene.open.add_permits(2);
        assert_eq!(first.await.expect("no panic"), Some(Ok(1)));
        assert_eq!(second.await.expect("no panic"), Some(Err("too late")), "and is not carried to find out");
        assert_eq!(other.await.expect("no panic"), Some(Ok(1)));
        assert_eq!(scene.carried.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn where_the_first_does_not_get_it_the_second_tries() {
        let scene = Scene::new(8);
        let (first, second) = (scene.ask(After(0, 0)).await, scene.ask(After(0, 0)).await);
        scene.open.add_permits(2);
        assert_eq!(first.await.expect("no panic"), Some(Err("lost")));
        assert_eq!(second.await.expect("no panic"), Some(Err("lost")));
        assert_eq!(scene.carried.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn what_one_statement_can_not_do_goes_in_two_side_by_side() {
        let scene = Scene::new(2);
        let first = [scene.ask(After(1, 0)).await, scene.ask(After(2, 0)).await];
        let waiting = [scene.ask(After(3, 0)).await, scene.ask(After(4, 1)).await, scene.ask(After(5, 0)).await];
        scene.open.add_permits(2);
        for it in first {
            assert_eq!(it.await.expect("no panic"), Some(Ok(1)));
        }
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert_eq!(scene.carried.load(Ordering::SeqCst), 4, "both kinds are on their way");
        scene.open.add_permits(2);
        let sizes: Vec<_> = futures(waiting).await;
        assert_eq!(sizes, [Some(Ok(2)), Some(Ok(1)), Some(Ok(2))]);
    }

    async fn futures<T, const N: usize>(handles: [tokio::task::JoinHandle<T>; N]) -> Vec<T> {
        let mut all = Vec::with_capacity(N);
        for handle in handles {
            all.push(handle.await.expect("no panic"));
        }
        all
    }

    #[tokio::test]
    async fn a_batch_that_breaks_off_answers_nobody_and_blocks_nobody() {
        let scene = Scene::new(1);
        let broken = scene.ask(After(13, 0)).await;
        scene.open.add_permits(2);
        assert_eq!(broken.await.expect("no panic"), None);
        let after = tokio::time::timeout(Duration::from_secs(5), scene.ask(After(13, 0)).await);
        assert_eq!(after.await.expect("in time").expect("no panic"), None, "its prize is free, too");
    }

    #[tokio::test]
    async fn a_caller_who_goes_away_takes_nobody_along() {
        let scene = Scene::new(1);
        let first = scene.ask(After(1, 0)).await;
        let second = scene.ask(After(2, 0)).await;
        first.abort();
        scene.open.add_permits(2);
        assert_eq!(second.await.expect("no panic"), Some(Ok(1)));
    }
}
