//! Sums by communicator and kind of call, ranks that have not come, and the verdict.

use std::collections::BTreeMap;

use super::arrivals::{self, Arrival, quantile};
use super::causes::{self, Causes, Timeline};
use super::job::Job;
use super::kinds::{self, words};
use super::matching::{self, Communicator, Doubt};
use super::shares::{self, Shares};
use crate::output::plural::{plural, plural_of};
use crate::output::units::Nanoseconds;

/// Share of the calls above which a rank that comes last to them comes last as a rule.
const AS_A_RULE: f64 = 0.5;

/// Returns the share of all waiting from which on one of `members` holds up the others: midway between half and all of it for two, and nearer to half
/// for more, since it is compared with the sum of the others.
fn holds_up(members: usize) -> f64 {
    0.5 + 0.5 / members.max(1) as f64
}

/// Number of calls to which a member came last, and the time for which it held up others.
#[derive(Clone, Debug, Default)]
pub(super) struct Last {
    /// Number of calls to which it came last alone, and of those to which it did with others, their order being within the error.
    pub(super) alone: u64,
    pub(super) among: u64,
    /// Mean time from the median of the others to its arrival, where it came last alone, ns. Where causes are told, it is that of the calls whose
    /// causes are known, so that the causes add up to it.
    pub(super) late: u64,
    /// Sum of the others' waits for it, where it came last alone, ns.
    pub(super) blame: u64,
    pub(super) causes: Option<Causes>,
}

/// Calls of one kind on one communicator.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    pub(super) kind: u32,
    /// Number of calls that any rank made; of those that all made; and of those whose begins are known in all.
    pub(super) calls: u64,
    pub(super) matched: u64,
    pub(super) timed: u64,
    /// Time from the first rank to the last, ns: median, 99th percentile, most; and the median of the error.
    pub(super) skew: [u64; 3],
    pub(super) error: u64,
    /// Number of calls whose skew is above their error, which have a last rank.
    pub(super) attributed: u64,
    /// Time for which members waited, ns: of all, the error of that, and of each.
    pub(super) waited: u64,
    pub(super) waited_error: u64,
    pub(super) waits: Vec<u64>,
    /// Calls to which each member came last.
    pub(super) last: Vec<Last>,
}

/// A call to which some ranks have not come by the end of the trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absent {
    /// Number of the call among the communicator's calls that were seen, from 1.
    pub(super) number: u64,
    pub(super) kind: u32,
    pub(super) present: Vec<usize>,
    pub(super) absent: Vec<usize>,
    /// Time for which the first one had waited on the GPU by then, ns; `None` where none had begun, or that is not known.
    pub(super) waits: Option<u64>,
    /// Number of calls behind it to which they have not come either.
    pub(super) more: u64,
}

/// A communicator with its sums.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) of: Communicator,
    pub(super) sums: Vec<Sum>,
    /// Arrivals by call, of calls whose begins are known in all ranks.
    pub(super) arrivals: Vec<Arrival>,
    pub(super) absent: Option<Absent>,
}

/// Result of the analysis of a job.
#[derive(Clone, Debug)]
pub struct Analysis {
    pub(super) job: Job,
    /// Communicators, those with most ranks and calls first.
    pub(super) seen: Vec<Seen>,
    /// Division of each rank's time.
    pub(super) shares: Vec<Shares>,
    /// Verdict, in one sentence.
    pub(super) verdict: String,
    /// True if each call is shown, too.
    pub(super) lists: bool,
    /// Places of processes in their programs, where they were looked at.
    pub(super) places: BTreeMap<u32, String>,
    /// Lines on collectives of before the trace that have not ended.
    pub(super) earlier: Vec<String>,
}

impl Analysis {
    /// Analyses a job.
    pub(super) fn of(job: Job) -> Self {
        let mut communicators = matching::communicators(&job);
        let size = |c: &Communicator| c.members.len() * c.calls.len();
        communicators.sort_by_key(|c| std::cmp::Reverse((c.members.len() > 1, size(c))));
        let timelines: Vec<Timeline> = job.ranks.iter().map(Timeline::of).collect();
        let mut waits: Vec<Vec<(u64, u64)>> = vec![Vec::new(); job.ranks.len()];
        let seen: Vec<Seen> = { communicators.into_iter() }
            .map(|of| seen(&job, of, &timelines, &mut waits))
            .collect();
        let ranks = job.ranks.iter().zip(&waits);
        let shares = ranks.map(|(rank, waits)| shares::of(rank, waits)).collect();
        let mut made = Self {
            job,
            seen,
            shares,
            verdict: String::new(),
            lists: false,
            places: BTreeMap::new(),
            earlier: Vec::new(),
        };
        made.verdict = made.sentence();
        made
    }

