//! Compares a trace with the logs of the traced programs (softgpu's `--log`): which submissions of the time in which it traced it has, byte
//! for byte, and whether its ledger counts the others.
//!
//! Unlike `verify`, it knows when each submission was made and by whom, so programs and traces may begin and end at any moment.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use compare::read::{Item, Reader};
use serde_json::Value;
use softgpu::layout::Channel;
use softgpu::log::{Logged, read};
use softgpu::plan::{Entry, Plan};

/// Number of missing submissions that an error names at most.
const ABSENT: usize = 8;

/// A program image that ran: what it was to submit, and what it logged. Its submissions are of one entry each.
#[derive(Debug)]
pub struct Image {
    pid: u32,
    plan: Plan,
    logged: Logged,
    entries: Vec<Vec<Entry>>,
}

impl Image {
    /// Reads its log from `folder`; none where the image never came to be.
    pub fn read(folder: &Path, pid: u32, plan: &Plan) -> Result<Option<Image>> {
        ensure!(plan.shape.burst == 1, "submissions of several entries");
        let Some(logged) = read(folder, pid, plan)? else {
            return Ok(None);
        };
        let of = |i| plan.stream(i).flat_map(|s| s.entries).collect();
        Ok(Some(Image {
            pid,
            plan: plan.clone(),
            logged,
            entries: (0..plan.channels.len()).map(of).collect(),
        }))
    }

    /// Its children, and a time before each was forked.
    pub fn children(&self) -> &[(u32, u64)] {
        &self.logged.children
    }

    /// Submissions that were rung for.
    pub fn submissions(&self) -> u64 {
        let all = self.logged.rung.iter().flatten();
        all.filter(|rung| rung.after != 0).count() as u64
    }

    fn is_of(&self, pid: u32) -> bool {
        self.pid == pid || self.logged.children.iter().any(|(child, _)| *child == pid)
    }
}

/// Process and time of a trace. Times of CLOCK_MONOTONIC.
#[derive(Clone, Copy, Debug)]
pub struct Watched {
    /// The process; children that it forks meanwhile are traced too.
    pub pid: u32,
    /// Begin of the trace; 0: the program's start.
    pub from: u64,
    /// End of the trace.
    pub until: u64,
    /// The tracer was killed: there is no ledger, and the trace may end anywhere.
    pub killed: bool,
}

/// Counts of the submissions that a trace should have: those it has, and those it lacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Submissions in the trace, each compared byte for byte.
    pub exact: u64,
    /// Submissions of its time that are in it.
    pub captured: u64,
    /// Number of those that it does not have, and that the ledger counts.
    pub counted: u64,
    /// Number of those that it does not have, where the ledger says that an unknown number is missing.
    pub said: u64,
    /// Number of those that it does not have at the end of a trace whose tracer was killed.
    pub unwritten: u64,
    /// Submissions that are marked late.
    pub late: u64,
    /// The ledger says that all is there.
    pub complete: bool,
    /// The ledger says that all is there unless a ring has gone round between two looks, which were far apart.
    pub lapped: bool,
}

impl std::ops::AddAssign for Account {
    fn add_assign(&mut self, other: Account) {
        self.exact += other.exact;
        self.captured += other.captured;
        self.counted += other.counted;
        self.said += other.said;
        self.unwritten += other.unwritten;
        self.late += other.late;
        self.complete &= other.complete;
        self.lapped |= other.lapped;
    }
}

/// Progress of a trace in the channels of the images.
struct Progress<'a> {
    images: Vec<&'a Image>,
    /// By image and channel of its plan: the number of the next submission, and which are there.
    next: HashMap<(usize, usize), usize>,
    there: BTreeSet<(usize, usize, usize)>,
    /// Number of submissions that are there in part.
    holed: u64,
    /// Submissions of the trace's time that are not there: the first ones, in words.
    absent: Vec<String>,
}

