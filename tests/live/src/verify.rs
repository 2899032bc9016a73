//! Compares a trace with the plan: nvcap's output must be the software GPU's plan, entry by entry.

use nvcap_decode::wire::{GpuVa, entry};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use compare::read::{Item, Key, Reader, Submission};
use softgpu::layout::{CHANNELS, Channel, GPUS, PUSHBUFFER, pushbuffers};
use softgpu::plan::{Entry, Plan, checksum, total};

/// Part of the plan that must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// The whole plan.
    Whole,
    /// From the beginning to any point: the traced program was ended.
    Prefix,
    /// All but this many submissions of each channel at its beginning: attached while it waited there.
    From(u64),
    /// From any point to the end: attached while it ran.
    Suffix,
    /// A contiguous part: attached while it ran, ended before it did.
    Part,
    /// Any parts of it, in its order: the ledger must report the rest.
    Holes,
}

/// Submissions that one or several processes must have made.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The processes (with memory they share); `None` for the whole trace.
    pub pid: Option<u32>,
    /// The plans of their program images, one after the other.
    pub plans: Vec<Plan>,
    /// Part of each plan that must be there.
    pub extent: Extent,
}

impl Expected {
    /// The whole of one plan, whoever submits it.
    pub fn whole(plan: Plan) -> Vec<Expected> {
        Expected::part(plan, Extent::Whole)
    }

    /// A part of one plan, whoever submits it.
    pub fn part(plan: Plan, extent: Extent) -> Vec<Expected> {
        vec![Expected {
            pid: None,
            plans: vec![plan],
            extent,
        }]
    }
}

/// Contents of the trace.
#[derive(Debug, Default)]
pub struct Report {
    /// Submission lines.
    pub submissions: u64,
    /// Entries, each compared.
    pub entries: u64,
    /// Bytes, each compared.
    pub bytes: u64,
    /// Submissions marked late.
    pub late: u64,
    /// Threads that submitted.
    pub threads: BTreeSet<u32>,
    /// Processes that submitted.
    pub processes: BTreeSet<u32>,
    /// Lines by `type`.
    pub types: BTreeMap<String, u64>,
    /// The ledger.
    pub ledger: Option<serde_json::Value>,
}

impl Report {
    /// An error unless the ledger is there, reports no loss, and has the counts of the trace.
    pub fn expect_complete(&self) -> Result<()> {
        let ledger = self.ledger.as_ref().context("the trace has no ledger")?;
        ensure!(
            ledger["complete"] == true,
            "the ledger does not say `complete: true`: {}: {ledger}",
            ledger["verdict"]
        );
        for (name, value) in [
            ("submissions", self.submissions),
            ("entries", self.entries),
            ("bytes", self.bytes),
        ] {
            if let Some(n) = ledger.get(name).and_then(serde_json::Value::as_u64) {
                ensure!(
                    n == value,
                    "the ledger counts {n} {name}, the trace has {value}"
                );
            }
        }
        Ok(())
    }
}

/// The expected entries of one channel, and how far the trace has come in them.
struct Stream {
    group: usize,
    channel: Channel,
    entries: Box<dyn Iterator<Item = Entry>>,
    extent: Extent,
    begun: bool,
    compared: u64,
    next_position: Option<u64>,
}

/// Each channel's submissions: their entries.
type Formed = Vec<Vec<Vec<Entry>>>;

/// Everything in a plan. The last few results are cached: both a run's checksum and its trace are compared with it, and
/// forming it is slow on an emulated machine.
fn formed(plan: &Plan) -> Arc<Formed> {
    const KEPT: usize = 4;
    static LAST: Mutex<Vec<(Plan, Arc<Formed>)>> = Mutex::new(Vec::new());
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, formed)) = last.iter().find(|(p, _)| p == plan) {
        return formed.clone();
    }
    let channels = 0..plan.channels.len();
    let of_channel = |i| plan.stream(i).map(|s| s.entries).collect();
    let formed: Arc<Formed> = Arc::new(channels.map(of_channel).collect());
    last.truncate(KEPT - 1);
    last.insert(0, (plan.clone(), formed.clone()));
    formed
}