    /// Shows each call, too.
    #[must_use]
    pub fn listing_arrivals(self, lists: bool) -> Self {
        Self { lists, ..self }
    }

    /// Returns the sentence that sums up all.
    #[must_use]
    pub fn verdict(&self) -> &str {
        &self.verdict
    }

    /// The names of communicators' members, as sentences have them.
    pub(super) fn ranks_of(&self, seen: &Seen) -> String {
        let ranks: Vec<usize> = seen.of.members.iter().map(|m| m.rank).collect();
        self.job.several(&ranks)
    }

    /// The number of calls that were matched, and of those whose times are known.
    fn counts(&self) -> (u64, u64) {
        let sums = self.seen.iter().flat_map(|s| &s.sums);
        sums.fold((0, 0), |(m, t), s| (m + s.matched, t + s.timed))
    }

    fn sentence(&self) -> String {
        let calls: usize = self.job.ranks.iter().map(|r| r.calls.len()).sum();
        if calls == 0 {
            return format!(
                "no collective was seen: no kernel is called ncclDevKernel_* (--collective PATTERN names those of other libraries){}",
                self.unnamed()
            );
        }
        if let [_] = &self.job.ranks[..] {
            return format!(
                "{} alone called collectives: there is nobody to compare it with (nvcap ranks -a, or a recording of each rank){}",
                self.job.name(0),
                self.unnamed()
            );
        }
        let (matched, timed) = self.counts();
        if let Some(text) = self.hang() {
            return text;
        }
        if matched == 0 {
            return "no call of a collective could be matched between ranks: they have no communicator in common, or were not traced at the same time".to_owned();
        }
        if timed == 0 {
            return format!(
                "who comes last is not known, for the calls have no times of the GPU: {} matched by {} order (record with nvcap record --gpu-time)",
                plural_of(matched, "call is", "calls are"),
                if matched == 1 { "its" } else { "their" },
            );
        }
        let text = self.straggler().unwrap_or_else(|| self.nobody(timed));
        match 2 * timed < matched {
            true => format!("{text}; times are known of {timed} of {matched} calls alone"),
            false => text,
        }
    }

    /// Returns words, behind a sentence, on kernels without a name of processes without collectives.
    fn unnamed(&self) -> String {
        let whose = match (self.job.ranks.is_empty(), self.job.others) {
            (true, _) => "",
            (false, 1) => " of another process",
            (false, _) => " of other processes",
        };
        match self.job.others_unnamed {
            0 => String::new(),
            n => format!(
                "; {}{whose} {} no name, and may be collectives",
                plural(n, "kernel"),
                if n == 1 { "has" } else { "have" }
            ),
        }
    }

    /// Returns the verdict on a rank that has not come, for longer than any wait before.
    fn hang(&self) -> Option<String> {
        let (seen, absent, waits) = { self.seen.iter().enumerate() }
            .filter_map(|(n, s)| {
                let absent = s.absent.as_ref()?;
                let waits = absent.waits?;
                let most = s.sums.iter().map(|s| s.skew[2]).max().unwrap_or(0);
                (waits > most).then_some((n, absent, waits))
            })
            .max_by_key(|(_, _, waits)| *waits)?;
        Some(format!(
            "{} {} not come to {} {} of communicator {seen}, for which {} {} waited for {}{}",
            self.job.several(&absent.absent),
            if absent.absent.len() == 1 {
                "has"
            } else {
                "have"
            },
            words(self.job.names.text(absent.kind), false),
            absent.number,
            self.job.several(&absent.present),
            if absent.present.len() == 1 {
                "has"
            } else {
                "have"
            },
            Nanoseconds(waits),
            self.doubts_in_short(&self.seen[seen]),
        ))
    }

