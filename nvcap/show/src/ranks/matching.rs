//! Calls of one communicator in each rank, matched by their order and checked by their times.
//!
//! A communicator has another address in each rank, and nothing in a call says which addresses belong together. But its ranks call in one
//! order, and a call that needs something of all ranks ([`kinds::waits_for_all`]) ends in none before it has begun in all. So two ranks'
//! sequences belong together where, moved against each other by a fixed number of calls, kinds are equal and all pairs overlap. The number is
//! found from the overlaps: each rank may have been seen from another call on, and where calls of a rank are missing it is another one
//! behind them (an epoch, [`Call::epoch`](super::job::Call::epoch)). What cannot be told so is said ([`Doubt`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::job::{Call, Comm, Job};
use super::kinds;

/// The most calls of another rank that one call is compared with.
const MOST_COMPARED: usize = 64;
/// Divisor of the pairs of two sequences: that part of them may contradict that the sequences belong together, because times have errors.
const CONTRADICTED: usize = 100;

/// Calls of one rank on one communicator, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Local {
    pub(super) rank: usize,
    pub(super) comm: Comm,
    /// True for sends and receives, which are between some of the ranks, and so in an order of their own.
    between_some: bool,
    /// Indices of the rank's calls.
    pub(super) calls: Vec<usize>,
}

/// Reason for which the matching of a communicator is not certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Doubt {
    /// The communicator's address is not known in this rank: its calls are told apart by their channel.
    Channel(usize),
    /// Entries of this rank are missing: what is behind them is matched by times alone.
    Loss(usize),
    /// Kernels of this rank have no name.
    Unnamed(usize),
    /// The calls of this rank are matched by their order alone, from the first that was seen: their times are not known.
    Order(usize),
    /// Times do not tell by how many calls this rank is to be moved.
    Moved(usize),
    /// Another communicator of this rank fits as well.
    Rival(usize),
    /// Nothing tells one communicator from several with as many calls that are in step.
    Several,
    /// Number of calls that are matched and do not overlap.
    Apart(u64),
    /// Number of calls that are matched and of different kinds.
    Kinds(u64),
    /// Number of calls without a partner between those that are matched.
    Between(u64),
}

/// A call of all ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matched {
    /// Index of each member's call among the rank's; `None` where the rank has none.
    pub(super) of: Vec<Option<usize>>,
    pub(super) kind: u32,
}

impl Matched {
    pub(super) fn is_whole(&self) -> bool {
        self.of.iter().all(Option::is_some)
    }
}

/// A communicator with the calls of each of its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Communicator {
    pub(super) members: Vec<Local>,
    pub(super) calls: Vec<Matched>,
    /// Number of calls, by kind, that have no place in the order: they lie where calls of another rank are missing.
    pub(super) astray: BTreeMap<u32, u64>,
    pub(super) doubts: Vec<Doubt>,
}

/// A stretch of two sequences that belong together: the index in the first is that in the second plus `shift`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    first: Range<usize>,
    second: Range<usize>,
    shift: i64,
}

/// Two sequences beside each other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Alignment {
    pieces: Vec<Piece>,
    /// Number of pairs; of those whose kinds differ; and of those that should overlap and do not.
    pairs: usize,
    kinds: usize,
    apart: usize,
    /// True if times tell the shift, and no other fits.
    by_times: bool,
    alone: bool,
}

impl Alignment {
    fn is_accepted(&self) -> bool {
        self.pairs > 0 && (self.kinds + self.apart) * CONTRADICTED <= self.pairs
    }
}

/// Puts calls without a loss in between into the order of their begins, as far as these are known. Where a communicator has several channels (sharded
/// jobs gather on one stream and scatter on another), a look that finds new entries on both does not tell their order.
fn put_in_order(calls: &mut [usize], all: &[Call]) {
    for calls in calls.chunk_by_mut(|a, b| all[*a].epoch == all[*b].epoch) {
        let timed = |n: &usize| all[calls[*n]].begin.is_some();
        let places: Vec<usize> = (0..calls.len()).filter(timed).collect();
        let mut ordered: Vec<usize> = places.iter().map(|n| calls[*n]).collect();
        ordered.sort_by_key(|n| all[*n].begin);
        for (place, call) in places.into_iter().zip(ordered) {
            calls[place] = call;
        }
    }
}