/// The checksum that a run of `plan` prints at its end.
pub fn checksum_of(plan: &Plan) -> u64 {
    let of_channel = |submissions: &Vec<Vec<Entry>>| {
        let entries = submissions.iter().flatten();
        entries.fold(0, |sum, e| checksum(sum, e.raw, &e.bytes))
    };
    total(formed(plan).iter().map(of_channel))
}

fn stream(group: usize, expected: &Expected, channel: Channel) -> Stream {
    let skip = match expected.extent {
        Extent::From(n) => n as usize,
        _ => 0,
    };
    let plans = expected.plans.clone();
    // The iterator must own its data, so each image's entries are formed after the previous image's were read.
    let entries = plans
        .into_iter()
        .enumerate()
        .flat_map(move |(image, plan)| {
            let skip = if image == 0 { skip } else { 0 };
            let i = plan.channels.iter().position(|c| *c == channel);
            let formed = i.map(|i| formed(&plan)[i].clone());
            formed
                .into_iter()
                .flat_map(move |s| s.into_iter().skip(skip).flatten())
        });
    Stream {
        group,
        channel,
        entries: Box::new(entries),
        extent: expected.extent,
        begun: false,
        compared: 0,
        next_position: None,
    }
}

impl Stream {
    fn entry(&mut self, got: &compare::read::Entry) -> Result<()> {
        let late_start = matches!(self.extent, Extent::Suffix | Extent::Part);
        let mut nearly = String::new();
        loop {
            let Some(want) = self.entries.next() else {
                bail!(
                    "entry {:#018x} ({} bytes, {} not read) after the {} expected ones{nearly}",
                    got.raw,
                    got.data.len(),
                    got.missing,
                    self.compared
                );
            };
            let same = want.raw == got.raw && want.bytes == got.data;
            if same {
                ensure!(
                    got.missing == 0,
                    "entry {:#018x}: {} bytes were not read",
                    got.raw,
                    got.missing
                );
                self.begun = true;
                self.compared += 1;
                return Ok(());
            }
            // At the start an entry with a semaphore payload is unique: earlier entries are skipped.
            if late_start && !self.begun || self.extent == Extent::Holes {
                if want.raw == got.raw {
                    let same = want.bytes.iter().zip(&got.data).filter(|(a, b)| a == b);
                    nearly = format!(
                        "; one of them points there too, with {} of {} bytes the same",
                        same.count(),
                        want.bytes.len()
                    );
                }
                continue;
            }
            if want.raw == got.raw {
                let at = want
                    .bytes
                    .iter()
                    .zip(&got.data)
                    .position(|(a, b)| a != b)
                    .unwrap_or(0);
                bail!(
                    "entry {} ({:#018x}): bytes differ from offset {at:#x} on",
                    self.compared,
                    got.raw
                );
            }
            bail!(
                "entry {} is {:#018x}, expected {:#018x}",
                self.compared,
                got.raw,
                want.raw
            );
        }
    }

    fn submission(&mut self, s: &Submission) -> Result<()> {
        if let Some(position) = self.next_position {
            // 0 again after an exec: the entries themselves are compared, so this hides nothing.
            let behind = self.extent == Extent::Holes && s.position > position;
            ensure!(
                s.position == position || s.position == 0 || behind,
                "a submission at ring position {}, the one before ended at {position}",
                s.position
            );
        }
        ensure!(
            s.entries > 0,
            "a submission without entries at ring position {}",
            s.position
        );
        let put = (u64::from(s.prev_put) + s.entries) % u64::from(softgpu::layout::ENTRIES);
        ensure!(
            u64::from(s.gp_put) == put,
            "a submission of {} entries from GP_PUT {} to {}",
            s.entries,
            s.prev_put,
            s.gp_put
        );
        self.next_position = Some(s.position + s.entries);
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        if matches!(
            self.extent,
            Extent::Whole | Extent::From(_) | Extent::Suffix
        ) {
            // After a late attach a channel may be empty: all of its entries may have come before.
            let left = if self.extent == Extent::Suffix && !self.begun {
                0
            } else {
                self.entries.by_ref().count()
            };
            ensure!(
                left == 0,
                "the last {left} entries are missing ({} were right)",
                self.compared
            );
        }
        Ok(())
    }
}