    /// Returns the verdict on the rank for which the others waited most of the time that they waited; where several kinds of calls have one, on that
    /// for which they waited longest.
    fn straggler(&self) -> Option<String> {
        let all = self
            .seen
            .iter()
            .flat_map(|seen| seen.sums.iter().map(move |sum| (seen, sum)));
        let (seen, sum, member, last) = all
            .flat_map(|(seen, sum)| {
                let last = sum.last.iter().enumerate();
                last.map(move |(member, last)| (seen, sum, member, last))
            })
            .filter(|(seen, sum, _, last)| {
                let blame: u64 = sum.last.iter().map(|l| l.blame).sum();
                last.blame as f64 > holds_up(seen.of.members.len()) * blame as f64
            })
            .max_by_key(|(_, _, _, last)| last.blame)?;
        let share = 100.0 * last.alone as f64 / sum.timed.max(1) as f64;
        let many = sum.timed != 1;
        let cause = last
            .causes
            .as_ref()
            .and_then(|c| self.reasons(c, last.late).into_iter().next());
        let cause = cause.map_or_else(String::new, |cause| format!(": {cause}"));
        let name = self.job.name(seen.of.members[member].rank);
        let calls = format!(
            "{share:.1} % of {} {}",
            sum.timed,
            words(self.job.names.text(sum.kind), many)
        );
        let doubts = self.doubts_in_short(seen);
        let late = Nanoseconds(last.late);
        if last.alone as f64 > AS_A_RULE * sum.timed as f64 {
            return Some(format!(
                "{name} comes last in {calls}, {late} late on average{cause}{doubts}"
            ));
        }
        // Seldom late, and then much.
        Some(format!(
            "{name} holds up the others for {} in sum: it comes last in {calls}, {late} late on average{cause}{doubts}",
            Nanoseconds(last.blame)
        ))
    }

    /// Returns the sentence where no rank holds up the others.
    fn nobody(&self, timed: u64) -> String {
        let span: u64 = self.shares.iter().map(|s| s.span).sum();
        let waiting: u64 = self.shares.iter().map(|s| s.waiting).sum();
        let share = 100.0 * waiting as f64 / span.max(1) as f64;
        let sums = || self.seen.iter().flat_map(|s| &s.sums);
        let attributed: u64 = sums().map(|s| s.attributed).sum();
        let how = match attributed as f64 / timed.max(1) as f64 {
            few if few < 0.1 => "ranks come together",
            _ => "they come last by turns",
        };
        let doubted = self
            .seen
            .iter()
            .find(|s| s.of.members.len() > 1 && !s.of.doubts.is_empty());
        format!(
            "no rank holds up the others: {how} (in {attributed} of {} the skew is above the error), and wait for each other in {share:.1} % of their time{}",
            plural(timed, "call"),
            doubted.map_or_else(String::new, |s| self.doubts_in_short(s)),
        )
    }

    /// Returns words, behind a sentence, on a communicator's first doubt.
    fn doubts_in_short(&self, seen: &Seen) -> String {
        match &seen.of.doubts[..] {
            [] => String::new(),
            [first, ..] => format!("; not certain: {}", self.doubt(first)),
        }
    }

    /// Describes a doubt.
    pub(super) fn doubt(&self, doubt: &Doubt) -> String {
        let name = |rank: &usize| self.job.name(*rank);
        match doubt {
            Doubt::Channel(rank) => format!(
                "the communicator of {} is not known, and its calls are told apart by their channel",
                name(rank)
            ),
            Doubt::Loss(rank) => format!(
                "entries of {} are missing, and calls behind them are matched by their times",
                name(rank)
            ),
            Doubt::Unnamed(rank) => {
                let unnamed = self.job.ranks.get(*rank).map_or(0, |r| r.unnamed);
                format!(
                    "{} of {} {} no name, and may be collectives",
                    plural(unnamed, "kernel"),
                    name(rank),
                    if unnamed == 1 { "has" } else { "have" }
                )
            }
            Doubt::Order(rank) => format!(
                "calls of {} are matched by their order alone, for their times are not known",
                name(rank)
            ),
            Doubt::Moved(rank) => format!(
                "times do not tell which call of {} belongs to which of the others",
                name(rank)
            ),
            Doubt::Rival(rank) => format!("another communicator of {} fits as well", name(rank)),
            Doubt::Several => "it may be several communicators in step: no rank came last by more than a call takes".to_owned(),
            Doubt::Apart(n) => format!(
                "{} that {} matched {} not overlap",
                plural_of(*n, "pair of calls", "pairs of calls"),
                if *n == 1 { "is" } else { "are" },
                if *n == 1 { "does" } else { "do" },
            ),
            Doubt::Kinds(n) => format!(
                "{} that {} matched {} of different kinds",
                plural_of(*n, "pair of calls", "pairs of calls"),
                if *n == 1 { "is" } else { "are" },
                if *n == 1 { "is" } else { "are" },
            ),
            Doubt::Between(n) => format!(
                "{} in between {} not seen in all ranks",
                plural(*n, "call"),
                if *n == 1 { "was" } else { "were" }
            ),
        }
    }

