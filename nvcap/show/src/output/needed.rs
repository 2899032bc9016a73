//! Records that a filter holds back until an event that it lets through needs them.
//!
//! A reader of filtered output needs to know whose the shown events are: of their processes and threads the names and origins, their
//! channels, their GPUs. Records of all others say nothing about what is shown. It knows no sink and no filter.

use std::collections::BTreeMap;

use super::ended::Ended;
use nvcap_decode::decode::event::Context;
use nvcap_decode::record::{At, Channel, ChannelId, Gpu, Life, Process, Record};
use nvcap_decode::wire::hash::NumberMap;

/// Number of ended processes whose records are held: a child that has no name yet has that of the process that made it.
const ENDED_KEPT: usize = 1 << 14;

/// Records that no shown event has needed yet.
#[derive(Debug, Default)]
pub(super) struct Needed {
    /// Number of records that came.
    came: u64,
    processes: NumberMap<u32, Described>,
    threads: NumberMap<u32, Described>,
    channels: NumberMap<ChannelId, RecordsByArrival>,
    gpus: NumberMap<u32, RecordsByArrival>,
    ended: Ended<u32, ENDED_KEPT>,
    ended_threads: Ended<u32>,
    /// The submission whose records were taken last, and how many had come by then.
    of: Option<(u64, u64, u64)>,
}

/// Records by the order in which they came.
type RecordsByArrival = BTreeMap<u64, Record>;

/// Latest records of one process or thread.
#[derive(Debug, Default)]
struct Described {
    /// The process that made it, and the record of that.
    made: Option<(u64, u32, Record)>,
    name: Option<(u64, Record)>,
    identity: Option<(u64, Record)>,
}

impl Needed {
    /// Holds a record that events may need. Returns false for any other: no event needs the ends of threads and processes.
    pub(super) fn hold(&mut self, record: &Record) -> bool {
        self.came += 1;
        let n = self.came;
        match record {
            Record::Process(p) => self.life(n, p, record),
            Record::Channel(c) => {
                let held = self.channels.entry(c.id).or_default();
                // A source may say again what it has said.
                if !held.values().any(|h| says_the_same(h, c)) {
                    held.insert(n, record.clone());
                }
            }
            Record::Gpu(Gpu { minor, .. }) => {
                let held = self.gpus.entry(*minor).or_default();
                held.clear();
                held.insert(n, record.clone());
            }
            _ => return false,
        }
        true
    }

    fn life(&mut self, n: u64, p: &Process, record: &Record) {
        let At { pid, tid, .. } = p.at;
        match &p.life {
            Life::Present { .. } if tid != 0 && tid != pid => {
                self.ended_threads.begins(tid);
                self.threads.entry(tid).or_default().name = Some((n, record.clone()));
            }
            Life::Present { .. } | Life::Exec { .. } => {
                self.ended.begins(pid);
                self.processes.entry(pid).or_default().name = Some((n, record.clone()));
            }
            Life::Identity(_) => {
                self.processes.entry(pid).or_default().identity = Some((n, record.clone()));
            }
            // Numbers are used again: what was held of another process or thread is not this one's.
            Life::Fork { child } => {
                self.threads.remove(child);
                self.ended.begins(*child);
                self.processes.insert(*child, made(n, pid, record));
            }
            Life::Thread { child } => {
                self.ended_threads.begins(*child);
                self.threads.insert(*child, made(n, pid, record));
            }
            Life::Exit { process: false } => {
                if let Some(oldest) = self.ended_threads.ends(tid) {
                    self.threads.remove(&oldest);
                }
            }
            Life::Exit { process: true } => {
                if let Some(oldest) = self.ended.ends(pid) {
                    self.processes.remove(&oldest);
                }
            }
        }
    }

    /// Records that the events of a submission need and that were not taken before, in the order in which they came.
    pub(super) fn of_submission(&mut self, c: &Context) -> Vec<Record> {
        let of = (c.serial, c.at.time_ns, self.came);
        if self.of.replace(of) == Some(of) {
            return Vec::new();
        }
        self.take(c.at, Some(c.channel), c.gpu)
    }

    /// Takes records as [`Needed::of_submission`] does, for a record of what is not shown: a loss, or what was skipped.
    pub(super) fn of_record(&mut self, record: &Record) -> Vec<Record> {
        match record {
            Record::Loss(l) => self.take(l.at, l.channel, None),
            Record::Skipped(p) => self.take(p.at, Some(p.channel), None),
            Record::Fault(f) => self.take(f.at, f.channel, None),
            _ => Vec::new(),
        }
    }