/// Tokens that a driver gave to a software GPU process, if they differ from its layout's: (pid, GPU, given) to the
/// layout's.
static GIVEN_TOKENS: Mutex<BTreeMap<(u32, u32, u32), u32>> = Mutex::new(BTreeMap::new());

/// Reads a line of the software GPU's output with such tokens: `tokens pid=N GPU:LAYOUT=GIVEN...`.
pub fn learn_tokens(line: &str) {
    let number = |text: &str| u32::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let Some((pid, tokens)) = line
        .strip_prefix("tokens pid=")
        .and_then(|l| l.split_once(' '))
    else {
        return;
    };
    let (Ok(pid), Ok(mut given)) = (pid.parse(), GIVEN_TOKENS.lock()) else {
        return;
    };
    for word in tokens.split_whitespace() {
        let parts = word
            .split_once(':')
            .and_then(|(gpu, rest)| Some((gpu.parse().ok()?, rest.split_once('=')?)));
        if let Some((gpu, (layout, got))) = parts
            && let (Some(layout), Some(got)) = (number(layout), number(got))
        {
            given.insert((pid, gpu, got), layout);
        }
    }
}

/// The layout's key of a channel that process `pid` submitted to.
fn by_layout(pid: u32, key: Key) -> Key {
    let known = match (key.gpu, key.token, GIVEN_TOKENS.lock()) {
        (Some(gpu), Some(token), Ok(given)) => given.get(&(pid, gpu, token)).copied(),
        _ => None,
    };
    Key {
        token: known.or(key.token),
        ..key
    }
}

/// The layout's key of a channel whose GPU is not known: that of the only GPU that gave process `pid` its token.
fn by_token(pid: u32, key: Key) -> Key {
    let Ok(given) = GIVEN_TOKENS.lock() else {
        return key;
    };
    let its = |(of, _, got): &(u32, u32, u32)| *of == pid && Some(*got) == key.token;
    let mut all = given.iter().filter(|(of, _)| its(of));
    match (all.next(), all.next()) {
        (Some(((_, gpu, _), layout)), None) => Key {
            gpu: Some(*gpu),
            token: Some(*layout),
        },
        _ => key,
    }
}

/// The channel whose pushbuffer memory this ring entry points to.
fn channel_of_entry(raw: u64) -> Option<Channel> {
    let (GpuVa(address), _) = entry::segment_of(raw, 0)?;
    (0..GPUS).find_map(|gpu| {
        let index = address.checked_sub(pushbuffers(gpu))? / PUSHBUFFER;
        (index < CHANNELS as u64).then_some(Channel {
            gpu,
            index: index as usize,
        })
    })
}

/// The names of a trace's channels by their numbers. A channel that was found in memory has no token until its doorbell's
/// store is decoded, which a short trace may not reach; from then on it must have one. A channel without a token is
/// identified by the memory that its entries point to.
fn names_of_channels(path: &Path) -> Result<BTreeMap<u64, Key>> {
    let file = File::open(path).with_context(|| format!("no trace at {}", path.display()))?;
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, file), true).heads();
    let (mut told, mut guessed) = (BTreeMap::new(), BTreeMap::new());
    while let Some(item) = reader
        .next_item()
        .with_context(|| path.display().to_string())?
    {
        let (pid, key, raw) = match &item {
            Item::Submission(s) => (s.pid, s.key, None),
            Item::Entry(e) => (e.pid, e.key, Some(e.raw)),
            Item::Ledger(_) | Item::Other(_) => continue,
        };
        let Some(channel) = reader.channel() else {
            continue;
        };
        if key.token.is_some() {
            told.insert(channel, by_layout(pid, key));
            continue;
        }
        ensure!(
            !told.contains_key(&channel),
            "a token that was known is not any more: {}",
            reader.raw_line()
        );
        if let Some(c) = raw.and_then(channel_of_entry) {
            let token = Some(c.token());
            guessed.entry(channel).or_insert(Key { token, ..key });
        }
    }
    guessed.extend(told);
    Ok(guessed)
}