impl Progress<'_> {
    /// Finds an entry of process `pid`: it must be one of its images', after those before.
    fn entry(
        &mut self,
        pid: u32,
        channel: Channel,
        time: u64,
        got: &compare::read::Entry,
    ) -> Result<()> {
        let mut found: Option<(u64, usize, usize, usize)> = None;
        for (image, of) in self.images.iter().enumerate() {
            let Some(i) = of.plan.channels.iter().position(|c| *c == channel) else {
                continue;
            };
            if !of.is_of(pid) {
                continue;
            }
            let next = self.next.get(&(image, i)).copied().unwrap_or(0);
            let is_it =
                |want: &Entry| want.raw == got.raw && (want.bytes == got.data || got.missing > 0);
            let place = of.entries[i].iter().skip(next).position(is_it);
            let Some(number) = place.map(|place| next + place) else {
                continue;
            };
            let rung = of.logged.rung[i][number];
            let before = number.checked_sub(1).map(|n| of.logged.rung[i][n]);
            ensure!(
                rung.before != 0 || before.is_none_or(|b| b.before != 0),
                "submission {number} of process {pid}, {channel:?}, is in the trace and was never made"
            );
            let far = rung.before.abs_diff(time);
            if found.is_none_or(|(nearest, ..)| far < nearest) {
                found = Some((far, image, i, number));
            }
        }
        let Some((_, image, i, number)) = found else {
            bail!(
                "process {pid} has no such submission on {channel:?}, or not in this order: entry {:#018x}, {} bytes, at {time}",
                got.raw,
                got.data.len()
            );
        };
        self.next.insert((image, i), number + 1);
        match got.missing {
            0 => drop(self.there.insert((image, i, number))),
            _ => self.holed += 1,
        }
        Ok(())
    }
}

/// The processes that are traced, and from when on: the first one, and those that were forked after its trace had begun.
fn followed(images: &[Image], watched: Watched) -> BTreeMap<u32, u64> {
    let mut all = BTreeMap::from([(watched.pid, watched.from)]);
    loop {
        let before = all.len();
        for image in images.iter().filter(|i| watched.pid == i.pid) {
            let later = image
                .children()
                .iter()
                .filter(|(_, forked)| *forked > watched.from);
            all.extend(later.map(|(child, _)| (*child, watched.from)));
        }
        if all.len() == before {
            return all;
        }
    }
}

/// Channel of a token.
fn channel_of(gpu: Option<u32>, token: Option<u32>) -> Result<Channel> {
    let gpu = gpu.context("an entry without its GPU")? as usize;
    let token = token.context("an entry without its token")?;
    let mut all = (0..softgpu::layout::CHANNELS).map(|index| Channel { gpu, index });
    all.find(|c| c.token() == token)
        .with_context(|| format!("a token that is none: {token:#x}"))
}

/// Compares the trace in `path`. An error where something in it is wrong, or something is missing that nothing tells of.
pub fn account(path: &Path, images: &[Image], watched: Watched) -> Result<Account> {
    let file = match File::open(path) {
        Err(e) if watched.killed && e.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Account::default());
        }
        file => file.with_context(|| format!("no trace at {}", path.display()))?,
    };
    let mut reader = Reader::new(BufReader::with_capacity(1 << 20, file), true);
    let mut progress = Progress {
        images: images.iter().collect(),
        next: HashMap::new(),
        there: BTreeSet::new(),
        holed: 0,
        absent: Vec::new(),
    };
    let (mut account, mut ledger, mut losses, mut time) = (Account::default(), None, 0, 0);
    let mut positions: HashMap<u64, u64> = HashMap::new();
    while let Some(item) = reader
        .next_item()
        .with_context(|| path.display().to_string())?
    {
        match item {
            Item::Submission(s) => {
                let line: Value = serde_json::from_str(&reader.raw_line())?;
                time = line["time_ns"].as_u64().unwrap_or_default();
                account.late += u64::from(s.late);
                let channel = reader
                    .channel()
                    .context("a submission without its channel")?;
                let next = positions
                    .insert(channel, s.position + s.entries)
                    .unwrap_or_default();
                // 0 again after an exec.
                ensure!(
                    s.position >= next || s.position == 0,
                    "ring position {} after {next}",
                    s.position
                );
            }
            Item::Entry(e) => {
                let channel = channel_of(e.key.gpu, e.key.token)?;
                progress.entry(e.pid, channel, time, &e)?;
                account.exact += u64::from(e.missing == 0);
            }
            Item::Ledger(of) => ledger = Some(of),
            Item::Other(kind) => losses += u64::from(kind == "loss"),
        }
    }
    settle(&mut account, &mut progress, images, watched, losses)?;
    if watched.killed {
        return Ok(account);
    }
    let ledger = ledger.with_context(|| format!("{}: no ledger", path.display()))?;
    judge(&mut account, &progress, &ledger)?;
    Ok(account)
}