    /// Lists reasons why a rank came late, the longest first, if they are at least a tenth of its lateness.
    pub(super) fn reasons(&self, causes: &Causes, late: u64) -> Vec<String> {
        let calls = causes.calls.max(1) as f64;
        let mut all: Vec<(f64, String)> = Vec::new();
        for (name, more) in &causes.works {
            let (count, ns) = (more.count as f64 / calls, more.ns as f64 / calls);
            let name = self.job.names.text(*name);
            let time = Nanoseconds(ns.max(0.0) as u64);
            let others = (more.own_ns as f64 - more.ns as f64) / calls;
            all.push((
                ns,
                match count {
                    // Shown without a fraction where there is next to none.
                    count if count >= 0.5 && (count - count.round()).abs() < 0.05 => {
                        format!("{count:.0} more of {name} before each, {time}")
                    }
                    count if count >= 0.5 => format!("{count:.1} more of {name} before each, {time}"),
                    _ if others > 0.0 && more.own_ns as f64 / calls >= 1.05 * others => format!(
                        "{name} takes it {time} more before each, {:.2} times as long as the others",
                        more.own_ns as f64 / calls / others
                    ),
                    _ => format!("{time} more of {name} before each"),
                },
            ));
        }
        let idle = causes.idle as f64 / calls;
        let part = |of: i64| of as f64 / calls >= idle / 2.0;
        let time = Nanoseconds(idle.max(0.0) as u64);
        all.push((
            idle,
            match () {
                () if part(causes.nothing) => {
                    format!("nothing is submitted for {time} more before each: its host is late")
                }
                () if part(causes.unknown) => {
                    format!("its GPU is idle for {time} more before each, and when the next work was submitted is not known")
                }
                () => format!("its GPU is idle for {time} more before each, with work submitted that waits"),
            },
        ));
        all.retain(|(ns, _)| *ns > 0.0 && *ns >= 0.1 * late as f64);
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.into_iter().map(|(_, text)| text).collect()
    }
}

