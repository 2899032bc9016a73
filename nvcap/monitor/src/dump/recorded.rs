//! A look as records, for a recording: what was read of the processes, and nothing that was concluded from it; and the report that the
//! look had, made of its records.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::{
    ByMaps, Look, OfProcess, Taken, UndecodedChannel, decoded_with_qmd_copies, decoder, set_kernels,
};
use nvcap_decode::decode::defaults::Chip;
use nvcap_decode::decode::event::ChipBy;
use nvcap_decode::hang::{self, ProcessReport, Report, Values};
use nvcap_decode::record::{
    self, At, Channel, CpuVa, Device, Life, MemoryRange, QmdCopy, Record, SnapshotChannel, Stamp,
    Stamps, Submission,
};
use nvcap_decode::wire::GpuVa;
use nvcap_process::memory::{chip, maps::Area};
use nvcap_process::procfs::tasks;

impl Look {
    /// The GPUs; the names of kernels; of each process the memory images that `qmd_copies` gives for its id, its mappings, channels and
    /// submissions, the semaphores that were read, and what was seen beside these.
    pub fn records(&self, qmd_copies: fn(u32) -> Vec<QmdCopy>) -> impl Iterator<Item = Record> {
        let Taken {
            processes,
            kernels,
            semaphores,
            read_ns,
        } = &self.taken;
        let kernels = kernels.iter().cloned();
        chip::records()
            .chain(kernels.map(|k| Record::Kernel(Box::new(k))))
            .chain(processes.iter().flat_map(move |of| {
                let stamps = stamps(of.snapshot.pid, semaphores, *read_ns);
                of.qmd_copies(qmd_copies)
                    .into_iter()
                    .map(|i| Record::QmdCopy(Box::new(i)))
                    .chain(of.snapshot.records())
                    .chain(stamps.map(|s| Record::Stamps(Box::new(s))))
            }))
            .chain(processes.iter().filter_map(|of| self.beside(of)))
    }

    /// Record of a process's state beside its rings.
    fn beside(&self, of: &OfProcess) -> Option<Record> {
        let pid = of.snapshot.pid;
        let process = self.report.processes.iter().find(|p| p.pid == pid)?;
        let channel = |seen: &super::ChannelSnapshot| {
            let facts = { process.channels.iter() }.find(|f| f.channel == seen.channel.id)?;
            Some(SnapshotChannel {
                facts: facts.clone(),
                gp_get: seen.get,
                gp_put: seen.put,
                first: seen.first.clone(),
            })
        };
        Some(Record::Snapshot(Box::new(record::ProcessSnapshot {
            at: At {
                time_ns: self.report.time_ns,
                pid,
                tid: 0,
            },
            took_ns: self.report.took_ns,
            finding_ns: process.finding_ns,
            reading_ns: process.reading_ns,
            rank: process.rank,
            ranks: process.ranks,
            python: process.python.clone(),
            unused: process.unused as u64,
            notes: process.notes.clone(),
            memory: ordinary(&of.snapshot.areas),
            channels: of.snapshot.channels.iter().filter_map(channel).collect(),
            threads: process.threads.clone(),
            xids: process.xids.clone(),
        })))
    }
}

/// The readable memory that is no device file of the driver: ranges that follow one another are one.
fn ordinary(areas: &[Area]) -> Vec<MemoryRange> {
    let mut ranges: Vec<MemoryRange> = Vec::new();
    for area in areas.iter().filter(|a| a.read && a.device().is_none()) {
        let len = area.end - area.start;
        match ranges.last_mut() {
            Some(last) if last.start.0.checked_add(last.len) == Some(area.start) => last.len += len,
            _ => ranges.push(MemoryRange {
                start: CpuVa(area.start),
                len,
            }),
        }
    }
    ranges
}

/// The records of a look, gathered.
#[derive(Default)]
pub struct Recorded {
    records: Vec<Record>,
}

impl Recorded {
    /// Takes a record.
    pub fn put(&mut self, record: &Record) {
        self.records.push(record.clone());
    }