/// Counts what is there and what is not, of the submissions of its time.
fn settle(
    account: &mut Account,
    progress: &mut Progress<'_>,
    images: &[Image],
    watched: Watched,
    losses: u64,
) -> Result<()> {
    let followed = followed(images, watched);
    for (image, of) in images.iter().enumerate() {
        for (i, rung) in of.logged.rung.iter().enumerate() {
            let there = &progress.there;
            let is_there = |number: usize| there.contains(&(image, i, number));
            let last = (0..rung.len()).rev().find(|number| is_there(*number));
            for (number, rung) in rung.iter().enumerate() {
                let from = followed.get(&rung.pid);
                let meant = from.is_some_and(|from| rung.before > *from);
                if !meant || rung.after == 0 || rung.after > watched.until {
                    continue;
                }
                if is_there(number) {
                    account.captured += 1;
                } else if watched.killed {
                    ensure!(
                        losses > 0 || last.is_none_or(|last| last < number),
                        "submission {number} of process {}, {:?}, is not in the trace, later ones are, and no loss is told",
                        rung.pid,
                        of.plan.channels[i]
                    );
                    account.unwritten += 1;
                } else {
                    account.said += 1;
                    if progress.absent.len() < ABSENT {
                        progress.absent.push(format!(
                            "number {number} of {} by {} on {:?}, {} to {}{}",
                            of.logged.rung[i].len(),
                            rung.tid,
                            of.plan.channels[i],
                            rung.before,
                            rung.after,
                            if last.is_some_and(|l| number < l) {
                                ", later ones are there"
                            } else {
                                ""
                            }
                        ));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Checks that the ledger has what is missing.
fn judge(account: &mut Account, progress: &Progress<'_>, ledger: &Value) -> Result<()> {
    account.complete = ledger["complete"] == true;
    let verdict = &ledger["verdict"];
    let missing = account.said;
    ensure!(
        !account.complete || missing == 0 && progress.holed == 0,
        "{missing} submissions of {} are missing and the ledger says: {verdict}; {}",
        missing + account.captured,
        progress.absent.join("; ")
    );
    ensure!(ledger["contradictions"] == 0, "contradictions: {verdict}");
    let entries = ledger["entries"].as_u64().unwrap_or_default();
    // A trace that was ended while its output took nothing says how many objects were not written; each may have been of several entries.
    let unwritten = ledger["unshown"].as_u64().unwrap_or_default();
    let written = account.exact + progress.holed;
    ensure!(
        written <= entries && (written == entries || unwritten > 0),
        "the ledger counts {entries} entries, the trace has {} and {unwritten} objects were not written",
        account.exact
    );
    let some = |name: &str| {
        let of = &ledger[name];
        of.as_array().is_some_and(|of| !of.is_empty())
            || of.as_object().is_some_and(|of| !of.is_empty())
    };
    let doorbells = ledger["unknown_doorbells"].as_array().into_iter().flatten();
    let doorbells: u64 = doorbells.filter_map(|u| u["count"].as_u64()).sum();
    let counts = ledger["gaps"].as_u64().unwrap_or_default() + doorbells + progress.holed;
    let unknown = some("untraced") || some("dropped_records") || unwritten > 0;
    ensure!(
        missing <= counts || unknown,
        "{missing} submissions are missing, the ledger counts {counts}: {verdict}; {}",
        progress.absent.join("; ")
    );
    let laps = |reason: &Value| {
        let why = reason["why"].as_str();
        why.is_some_and(|why| why.contains("may have gone round"))
    };
    let reasons = ledger["untraced"].as_array().into_iter().flatten();
    account.lapped = counts == 0 && some("untraced") && reasons.clone().all(laps);
    account.counted = missing.min(counts);
    account.said = missing - account.counted;
    Ok(())
}