/// The calls of each rank by communicator.
fn locals(job: &Job) -> Vec<Local> {
    let mut all: Vec<Local> = Vec::new();
    for (rank, of) in job.ranks.iter().enumerate() {
        let first = all.len();
        let mut places: HashMap<(Comm, bool), usize> = HashMap::new();
        for (n, call) in of.calls.iter().enumerate() {
            let between_some = kinds::is_between_some(job.names.text(call.kind));
            let place = *places.entry((call.comm, between_some)).or_insert_with(|| {
                all.push(Local {
                    rank,
                    comm: call.comm,
                    between_some,
                    calls: Vec::new(),
                });
                all.len() - 1
            });
            all[place].calls.push(n);
        }
        for local in all.iter_mut().skip(first) {
            put_in_order(&mut local.calls, &of.calls);
        }
    }
    all
}

/// Sequences with access to their calls.
struct Sequence<'a> {
    calls: Vec<&'a Call>,
    /// Ranges without a loss in between.
    epochs: Vec<(u32, Range<usize>)>,
    /// Places of calls whose begin and end are known, by their begin.
    timed: Vec<usize>,
}

impl<'a> Sequence<'a> {
    fn of(job: &'a Job, local: &Local) -> Self {
        let calls: Vec<&Call> = { local.calls.iter() }
            .map(|n| &job.ranks[local.rank].calls[*n])
            .collect();
        let mut epochs: Vec<(u32, Range<usize>)> = Vec::new();
        for (n, call) in calls.iter().enumerate() {
            match epochs.last_mut() {
                Some((epoch, range)) if *epoch == call.epoch => range.end = n + 1,
                _ => epochs.push((call.epoch, n..n + 1)),
            }
        }
        let mut timed: Vec<usize> = (0..calls.len())
            .filter(|n| calls[*n].span().is_some())
            .collect();
        timed.sort_by_key(|n| calls[*n].begin);
        Self {
            calls,
            epochs,
            timed,
        }
    }

    /// The epoch of a place, by its number among the epochs.
    fn epoch(&self, at: usize) -> usize {
        self.epochs.partition_point(|(_, range)| range.end <= at)
    }
}

/// Tells whether two calls overlap, as far as the errors of their times allow; `None` where a time is not known.
fn overlap(a: &Call, b: &Call) -> Option<bool> {
    let ((a_begin, a_end), (b_begin, b_end)) = (a.span()?, b.span()?);
    // A begin against an end of the other: the error of a duration may be much more than that of the clocks.
    let reach = |end: u64, of: &Call, other: &Call| {
        end.saturating_add(of.end_error).saturating_add(other.error)
    };
    Some(a_begin <= reach(b_end, b, a) && b_begin <= reach(a_end, a, b))
}

/// The length of the time that two calls have in common, where they have any.
fn common(a: &Call, b: &Call) -> Option<u64> {
    overlap(a, b)?.then_some(())?;
    let ((a_begin, a_end), (b_begin, b_end)) = (a.span()?, b.span()?);
    Some(a_end.min(b_end).saturating_sub(a_begin.max(b_begin)))
}

/// Counts votes for shifts, by epochs: each call of the second sequence votes for the one of the first that it overlaps most.
fn votes(
    first: &Sequence<'_>,
    second: &Sequence<'_>,
) -> BTreeMap<(usize, usize), HashMap<i64, usize>> {
    let mut votes: BTreeMap<(usize, usize), HashMap<i64, usize>> = BTreeMap::new();
    let mut from = 0;
    for &b in &second.timed {
        let of = second.calls[b];
        let Some((begin, end)) = of.span() else {
            continue;
        };
        let before = |a: &Call| a.end_error.saturating_add(of.error);
        let behind = |a: &Call| a.error.saturating_add(of.end_error);
        while first.timed.get(from).is_some_and(|a| {
            let a = first.calls[*a];
            a.end.unwrap_or(0).saturating_add(before(a)) < begin
        }) {
            from += 1;
        }
        let near = first.timed[from..].iter().take(MOST_COMPARED);
        let near = near.take_while(|a| {
            let a = first.calls[**a];
            a.begin.unwrap_or(0) <= end.saturating_add(behind(a))
        });
        let best = near
            .filter(|a| first.calls[**a].kind == of.kind)
            .filter_map(|a| Some((common(first.calls[*a], of)?, *a)))
            // Of several the earliest.
            .max_by_key(|(ns, a)| (*ns, std::cmp::Reverse(*a)));
        if let Some((_, a)) = best {
            let key = (first.epoch(a), second.epoch(b));
            *votes
                .entry(key)
                .or_default()
                .entry(a as i64 - b as i64)
                .or_default() += 1;
        }
    }
    votes
}