    /// The look's report; `None` where there was no look. The user may name the chip.
    pub fn report(&self, chip: Option<&'static Chip>, names: bool) -> Option<Report> {
        let looks = || {
            self.records.iter().filter_map(|r| match r {
                Record::Snapshot(look) => Some(&**look),
                _ => None,
            })
        };
        let first = looks().next()?;
        let mut report = Report {
            time_ns: first.at.time_ns,
            took_ns: first.took_ns,
            ..Report::default()
        };
        let mut decoder = decoder(chip);
        let (mut kernels, mut values) = (HashMap::new(), Values::default());
        for record in &self.records {
            match record {
                Record::Gpu(g) if chip.is_none() => {
                    if let Some(chip) = Chip::with_pci_device(g.pci_device) {
                        decoder.chip(Some(g.minor), chip, ChipBy::Pci);
                    }
                }
                Record::Kernel(k) if names && k.is_known() => {
                    kernels.insert((k.at.pid, k.program), Arc::new(k.as_ref().clone()));
                }
                Record::Stamps(stamps) => read(&mut values, stamps),
                _ => {}
            }
        }
        for look in looks() {
            let of = OfLook::new(&self.records, look.at.pid);
            let places = ByMaps::new(&of.areas);
            let seen: Vec<UndecodedChannel<'_>> = { look.channels.iter() }
                .filter_map(|c| of.seen(c))
                .collect();
            let qmd_copies = || of.qmd_copies.iter().copied().cloned().collect();
            let (states, _) =
                decoded_with_qmd_copies(&mut decoder, look.at.pid, &seen, &places, qmd_copies);
            report.rings.channels.extend(states);
            report.processes.push(process(look, of.name));
        }
        set_kernels(&mut report.rings.channels, &kernels);
        report.analysis = hang::analyse(&report.rings, &values);
        Some(report)
    }
}

/// The records of a process.
#[derive(Default)]
struct OfLook<'a> {
    name: &'a str,
    areas: Vec<Area>,
    channels: Vec<&'a Channel>,
    submissions: BTreeMap<u32, Vec<Submission>>,
    qmd_copies: Vec<&'a QmdCopy>,
}

impl<'a> OfLook<'a> {
    fn new(records: &'a [Record], pid: u32) -> Self {
        let mut of = Self::default();
        let area = |start: u64, len: u64| Area {
            start,
            end: start.saturating_add(len),
            read: true,
            served: false,
            write: false,
            execute: false,
            shared: true,
            path: String::new(),
            device: None,
        };
        for record in records.iter().filter(|r| r.at().pid == pid) {
            match record {
                Record::Process(p) => {
                    if let Life::Present { name } = &p.life {
                        of.name = name;
                    }
                }
                Record::Mapping(m) => of.areas.push(Area {
                    read: m.read,
                    write: m.write,
                    device: Some(m.device)
                        .filter(|d| !matches!(*d, Device::MEMORY | Device::RESERVED)),
                    ..area(m.start.0, m.len)
                }),
                Record::Snapshot(look) => {
                    let ordinary = look.memory.iter().map(|m| area(m.start.0, m.len));
                    of.areas.extend(ordinary);
                }
                Record::Channel(c) => of.channels.push(c),
                Record::Submission(s) => {
                    let all = of.submissions.entry(s.channel.0).or_default();
                    all.push(s.clone());
                }
                Record::QmdCopy(i) => of.qmd_copies.push(i),
                _ => {}
            }
        }
        of
    }