fn seen(
    job: &Job,
    mut of: Communicator,
    timelines: &[Timeline],
    waits: &mut [Vec<(u64, u64)>],
) -> Seen {
    let arrivals = arrivals::of(job, &of);
    if !arrivals::are_one(of.members.len(), &arrivals) {
        of.doubts.push(Doubt::Several);
        of.doubts.sort_unstable();
    }
    for arrival in &arrivals {
        for (member, ns) in arrival.waits.iter().enumerate() {
            let rank = of.members[member].rank;
            let call = of.calls[arrival.call].of[member];
            if let Some(begin) = call.and_then(|n| job.ranks[rank].calls[n].begin) {
                waits[rank].push((begin, begin + ns));
            }
        }
    }
    let mut causes = causes::of(job, &of, &arrivals, timelines);
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    let members = of.members.len();
    let of_kind = |sums: &mut BTreeMap<u32, Sum>, kind, calls: u64, whole: bool| {
        let sum = sums.entry(kind).or_insert_with(|| Sum {
            kind,
            calls: 0,
            matched: 0,
            timed: 0,
            skew: [0; 3],
            error: 0,
            attributed: 0,
            waited: 0,
            waited_error: 0,
            waits: vec![0; members],
            last: vec![Last::default(); members],
        });
        sum.calls += calls;
        sum.matched += u64::from(whole);
    };
    for call in &of.calls {
        of_kind(&mut sums, call.kind, 1, members > 1 && call.is_whole());
    }
    for (kind, calls) in &of.astray {
        of_kind(&mut sums, *kind, *calls, false);
    }
    for sum in sums.values_mut() {
        let own = || arrivals.iter().filter(|a| a.kind == sum.kind);
        let sorted = |value: &dyn Fn(&arrivals::Arrival) -> u64| {
            let mut all: Vec<u64> = own().map(value).collect();
            all.sort_unstable();
            all
        };
        let skews = sorted(&|a| a.skew);
        let skew = [0.5, 0.99, 1.0].map(|share| quantile(&skews, share));
        let error = quantile(&sorted(&|a| a.error), 0.5);
        let timed = skews.len() as u64;
        let mut lates = vec![0; members];
        let (mut attributed, mut waited_error) = (0, 0);
        let mut last = vec![Last::default(); members];
        let mut waits = vec![0; members];
        for arrival in own() {
            attributed += u64::from(!arrival.last.is_empty());
            waited_error += arrival.waits_error;
            for (sum, ns) in waits.iter_mut().zip(&arrival.waits) {
                *sum += ns;
            }
            match arrival.last[..] {
                [alone] => {
                    last[alone].alone += 1;
                    last[alone].blame += arrival.waits.iter().sum::<u64>();
                    lates[alone] += arrival.late;
                }
                _ => arrival.last.iter().for_each(|m| last[*m].among += 1),
            }
        }
        for (member, last) in last.iter_mut().enumerate() {
            last.causes = causes.remove(&(member, sum.kind));
            let all = (lates[member], last.alone);
            let (late, calls) = last.causes.as_ref().map_or(all, |c| (c.late, c.calls));
            last.late = late / calls.max(1);
        }
        (sum.timed, sum.skew, sum.error) = (timed, skew, error);
        (sum.attributed, sum.waited_error) = (attributed, waited_error);
        sum.waited = waits.iter().sum();
        (sum.waits, sum.last) = (waits, last);
    }
    let absent = absent(job, &of);
    let mut sums: Vec<Sum> = sums.into_values().collect();
    sums.sort_by_key(|s| std::cmp::Reverse((s.waited, s.calls)));
    Seen {
        of,
        sums,
        arrivals,
        absent,
    }
}

/// Shortest wait at the end of a trace for which a rank is said not to have come, ns. What a rank submits just before the end may not be in the
/// trace: its rings were looked at up to some 10 ms earlier (up to 26 ms were seen on two H200).
const LEAST_ABSENCE_NS: u64 = 100_000_000;

/// Returns the first call behind the last one to which all came, where others wait for ranks that were still traced.
fn absent(job: &Job, of: &Communicator) -> Option<Absent> {
    let last = of.calls.iter().rposition(|c| c.is_whole())?;
    let behind = || of.calls.iter().enumerate().skip(last + 1);
    behind().find_map(|(n, call)| {
        let call_of = |member: usize, n: usize| &job.ranks[of.members[member].rank].calls[n];
        let mut present = Vec::new();
        let (mut absent, mut begins, mut ends) = (Vec::new(), Vec::new(), 0);
        let mut submitted: Option<u64> = None;
        for (member, its) in call.of.iter().enumerate() {
            let rank = of.members[member].rank;
            match its {
                Some(n) => {
                    let its = call_of(member, *n);
                    present.push(rank);
                    begins.extend(its.begin);
                    ends += usize::from(its.end.is_some());
                    let at = its.begin.or(its.submitted)?;
                    submitted = Some(submitted.map_or(at, |s| s.min(at)));
                }
                None => absent.push(rank),
            }
        }
        // Whose trace ended before may have come.
        absent.retain(|rank| submitted.is_some_and(|at| job.ranks[*rank].until > at));
        let came = ends > 0 && kinds::waits_for_all(job.names.text(call.kind));
        if absent.is_empty() || present.is_empty() || came {
            return None;
        }
        let until = present.iter().map(|r| job.ranks[*r].until).max()?;
        if until.saturating_sub(submitted?) < LEAST_ABSENCE_NS {
            return None;
        }
        let more = behind().filter(|(m, _)| *m > n).count() as u64;
        Some(Absent {
            number: n as u64 + 1,
            kind: call.kind,
            present,
            absent,
            waits: begins
                .iter()
                .min()
                .map(|begin| until.saturating_sub(*begin)),
            more,
        })
    })
}