/// Compares the trace in `path` with the expected content, to the last byte.
pub fn verify(path: &Path, expected: &[Expected]) -> Result<Report> {
    let names = names_of_channels(path)?;
    let named = |pid: u32, key: Key, channel: Option<u64>| {
        let known = channel.and_then(|c| names.get(&c));
        // The GPU of a process that opened the driver unseen is not known, and of what it submitted a part is expected.
        let part = |e: &Expected| e.pid == Some(pid) && e.extent == Extent::Part;
        match known.filter(|_| key.token.is_none()) {
            Some(known) => *known,
            None if key.gpu.is_none() && expected.iter().any(part) => by_token(pid, key),
            None => by_layout(pid, key),
        }
    };
    let file = File::open(path).with_context(|| format!("no trace at {}", path.display()))?;
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, file), true);
    let mut streams: BTreeMap<(usize, Key), Stream> = BTreeMap::new();
    for (group, e) in expected.iter().enumerate() {
        for channel in e.plans.iter().flat_map(|p| &p.channels) {
            let key = Key {
                gpu: Some(channel.gpu as u32),
                token: Some(channel.token()),
            };
            streams
                .entry((group, key))
                .or_insert_with(|| stream(group, e, *channel));
        }
    }
    let group_of = |pid: u32| {
        expected
            .iter()
            .position(|e| e.pid == Some(pid))
            .or_else(|| expected.iter().position(|e| e.pid.is_none()))
            .with_context(|| {
                format!("a submission of process {pid}, which is not one of those traced")
            })
    };
    let mut report = Report::default();
    let mut entries_due = 0;
    while let Some(item) = reader
        .next_item()
        .with_context(|| path.display().to_string())?
    {
        match item {
            Item::Submission(s) => {
                ensure!(
                    entries_due == 0,
                    "a submission begins {entries_due} entries before the end of the last"
                );
                entries_due = s.entries;
                let stream = streams
                    .get_mut(&(group_of(s.pid)?, named(s.pid, s.key, reader.channel())))
                    .with_context(|| {
                        format!(
                            "a submission to an unexpected channel: {}",
                            reader.raw_line()
                        )
                    })?;
                stream.submission(&s).with_context(|| describe(stream))?;
                report.submissions += 1;
                report.late += u64::from(s.late);
                report.threads.insert(s.tid);
                report.processes.insert(s.pid);
            }
            Item::Entry(e) => {
                ensure!(
                    entries_due > 0,
                    "an entry that belongs to no submission: {:#018x}",
                    e.raw
                );
                entries_due -= 1;
                let stream = streams
                    .get_mut(&(group_of(e.pid)?, named(e.pid, e.key, reader.channel())))
                    .context("an entry of an unexpected channel")?;
                stream.entry(&e).with_context(|| describe(stream))?;
                report.entries += 1;
                report.bytes += e.data.len() as u64;
            }
            Item::Ledger(l) => report.ledger = Some(l),
            Item::Other(kind) => *report.types.entry(kind).or_default() += 1,
        }
    }
    for stream in streams.values_mut() {
        stream.end().with_context(|| describe(stream))?;
    }
    Ok(report)
}

fn describe(stream: &Stream) -> String {
    format!(
        "group {}, GPU {}, channel {:#x}",
        stream.group,
        stream.channel.gpu,
        stream.channel.token()
    )
}
