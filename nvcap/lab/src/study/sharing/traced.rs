//! Scenes as a recording shows them: the channel of each kernel and of each row of copies, and the known facts of all
//! channels.

use std::collections::BTreeMap;
use std::io;

use nvcap_decode::decode::event::{Body, Event, Operation};
use nvcap_decode::driver::{ChannelView, Model};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{ChannelId, Record};
use nvcap_show::output::{Detail, Sink};

/// The upper half of the first argument of the program's kernels. The lower half is the kernel's number.
const NUMBERED: u64 = 0x6e76_6361;

/// A channel.
#[derive(Clone, Debug, Default)]
pub struct TracedChannel {
    pub pid: u32,
    pub gpu: Option<u32>,
    pub token: Option<u32>,
    pub chid: Option<u32>,
    pub runlist: Option<u32>,
    /// Channel group: client and handle.
    pub group: Option<(u32, u32)>,
    /// Engines that the channel can feed.
    pub engines: Vec<String>,
}

/// All scenes of a recording.
#[derive(Debug, Default)]
pub struct TracedScenes {
    /// Channel of each kernel, by the kernel's number.
    pub kernels: BTreeMap<u32, ChannelId>,
    /// Number of copies in each channel, by the copies' size.
    pub copies: BTreeMap<u64, BTreeMap<ChannelId, u64>>,
    pub channels: BTreeMap<ChannelId, TracedChannel>,
}

impl TracedScenes {
    fn look(&mut self, view: &ChannelView) {
        let found = TracedChannel {
            pid: view.pid,
            gpu: view.gpu,
            token: view.token,
            chid: view.chid(),
            runlist: view.runlist(),
            group: view.object.map(|o| o.client).zip(view.tsg),
            engines: view.engines(),
        };
        self.channels.insert(view.id, found);
    }

    fn look_at_all(&mut self, model: &Model, pid: Option<u32>) {
        let of_process = |view: &ChannelView| pid.is_none_or(|pid| pid == view.pid);
        for view in model.channels().filter(of_process) {
            self.look(&view);
        }
    }
}

/// Returns the number of a kernel of the program, from its arguments.
fn number(args: &[u8]) -> Option<u32> {
    let first = u64::from_le_bytes(*args.first_chunk()?);
    (first >> 32 == NUMBERED).then_some(first as u32)
}

impl Sink for TracedScenes {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn shows_memory(&self) -> bool {
        false
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        let channel = event.context.channel;
        match &event.body {
            Body::Operation(Operation::Launch(l)) => {
                // Those with number 0 only read the clock.
                let number = l.args.as_deref().and_then(number);
                if let Some(number) = number.filter(|number| *number != 0) {
                    self.kernels.insert(number, channel);
                }
            }
            Body::Operation(Operation::Copy(c)) if c.src.is_some() && c.bytes > 0 => {
                let of_size = self.copies.entry(c.bytes).or_default();
                *of_size.entry(channel).or_default() += 1;
            }
            _ => {}
        }
        Ok(())
    }

    fn before(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        // The process's channels are freed by this record.
        if let Record::Process(p) = record
            && p.life.ends_work()
        {
            self.look_at_all(model, Some(p.at.pid));
        }
        Ok(())
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        if let Record::Submission(s) = record
            && self
                .channels
                .get(&s.channel)
                .is_none_or(|c| c.token.is_none())
            && let Some(view) = model.channel(s.channel)
        {
            self.look(&view);
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn finish(&mut self, _ledger: &Ledger, model: &Model) -> io::Result<()> {
        self.look_at_all(model, None);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_kernels() {
        let first = (NUMBERED << 32 | 17).to_le_bytes();
        assert_eq!(number(&first), Some(17));
        assert_eq!(number(&[&first[..], &[1, 2]].concat()), Some(17));
        assert_eq!(number(&first[..7]), None);
        assert_eq!(number(&17u64.to_le_bytes()), None);
    }
}
