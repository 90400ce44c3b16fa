//! The processes: workers, relays, the scan, the API and the projector. They are killed between any two steps, or paused past
//! their leases and go on with what they had in hand.

use crate::clock::{MINUTE, Micros, SECOND};
use crate::dice::{Fault, PROCESSES, Site};
use crate::world::{Step, World};
use std::ops::Range;

/// Processes by number.
pub(crate) const WORKERS: Range<u8> = 0..3;
pub(crate) const RELAYS: Range<u8> = 3..5;
pub(crate) const SCAN: u8 = 5;
pub(crate) const APIS: Range<u8> = 6..8;
pub(crate) const PROJECTOR: u8 = 8;
pub(crate) const COUNT: u8 = 9;

const NAMES: [&str; COUNT as usize] =
    ["worker-1", "worker-2", "worker-3", "relay-1", "relay-2", "scan", "api-1", "api-2", "projector"];

/// One process.
pub(crate) struct Process {
    pub(crate) name: &'static str,
    /// Grows with every start: what an earlier life had planned does not happen any more.
    pub(crate) epoch: u32,
    pub(crate) alive: bool,
    pub(crate) paused_until: Micros,
}

/// What befalls a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Befalls {
    Kill,
    Restart,
    Pause,
}

pub(crate) fn all() -> Vec<Process> {
    NAMES.iter().map(|name| Process { name, epoch: 0, alive: true, paused_until: 0 }).collect()
}

impl World {
    pub(crate) fn epoch(&self, process: u8) -> u32 {
        self.processes[usize::from(process)].epoch
    }

    /// Plans the next kill and the next pause of every process.
    pub(crate) fn plan_fates(&mut self) {
        for process in 0..COUNT {
            self.plan_fate(process, Befalls::Kill);
            self.plan_fate(process, Befalls::Pause);
        }
    }

    fn plan_fate(&mut self, process: u8, what: Befalls) {
        let subject = PROCESSES + u32::from(process);
        let after = self.dice.between(subject, Site::Lives, MINUTE, 40 * MINUTE);
        self.queue.plan(self.now + after, Step::Befalls { process, what });
    }

    pub(crate) fn befall(&mut self, process: u8, what: Befalls) {
        let subject = PROCESSES + u32::from(process);
        match what {
            Befalls::Kill => {
                if self.dice.strikes(subject, Fault::Kill) {
                    self.kill(process);
                }
                if !self.is_calm {
                    self.plan_fate(process, Befalls::Kill);
                }
            }
            Befalls::Pause => {
                if self.dice.strikes(subject, Fault::Pause) {
                    self.nap(process);
                }
                if !self.is_calm {
                    self.plan_fate(process, Befalls::Pause);
                }
            }
            Befalls::Restart => self.restart(process),
        }
    }

    /// Often past every lease: the create call's, the relay's, the server's patience with a transaction.
    pub(crate) fn nap(&mut self, process: u8) {
        let pause = self.dice.between(PROCESSES + u32::from(process), Site::Sleep, SECOND, 150 * SECOND);
        let it = &mut self.processes[usize::from(process)];
        it.paused_until = it.paused_until.max(self.now + pause);
        self.trace.tell(it.name, format_args!("is paused for {} s", pause / SECOND));
    }

    fn kill(&mut self, process: u8) {
        let it = &mut self.processes[usize::from(process)];
        it.alive = false;
        it.epoch += 1;
        it.paused_until = 0;
        self.trace.tell(it.name, format_args!("is killed"));
        self.drop_handlings(process);
        self.drop_requests(process);
        self.drop_projection(process);
        self.looks[usize::from(process)] = None;
        let after = self.dice.between(PROCESSES + u32::from(process), Site::Sleep, SECOND, 20 * SECOND);
        self.queue.plan(self.now + after, Step::Befalls { process, what: Befalls::Restart });
    }

    /// What a worker works on kills it.
    pub(crate) fn kill_again(&mut self, process: u8, epoch: u32) {
        if self.processes[usize::from(process)].alive && self.epoch(process) == epoch {
            self.kill(process);
        }
    }

    fn restart(&mut self, process: u8) {
        let it = &mut self.processes[usize::from(process)];
        if it.alive {
            return;
        }
        it.alive = true;
        self.trace.tell(it.name, format_args!("is started again"));
        self.start(process);
    }

    /// What a process does when it starts.
    pub(crate) fn start(&mut self, process: u8) {
        if RELAYS.contains(&process) {
            self.plan_look(process, SECOND / 10);
        } else if process == SCAN {
            let epoch = self.epoch(process);
            self.queue.plan(self.now + SECOND, Step::Scan { epoch });
        } else if process == PROJECTOR {
            self.plan_projection(SECOND / 10);
        }
    }
}