/// The pairs of two ranges that are moved against each other.
fn pairs(
    first: &Range<usize>,
    second: &Range<usize>,
    shift: i64,
) -> impl Iterator<Item = (usize, usize)> {
    let begin = (second.start as i64).max(first.start as i64 - shift);
    let end = (second.end as i64).min(first.end as i64 - shift);
    (begin..end).map(move |b| ((b + shift) as usize, b as usize))
}

/// Counts pairs, those of different kinds, and those that should overlap and do not.
fn contradictions(
    job: &Job,
    (first, second): (&Sequence<'_>, &Sequence<'_>),
    pairs: impl Iterator<Item = (usize, usize)>,
) -> (usize, usize, usize) {
    let (mut all, mut other, mut apart) = (0, 0, 0);
    for (a, b) in pairs {
        let (a, b) = (first.calls[a], second.calls[b]);
        all += 1;
        if a.kind != b.kind {
            other += 1;
        } else if kinds::waits_for_all(job.names.text(a.kind)) {
            apart += usize::from(overlap(a, b) == Some(false));
        }
    }
    (all, other, apart)
}

fn align(job: &Job, first: &Sequence<'_>, second: &Sequence<'_>) -> Option<Alignment> {
    let both = (first, second);
    let mut made = Alignment {
        by_times: true,
        alone: true,
        ..Alignment::default()
    };
    let votes = votes(first, second);
    if votes.is_empty() {
        // Times that are known of most calls contradict; where there are few, they may be those of other calls in each rank.
        let is_timed = |of: &Sequence<'_>| 2 * of.timed.len() >= of.calls.len();
        if is_timed(first) && is_timed(second) {
            return None;
        }
        let (Some((_, a)), Some((_, b))) = (first.epochs.first(), second.epochs.first()) else {
            return None;
        };
        made.by_times = false;
        made.pieces.push(Piece {
            first: a.clone(),
            second: b.clone(),
            shift: 0,
        });
    }
    for ((a, b), shifts) in votes {
        let best = shifts
            .iter()
            .max_by_key(|(shift, n)| (**n, std::cmp::Reverse(**shift)));
        let Some((&shift, _)) = best else { continue };
        let (a, b) = (first.epochs[a].1.clone(), second.epochs[b].1.clone());
        // One more or one fewer must not do, too.
        made.alone &= [shift - 1, shift + 1].iter().all(|other| {
            let (_, kinds, apart) = contradictions(job, both, pairs(&a, &b, *other));
            kinds + apart > 0
        });
        made.pieces.push(Piece {
            first: a,
            second: b,
            shift,
        });
    }
    for piece in &made.pieces {
        let pairs = pairs(&piece.first, &piece.second, piece.shift);
        let (all, kinds, apart) = contradictions(job, both, pairs);
        made.pairs += all;
        made.kinds += kinds;
        made.apart += apart;
    }
    made.is_accepted().then_some(made)
}

/// Returns the communicators of a job; one that a single rank has is among them.
pub(super) fn communicators(job: &Job) -> Vec<Communicator> {
    let locals = locals(job);
    let sequences: Vec<Sequence<'_>> = locals.iter().map(|l| Sequence::of(job, l)).collect();
    let mut edges: BTreeMap<(usize, usize), Alignment> = BTreeMap::new();
    for a in 0..locals.len() {
        for b in a + 1..locals.len() {
            let (of_a, of_b) = (&locals[a], &locals[b]);
            if of_a.rank != of_b.rank
                && job.may_be_one(of_a.rank, of_b.rank)
                && of_a.between_some == of_b.between_some
                && let Some(edge) = align(job, &sequences[a], &sequences[b])
            {
                edges.insert((a, b), edge);
            }
        }
    }
    let groups = groups(&locals, &edges);
    let mut by_rank: Vec<Vec<usize>> = vec![Vec::new(); job.ranks.len()];
    for (n, local) in locals.iter().enumerate() {
        by_rank[local.rank].push(n);
    }
    let beside = Beside {
        locals: &locals,
        sequences: &sequences,
        edges: &edges,
        by_rank: &by_rank,
    };
    let groups = groups.into_iter();
    groups
        .map(|group| communicator(job, &beside, &group))
        .collect()
}