    fn seen(&self, c: &'a SnapshotChannel) -> Option<UndecodedChannel<'_>> {
        let id = c.facts.channel;
        let channel = self.channels.iter().find(|of| of.id == id)?;
        Some(UndecodedChannel {
            channel,
            get: c.gp_get,
            put: c.gp_put,
            entries: channel.entries?,
            first: &c.first,
            newest: self.submissions.get(&id.0).map_or(&[], Vec::as_slice),
        })
    }
}

/// Puts recorded semaphores, of two words each, into `values`.
fn read(values: &mut Values, stamps: &Stamps) {
    for [low, high] in stamps.stamps.as_chunks().0 {
        let value = u64::from(low.payload) | u64::from(high.payload) << 32;
        values.set(stamps.at.pid, low.address, value);
    }
}

fn process(look: &record::ProcessSnapshot, name: &str) -> ProcessReport {
    let thread = |t: &record::Thread| record::Thread {
        call: t.syscall.and_then(tasks::call_name),
        ..t.clone()
    };
    ProcessReport {
        pid: look.at.pid,
        name: name.to_owned(),
        rank: look.rank,
        ranks: look.ranks,
        python: look.python.clone(),
        faults: Vec::new(),
        xids: look.xids.clone(),
        threads: look.threads.iter().map(thread).collect(),
        channels: look.channels.iter().map(|c| c.facts.clone()).collect(),
        unused: usize::try_from(look.unused).unwrap_or(usize::MAX),
        notes: look.notes.clone(),
        has_ended: false,
        finding_ns: look.finding_ns,
        reading_ns: look.reading_ns,
    }
}

impl OfProcess {
    /// Returns the memory images of the process, also where this look needed none: a later decoder may.
    fn qmd_copies(&self, qmd_copies: fn(u32) -> Vec<QmdCopy>) -> Vec<QmdCopy> {
        let needed = self.qmd_copies.clone();
        needed.unwrap_or_else(|| qmd_copies(self.snapshot.pid))
    }
}

/// The semaphores of a process, each as the two words that were read.
fn stamps(pid: u32, semaphores: &Values, read_ns: u64) -> Option<Stamps> {
    let word = |address: u64, payload: u64| Stamp {
        address: GpuVa(address),
        payload: payload as u32,
        gpu_ns: None,
        before_ns: 0,
        seen_ns: read_ns,
    };
    let stamps: Vec<Stamp> = semaphores
        .of(pid)
        .flat_map(|(at, value)| [word(at.0, value), word(at.0 + 4, value >> 32)])
        .collect();
    (!stamps.is_empty()).then_some(Stamps {
        at: At {
            time_ns: read_ns,
            pid,
            tid: 0,
        },
        from_ns: read_ns,
        reads: 1,
        stamps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn semaphores_are_two_words_each() {
        let mut values = Values::default();
        values.set(7, GpuVa(0x1000), 0x1_0000_0002);
        values.set(7, GpuVa(0x2000), 3);
        values.set(8, GpuVa(0x1000), 4);
        let seen = stamps(7, &values, 55).unwrap();
        let words: Vec<_> = { seen.stamps.iter() }
            .map(|s| (s.address.0, s.payload, s.gpu_ns, s.seen_ns))
            .collect();
        let expected = [(0x1000, 2), (0x1004, 1), (0x2000, 3), (0x2004, 0)];
        assert_eq!(words, expected.map(|(at, word)| (at, word, None, 55)));
        assert_eq!((seen.at.pid, seen.at.time_ns, seen.reads), (7, 55, 1));
        assert_eq!(stamps(9, &values, 55), None);
        let mut again = Values::default();
        read(&mut again, &seen);
        assert_eq!(again.get(7, GpuVa(0x1000), true), Some(0x1_0000_0002));
        assert_eq!(again.get(7, GpuVa(0x2000), false), Some(3));
        assert_eq!(again.get(7, GpuVa(0x1004), false), None);
    }

    #[test]
    fn ranges_that_follow_one_another_are_one() {
        let area = |start, end, read, device| Area {
            start,
            end,
            read,
            served: false,
            write: true,
            execute: false,
            shared: false,
            path: String::new(),
            device,
        };
        let gpu = Some(nvcap_decode::record::Device::Gpu(0));
        let areas = [
            area(0x1000, 0x3000, true, None),
            area(0x3000, 0x4000, true, None),
            area(0x4000, 0x5000, true, gpu),
            area(0x5000, 0x6000, true, None),
            area(0x6000, 0x7000, false, None),
            area(0x7000, 0x8000, true, None),
        ];
        let found = ordinary(&areas);
        let found: Vec<_> = found.iter().map(|m| (m.start.0, m.len)).collect();
        let expected = [(0x1000, 0x3000), (0x5000, 0x1000), (0x7000, 0x1000)];
        assert_eq!(found, expected);
    }
}
