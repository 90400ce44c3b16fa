//! Fetching a finished job's output. The address is asked for afresh each time: it expires, and it is never stored.

use super::Outside;
use crate::ports::TransferError;
use domain::outcome::{Fetched, JobState, Polled};
use domain::task::Order;

/// How often an expired address is asked for again within one try.
const FRESH_ADDRESSES: u32 = 2;

impl Outside {
    pub(super) async fn fetch(&self, job: &str, key: &str, order: &Order) -> Fetched {
        let limits = self.limits.transfer(self.limits.max_video_bytes);
        for _ in 0..FRESH_ADDRESSES {
            let url = match self.output_url(job, order).await {
                Ok(url) => url,
                Err(fetched) => return fetched,
            };
            match self.objects.fetch(&url, key, limits).await {
                Ok(object) => return Fetched::Stored(object),
                Err(TransferError::Expired) => {}
                Err(TransferError::Transient(cause)) => return Fetched::NotNow { cause },
                Err(TransferError::Permanent(cause)) => return Fetched::Never { code: "output_refused", cause },
            }
        }
        Fetched::NotNow { cause: "the address expired each time".to_owned() }
    }

    async fn output_url(&self, job: &str, order: &Order) -> Result<String, Fetched> {
        match self.poll(job, order).await {
            Polled::State(JobState::Succeeded { output_url, .. }) => Ok(output_url),
            Polled::State(JobState::NotFound) => {
                Err(Fetched::Never { code: "output_gone", cause: "the provider no longer knows the job".to_owned() })
            }
            Polled::State(_) => Err(Fetched::NotNow { cause: "the provider says the job is not done".to_owned() }),
            Polled::Unavailable { cause, .. } => Err(Fetched::NotNow { cause }),
        }
    }
}