fn edge(edges: &BTreeMap<(usize, usize), Alignment>, a: usize, b: usize) -> Option<&Alignment> {
    edges.get(&(a.min(b), a.max(b)))
}

/// Groups sequences that belong together: the surest pairs first; each rank once; and all pairs of a group must be possible.
fn groups(locals: &[Local], edges: &BTreeMap<(usize, usize), Alignment>) -> Vec<Vec<usize>> {
    let mut order: Vec<_> = edges.iter().collect();
    // The place among the communicators of its rank, in the order of their first calls.
    let mut count: HashMap<usize, usize> = HashMap::new();
    let places: Vec<usize> = { locals.iter() }
        .map(|local| {
            let next = count.entry(local.rank).or_default();
            *next += 1;
            *next
        })
        .collect();
    let place = |local: usize| places[local];
    order.sort_by_key(|((a, b), edge)| {
        let sure = edge.by_times && edge.alone;
        let bad = edge.kinds + edge.apart;
        let pairs = std::cmp::Reverse(edge.pairs);
        (!sure, bad > 0, pairs, place(*a).abs_diff(place(*b)), *a, *b)
    });
    let mut of: Vec<usize> = (0..locals.len()).collect();
    let mut groups: Vec<Vec<usize>> = (0..locals.len()).map(|n| vec![n]).collect();
    let mut ranks: Vec<HashSet<usize>> =
        { locals.iter() }.map(|l| HashSet::from([l.rank])).collect();
    for ((a, b), _) in order {
        let (into, from) = (of[*a].min(of[*b]), of[*a].max(of[*b]));
        if into == from {
            continue;
        }
        let fits = ranks[into].is_disjoint(&ranks[from])
            && groups[from].iter().all(|b| {
                let mut others = groups[into].iter();
                others.all(|a| edge(edges, *a, *b).is_some())
            });
        if fits {
            let moved = std::mem::take(&mut groups[from]);
            for local in &moved {
                of[*local] = into;
            }
            groups[into].extend(moved);
            let moved = std::mem::take(&mut ranks[from]);
            ranks[into].extend(moved);
        }
    }
    groups.retain(|g| !g.is_empty());
    for group in &mut groups {
        group.sort_unstable();
    }
    groups
}

/// Places in the order of the reference for each call of a member; `None` where it has none.
fn places(
    edge: &Alignment,
    member_is_second: bool,
    of: &Sequence<'_>,
    reference: &Sequence<'_>,
) -> Vec<Option<i64>> {
    let mut places = vec![None; of.calls.len()];
    let side = |piece: &Piece| match member_is_second {
        true => (piece.second.clone(), piece.first.clone(), piece.shift),
        false => (piece.first.clone(), piece.second.clone(), -piece.shift),
    };
    for piece in &edge.pieces {
        let (own, others, shift) = side(piece);
        for (at, n) in pairs(&others, &own, shift) {
            places[n].get_or_insert(at as i64);
        }
    }
    // Before the first call of the reference, and behind its last one, the order goes on.
    let first = edge.pieces.first().map(side);
    if let Some((own, others, shift)) = first
        && (own.start, others.start) == (0, 0)
    {
        for (n, place) in places.iter_mut().enumerate().take(own.end) {
            let at = n as i64 + shift;
            if at < 0 {
                *place = Some(at);
            }
        }
    }
    let last = edge.pieces.last().map(side);
    if let Some((own, others, shift)) = last
        && (own.end, others.end) == (of.calls.len(), reference.calls.len())
    {
        for n in own {
            let at = n as i64 + shift;
            if at >= others.end as i64 {
                places[n] = Some(at);
            }
        }
    }
    places
}

/// All sequences, and the alignments of their pairs.
struct Beside<'a> {
    locals: &'a [Local],
    sequences: &'a [Sequence<'a>],
    edges: &'a BTreeMap<(usize, usize), Alignment>,
    /// Sequences by rank.
    by_rank: &'a [Vec<usize>],
}

