//! Folding the log from some position on, fast: while one batch is folded, the next one is read on a connection of its own.

use super::{Phase, Progress};
use crate::error::ProjectError;
use crate::fold;
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection, PgPool};

/// Events in one batch. Two batches are in memory at a time, with the rows that one of them needs: some 20 MB.
const BATCH: i64 = 5_000;

/// Two sessions of their own: their settings must not stay with a pooled connection, nor the pool's limits on time with them.
pub(super) struct Replay {
    reader: PgConnection,
    /// Where it is folded: into the first tables of the names that the search path of this session finds.
    pub(super) writer: PgConnection,
    pub(super) done: Progress,
}

impl Replay {
    pub(super) async fn begin(pool: &PgPool) -> Result<Self, sqlx::Error> {
        let options = PgConnectOptions::clone(&pool.connect_options()).application_name("aivideo project").options([
            // Time limits made for business transactions do not fit these long ones.
            ("statement_timeout", "0"),
            ("lock_timeout", "0"),
            ("idle_in_transaction_session_timeout", "0"),
            // What a crash of the database takes is folded again.
            ("synchronous_commit", "off"),
            // Rows are looked up by their keys: a plan made while a table was small must not stay as a scan.
            ("enable_seqscan", "off"),
            ("temp_buffers", "128MB"),
            ("jit", "off"),
        ]);
        Ok(Self {
            reader: PgConnection::connect_with(&options).await?,
            writer: PgConnection::connect_with(&options).await?,
            done: Progress { phase: Phase::Folding, position: 0, up_to: 0, events: 0 },
        })
    }

    /// Folds on, up to a position that may be read.
    pub(super) async fn fold_up_to(
        &mut self,
        up_to: i64,
        progress: &mut (impl FnMut(Progress) + Send),
    ) -> Result<(), ProjectError> {
        self.done.up_to = up_to;
        let mut events = fold::read(&mut self.reader, self.done.position, up_to, BATCH).await?;
        while let Some(last) = events.last().map(|event| event.position) {
            let count = events.len() as u64;
            let (next, folded) =
                tokio::join!(fold::read(&mut self.reader, last, up_to, BATCH), fold::fold(&mut self.writer, &events));
            folded?;
            events = next?;
            self.done.position = last;
            self.done.events += count;
            progress(self.done);
        }
        // What is between the last event and that position was rolled back.
        self.done.position = up_to;
        Ok(())
    }

    pub(super) async fn end(self) -> Result<(), sqlx::Error> {
        self.reader.close().await?;
        self.writer.close().await
    }
}