    fn take(&mut self, at: At, channel: Option<ChannelId>, gpu: Option<u32>) -> Vec<Record> {
        let mut taken = RecordsByArrival::new();
        let mut next = Some(at.pid);
        if let Some(thread) = self.threads.remove(&at.tid) {
            thread.give(&mut taken);
        }
        // A process that was forked has its parent's name until it has its own. Each is removed, so that this ends.
        while let Some(described) = next.and_then(|pid| self.processes.remove(&pid)) {
            next = described.give(&mut taken);
        }
        if let Some(mut held) = channel.and_then(|id| self.channels.remove(&id)) {
            taken.append(&mut held);
        }
        if let Some(mut held) = gpu.and_then(|minor| self.gpus.remove(&minor)) {
            taken.append(&mut held);
        }
        taken.into_values().collect()
    }
}

impl Described {
    /// Gives its records, and returns the process that made it.
    fn give(self, taken: &mut RecordsByArrival) -> Option<u32> {
        taken.extend(self.name);
        taken.extend(self.identity);
        self.made.map(|(n, by, record)| {
            taken.insert(n, record);
            by
        })
    }
}

fn made(n: u64, by: u32, record: &Record) -> Described {
    Described {
        made: Some((n, by, record.clone())),
        ..Described::default()
    }
}

fn says_the_same(held: &Record, c: &Channel) -> bool {
    let Record::Channel(held) = held else {
        return false;
    };
    let at = held.at;
    **held == Channel { at, ..c.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::Origin;

    fn life(pid: u32, tid: u32, life: Life) -> Record {
        let at = At {
            time_ns: 1,
            pid,
            tid,
        };
        Record::Process(Process { at, life })
    }

    fn present(pid: u32, name: &str) -> Record {
        life(pid, pid, Life::Present { name: name.into() })
    }

    fn channel(id: u32, pid: u32, token: Option<u32>) -> Record {
        Record::Channel(Box::new(Channel {
            token,
            ..Channel::bare(At::of_process(1, pid), ChannelId(id), Origin::Found)
        }))
    }

    fn held(records: &[Record]) -> Needed {
        let mut needed = Needed::default();
        for record in records {
            assert!(needed.hold(record));
        }
        needed
    }

    #[test]
    fn an_event_gets_its_own_process_channel_and_gpu_once() {
        let gpu = |minor| {
            Record::Gpu(Gpu {
                at: At::default(),
                minor,
                pci_device: 0x2330,
            })
        };
        let mut needed = held(&[
            gpu(0),
            gpu(1),
            present(7, "mine"),
            present(8, "other"),
            channel(1, 7, None),
            channel(2, 8, None),
            channel(1, 7, None),
            channel(1, 7, Some(0xa)),
            life(7, 70, Life::Exit { process: false }),
        ]);
        let mut take = || needed.take(At::of_process(5, 7), Some(ChannelId(1)), Some(1));
        let expected = [
            gpu(1),
            present(7, "mine"),
            channel(1, 7, None),
            channel(1, 7, Some(0xa)),
        ];
        assert_eq!(take(), expected);
        assert_eq!(take(), []);
    }

    #[test]
    fn a_forked_process_brings_its_parent_and_a_later_program_replaces_a_name() {
        let fork = life(7, 7, Life::Fork { child: 9 });
        let exec = life(9, 9, Life::Exec { name: "new".into() });
        let mut needed = held(&[
            present(7, "parent"),
            // Another process had the number before.
            present(9, "before"),
            fork.clone(),
            life(9, 9, Life::Exec { name: "old".into() }),
            exec.clone(),
        ]);
        let taken = needed.take(At::of_process(5, 9), None, None);
        assert_eq!(taken, [present(7, "parent"), fork, exec]);
        assert_eq!(needed.take(At::of_process(5, 7), None, None), []);
    }

    /// A program that makes threads and processes without end costs no more than one that makes a few.
    #[test]
    fn those_that_have_ended_are_forgotten() {
        let mut needed = held(&[present(7, "p")]);
        for id in 1000..30_000 {
            needed.hold(&life(7, 7, Life::Thread { child: id }));
            needed.hold(&life(7, id, Life::Exit { process: false }));
            needed.hold(&life(7, 7, Life::Fork { child: id }));
            needed.hold(&life(id, id, Life::Exit { process: true }));
        }
        let counts = (needed.threads.len(), needed.processes.len());
        assert!(counts.0 < 300 && counts.1 < ENDED_KEPT + 10, "{counts:?}");
        let taken = needed.take(At::of_process(5, 29_999), None, None);
        assert_eq!(taken[0], present(7, "p"));
    }

    #[test]
    fn threads_are_described_where_they_submit() {
        let thread = |child| life(7, 7, Life::Thread { child });
        let mut needed = held(&[present(7, "p"), thread(71), thread(72)]);
        let mut take = |tid| {
            let at = At {
                time_ns: 5,
                pid: 7,
                tid,
            };
            needed.take(at, None, None)
        };
        assert_eq!(take(72), [present(7, "p"), thread(72)]);
        assert_eq!(take(71), [thread(71)]);
    }
}