fn communicator(job: &Job, beside: &Beside<'_>, group: &[usize]) -> Communicator {
    let Beside {
        locals,
        sequences,
        edges,
        ..
    } = *beside;
    let best = group.iter().copied().min_by_key(|l| {
        let of = &sequences[*l];
        (of.epochs.len(), std::cmp::Reverse(of.calls.len()), *l)
    });
    let reference = best.unwrap_or(0);
    let mut table: BTreeMap<i64, Vec<Option<usize>>> = BTreeMap::new();
    let mut astray: BTreeMap<u32, u64> = BTreeMap::new();
    let mut doubts = Vec::new();
    let (mut apart, mut other) = (0, 0);
    for (member, &local) in group.iter().enumerate() {
        let sequence = &sequences[local];
        let rank = locals[local].rank;
        let of = &job.ranks[rank];
        if group.len() > 1 {
            if let Comm::Channel(_) = locals[local].comm {
                doubts.push(Doubt::Channel(rank));
            }
            if of.losses > 0 {
                doubts.push(Doubt::Loss(rank));
            }
            if of.unnamed > 0 {
                doubts.push(Doubt::Unnamed(rank));
            }
        }
        let edge = edge(edges, reference, local);
        let places = match edge {
            Some(edge) if local != reference => {
                apart += edge.apart as u64;
                other += edge.kinds as u64;
                match edge {
                    edge if !edge.by_times => doubts.push(Doubt::Order(rank)),
                    edge if !edge.alone => doubts.push(Doubt::Moved(rank)),
                    _ => {}
                }
                places(edge, local > reference, sequence, &sequences[reference])
            }
            _ => (0..sequence.calls.len()).map(|n| Some(n as i64)).collect(),
        };
        for (n, place) in places.into_iter().enumerate() {
            let call = locals[local].calls[n];
            let Some(place) = place else {
                *astray.entry(sequence.calls[n].kind).or_default() += 1;
                continue;
            };
            let row = table
                .entry(place)
                .or_insert_with(|| vec![None; group.len()]);
            // Two stretches of a rank cannot have one place.
            if row[member].is_some() {
                *astray.entry(sequence.calls[n].kind).or_default() += 1;
                continue;
            }
            row[member] = Some(call);
        }
        doubts.extend(rival(beside, group, local).map(Doubt::Rival));
    }
    let members: Vec<Local> = group.iter().map(|l| locals[*l].clone()).collect();
    let calls: Vec<Matched> = { table.into_values() }
        .map(|of| {
            let mut present = of
                .iter()
                .zip(&members)
                .filter_map(|(call, m)| Some(job.ranks[m.rank].calls[(*call)?].kind));
            let kind = present.next().unwrap_or(0);
            Matched { of, kind }
        })
        .collect();
    let whole = |c: &Matched| c.is_whole();
    if let (Some(first), Some(last)) = (calls.iter().position(whole), calls.iter().rposition(whole))
    {
        let between = calls[first..=last].iter().filter(|c| !c.is_whole()).count() as u64;
        let between = between + astray.values().sum::<u64>();
        if between > 0 {
            doubts.push(Doubt::Between(between));
        }
    }
    if apart > 0 {
        doubts.push(Doubt::Apart(apart));
    }
    if other > 0 {
        doubts.push(Doubt::Kinds(other));
    }
    doubts.sort_unstable();
    doubts.dedup();
    Communicator {
        members,
        calls,
        astray,
        doubts,
    }
}

/// Returns the rank of another sequence that would fit `local` as well as the group's member of that rank does.
fn rival(beside: &Beside<'_>, group: &[usize], local: usize) -> Option<usize> {
    let (locals, edges) = (beside.locals, beside.edges);
    group.iter().filter(|m| **m != local).find_map(|member| {
        let of = edge(edges, local, *member)?;
        let rank = locals[*member].rank;
        let mut others = beside.by_rank[rank].iter().copied().filter(|l| l != member);
        let fits = |other: usize| {
            let rival = edge(edges, local, other);
            rival.is_some_and(|r| r.pairs * 10 >= of.pairs * 9)
        };
        others.any(fits).then_some(rank)
    })
}
