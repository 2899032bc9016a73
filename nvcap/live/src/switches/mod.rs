//! The driver's own record of context switches, live. nvcap is a client of the driver with an event buffer for each GPU, which the driver
//! fills. No other process is affected, nor the GPU.
//!
//! The driver takes the records from the GPU some 30 times a second, and when it is asked to ([`Source::poll`]). When a buffer is full,
//! the driver keeps the oldest records and counts those that it drops; it numbers all of them. However nvcap ends, the driver frees all
//! of this when the client's file is closed.

mod buffer;
mod refusal;

use std::rc::Rc;

use buffer::Buffer;
use nvcap_decode::driver::Version;
use nvcap_decode::switches::{Scope, Told};
use nvcap_process::rm::{Card, Client, Error, Os};

pub use refusal::Refusal;

/// The records of all GPUs.
pub struct Source {
    /// Buffers, which are dropped before the client: a mapping must not outlive its memory.
    gpus: Vec<Buffer>,
    client: Client,
}

impl Source {
    /// Makes the driver record from now on, on the GPUs with these minor numbers; on all GPUs where none are given. Also returns the GPUs
    /// that refuse.
    ///
    /// # Errors
    /// When the driver takes no client, or there is no such GPU.
    pub fn open(
        os: Rc<dyn Os>,
        version: Option<Version>,
        only: &[u32],
    ) -> Result<(Self, Vec<Refusal>), Error> {
        let client = Client::new(os, version)?;
        let mut cards = client.cards()?;
        cards.sort_by_key(|card| card.minor);
        let there = |cards: &[Card]| cards.iter().map(|card| card.minor).collect();
        let is_there = |minor: &u32| cards.iter().any(|card| card.minor == *minor);
        if let Some(minor) = only.iter().copied().find(|minor| !is_there(minor)) {
            let there = there(&cards);
            return Err(Error::NoGpu { minor, there });
        }
        let (mut gpus, mut refusals) = (Vec::new(), Vec::new());
        let chosen = |card: &&Card| only.is_empty() || only.contains(&card.minor);
        for card in cards.iter().filter(chosen) {
            match Buffer::open(&client, *card) {
                Ok(buffer) => gpus.push(buffer),
                Err(refused) => refusals.push(refused),
            }
        }
        Ok((Self { gpus, client }, refusals))
    }

    /// Returns the GPUs that are recorded, by minor number, with the users that are covered.
    pub fn gpus(&self) -> impl Iterator<Item = (u32, Scope)> {
        self.gpus.iter().map(|gpu| (gpu.minor(), gpu.scope()))
    }

    /// Returns a GPU's own time, ns.
    ///
    /// # Errors
    /// When the driver does not tell it, or `gpu` is not recorded.
    pub fn time(&self, gpu: u32) -> Result<u64, Error> {
        let Some(of) = self.gpus.iter().find(|of| of.minor() == gpu) else {
            let there = self.gpus.iter().map(Buffer::minor).collect();
            return Err(Error::NoGpu { minor: gpu, there });
        };
        of.time(&self.client)
    }

    /// Makes the driver take the available records from the GPUs, and gives them to `each` with the GPU's minor number.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn poll(&mut self, mut each: impl FnMut(u32, Told)) -> Result<(), Error> {
        // The driver flushes all GPUs at once.
        if let Some(gpu) = self.gpus.first() {
            gpu.flush(&self.client)?;
        }
        for gpu in &mut self.gpus {
            let minor = gpu.minor();
            gpu.read(&self.client, |told| each(minor, told))?;
        }
        Ok(())
    }

    /// Returns the number of records that the driver of a GPU has dropped since the last one that was read.
    #[must_use]
    pub fn dropped(&self, gpu: u32) -> u64 {
        let of = self.gpus.iter().find(|of| of.minor() == gpu);
        of.map_or(0, Buffer::dropped)
    }
}
