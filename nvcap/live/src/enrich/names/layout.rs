//! The layout of libcuda's records of functions, learnt from a process's memory. A record holds a program's address and, at a
//! fixed distance, a pointer to the function's name. The distance differs between releases of the driver. So it is learnt: the
//! distance that holds for most programs is taken, and only that is believed.
//!
//! The pointer leads into the string table of the function's own cubin image. This is the evidence, because hardly any other
//! word near a copy of a program's address leads there. The image also says how many registers the function takes, and so does
//! the launch. Where images are not kept, text that looks like a name is taken instead; such a name is not certain.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::images::{self, Images, Named};
use super::scan::Space;
use nvcap_decode::wire::words::{u32_at, u64_at};

/// Farthest distance from a program's address at which other words of its record are looked for, B.
const REACH: i64 = 768;
/// The most programs, and the most places of each, that are looked at while learning.
const MOST_PROGRAMS: usize = 48;
const MOST_PLACES: usize = 48;
/// Number of programs that must agree where there are no images.
const LEAST_WITHOUT_IMAGES: usize = 4;
/// The most records that are searched for links to their neighbours while learning.
const MOST_SAMPLES: usize = 8;
/// Farthest distance beyond a program's address at which a link to the next record is looked for, B.
const LINK_REACH: i64 = 1536;
/// The greatest distance between the address in a link and the program's address in the linked record.
const LINK_OFFSET: i64 = 512;

/// A program, by the values of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) address: u64,
    /// Registers of a thread.
    pub(super) registers: Option<u32>,
}

/// Distances in bytes from the word with a program's address to other words of its record.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Layout {
    /// Distance to the pointer to the name.
    pub(super) name: i64,
    /// Distance to the number of registers (32 bits), where it was learnt.
    pub(super) registers: Option<i64>,
    /// True if the names lie in images.
    pub(super) in_images: bool,
    /// Number of programs that have a name at this distance, and number that were looked at.
    pub(super) agree: usize,
    pub(super) of: usize,
    /// Distances to pointers to other records of the same module.
    pub(super) links: Vec<i64>,
    /// Distance from the address in such a pointer to the program's address in the record it leads to.
    pub(super) link_offset: i64,
}

/// Name that a record leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Name {
    /// The name of an image's function.
    Of(Named),
    /// A text.
    Text(String),
}

/// Observations for one distance.
#[derive(Default)]
struct Votes {
    programs: BTreeSet<u64>,
    names: BTreeSet<String>,
    /// Distances of the launch's number of registers, each with the programs for which it holds.
    registers: BTreeMap<i64, BTreeSet<u64>>,
}

/// Returns the distance that holds for most programs, and their number; none where two distances hold for as many.
fn most_of(votes: &BTreeMap<i64, BTreeSet<u64>>) -> Option<(i64, usize)> {
    let (distance, programs) = votes.iter().max_by_key(|(_, p)| p.len())?;
    let as_many = votes.values().filter(|p| p.len() == programs.len());
    (as_many.count() == 1).then_some((*distance, programs.len()))
}

fn shifted(at: u64, by: i64) -> u64 {
    at.wrapping_add_signed(by)
}

impl Layout {
    /// Learns the layout from programs and the places that hold their addresses; `None` where nothing is certain enough.
    pub(super) fn learn(
        space: &dyn Space,
        images: &mut Images,
        programs: &[Program],
        places: &HashMap<u64, Vec<u64>>,
    ) -> Option<Self> {
        let mut held: Vec<&Program> = programs
            .iter()
            .filter(|p| places.get(&p.address).is_some_and(|p| !p.is_empty()))
            .collect();
        // Those with few places say most: the others are in tables of graphs, too.
        held.sort_by_key(|p| places.get(&p.address).map_or(0, Vec::len));
        held.truncate(MOST_PROGRAMS);
        let mut layout = Self::by(space, &held, places, &mut |w| {
            let named = images.named_at(space, w)?;
            let function = images.function(named)?;
            Some((function.name.clone(), function.registers))
        })
        .map(|l| Self {
            in_images: true,
            ..l
        })
        .or_else(|| {
            if held.len() < LEAST_WITHOUT_IMAGES {
                return None;
            }
            let found = Self::by(space, &held, places, &mut |w| {
                if !(0x1_0000..1 << 47).contains(&w) {
                    return None;
                }
                let name = images::string(space, w)?;
                images::is_identifier(&name).then_some((name, None))
            })?;
            (found.agree >= LEAST_WITHOUT_IMAGES && found.agree * 5 >= found.of * 4)
                .then_some(found)
        })?;
        let known: Vec<u64> = held
            .iter()
            .flat_map(|p| {
                let places = places.get(&p.address).into_iter().flatten();
                let mut fits = places.filter(|at| {
                    layout
                        .name_at(space, images, **at, p.registers)
                        .is_some_and(|n| matches!(n, Name::Of(_)))
                });
                fits.next().copied()
            })
            .collect();
        layout.learn_links(space, images, &known);
        Some(layout)
    }

    /// Learns the layout by the names that `name_of` finds for words near the places.
    fn by(
        space: &dyn Space,
        held: &[&Program],
        places: &HashMap<u64, Vec<u64>>,
        name_of: &mut dyn FnMut(u64) -> Option<(String, Option<u32>)>,
    ) -> Option<Self> {
        let mut votes: BTreeMap<i64, Votes> = BTreeMap::new();
        for program in held {
            for at in places
                .get(&program.address)
                .into_iter()
                .flatten()
                .take(MOST_PLACES)
            {
                let mut window = [0; 2 * REACH as usize];
                let begin = shifted(*at, -REACH);
                if space.read_bytes(begin, &mut window).is_err() {
                    continue;
                }
                for offset in (0..window.len()).step_by(8) {
                    let word = u64_at(&window, offset).unwrap_or(0);
                    let Some((name, registers)) = name_of(word) else {
                        continue;
                    };
                    // A function needs no more registers than its launch reserves.
                    if registers.zip(program.registers).is_some_and(|(f, l)| f > l) {
                        continue;
                    }
                    let vote = votes.entry(offset as i64 - REACH).or_default();
                    vote.programs.insert(program.address);
                    vote.names.insert(name);
                    for (o, of) in (0..window.len())
                        .step_by(4)
                        .map(|o| (o, u32_at(&window, o)))
                    {
                        if of.is_some() && of == program.registers {
                            let programs = vote.registers.entry(o as i64 - REACH).or_default();
                            programs.insert(program.address);
                        }
                    }
                }
            }
        }
        let mut ranked: Vec<(usize, i64)> =
            votes.iter().map(|(d, v)| (v.programs.len(), *d)).collect();
        ranked.sort_unstable_by_key(|(n, d)| (std::cmp::Reverse(*n), d.abs()));
        let (agree, name) = *ranked.first()?;
        let next = ranked.get(1).map_or(0, |(n, _)| *n);
        // Most programs, and clearly more than at any other distance.
        if agree * 5 < held.len() * 3 || next == agree {
            return None;
        }
        let vote = votes.get(&name)?;
        // Different programs mostly have different names: a word that leads to one name everywhere is another thing.
        if agree >= 4 && vote.names.len() * 4 < agree {
            return None;
        }
        let counts: BTreeSet<u32> = held.iter().filter_map(|p| p.registers).collect();
        let registers = most_of(&vote.registers)
            .filter(|(_, n)| n * 5 >= agree * 4 && *n >= 3 && counts.len() >= 3)
            .map(|(d, _)| d);
        Some(Self {
            name,
            registers,
            agree,
            of: held.len(),
            ..Self::default()
        })
    }

    /// Returns the pointer to the name, in the record around a program's address.
    pub(super) fn pointer_at(&self, space: &dyn Space, at: u64) -> Option<u64> {
        space.word(shifted(at, self.name)).ok()
    }

    /// Returns the name that the record around a program's address leads to; none if the record's number of registers is not
    /// the launch's.
    pub(super) fn name_at(
        &self,
        space: &dyn Space,
        images: &mut Images,
        at: u64,
        registers: Option<u32>,
    ) -> Option<Name> {
        let pointer = space.word(shifted(at, self.name)).ok()?;
        if let (Some(d), Some(registers)) = (self.registers, registers) {
            let mut bytes = [0; 4];
            space.read_bytes(shifted(at, d), &mut bytes).ok()?;
            (u32::from_le_bytes(bytes) == registers).then_some(())?;
        }
        if self.in_images {
            let named = images.named_at(space, pointer)?;
            let needs = images.function(named)?.registers;
            // The number of registers in the image is the least; only the record has what the launch takes.
            let fits = needs.zip(registers).is_none_or(|(f, l)| f <= l);
            return fits.then_some(Name::Of(named));
        }
        let name = images::string(space, pointer)?;
        images::is_identifier(&name).then_some(Name::Text(name))
    }

    /// Learns the distances of a record's pointers to its neighbours.
    fn learn_links(&mut self, space: &dyn Space, images: &mut Images, known: &[u64]) {
        let mut votes: BTreeMap<(i64, i64), usize> = BTreeMap::new();
        let samples = known.iter().take(MOST_SAMPLES);
        let count = samples.len();
        for &at in samples {
            let Some(image) = self.image_of(space, images, at) else {
                continue;
            };
            let mut window = [0; (REACH + LINK_REACH) as usize];
            if space.read_bytes(shifted(at, -REACH), &mut window).is_err() {
                continue;
            }
            for offset in (0..window.len()).step_by(8) {
                let to = u64_at(&window, offset).unwrap_or(0);
                if !(0x1_0000..1 << 47).contains(&to) {
                    continue;
                }
                // What lies there may be another record: its program's address is a little behind.
                let mut there = [0; LINK_OFFSET as usize + 8];
                if space
                    .read_bytes(shifted(to, self.name), &mut there)
                    .is_err()
                {
                    continue;
                }
                for by in (0..=LINK_OFFSET as usize).step_by(8) {
                    let pointer = u64_at(&there, by).unwrap_or(0);
                    let other = shifted(to, by as i64);
                    if other != at
                        && images.may_hold(pointer)
                        && images
                            .named_at(space, pointer)
                            .is_some_and(|n| n.image == image)
                    {
                        *votes.entry((offset as i64 - REACH, by as i64)).or_default() += 1;
                    }
                }
            }
        }
        // All links lead to the same place of a record.
        let mut by_offset: BTreeMap<i64, Vec<(usize, i64)>> = BTreeMap::new();
        for ((link, by), n) in votes {
            if n * 2 > count {
                by_offset.entry(by).or_default().push((n, link));
            }
        }
        let best = by_offset
            .into_iter()
            .max_by_key(|(_, links)| links.iter().map(|(n, _)| n).sum::<usize>());
        if let Some((by, mut links)) = best {
            links.sort_unstable_by_key(|(n, _)| std::cmp::Reverse(*n));
            links.truncate(4);
            self.links = links.into_iter().map(|(_, link)| link).collect();
            self.link_offset = by;
        }
    }

    fn image_of(&self, space: &dyn Space, images: &mut Images, at: u64) -> Option<u64> {
        let pointer = space.word(shifted(at, self.name)).ok()?;
        images.named_at(space, pointer).map(|n| n.image)
    }

    /// Returns the records that other records lead to, as places of their programs' addresses; at most `most`.
    pub(super) fn neighbours(
        &self,
        space: &dyn Space,
        images: &mut Images,
        known: &mut BTreeSet<u64>,
        from: &[u64],
        most: usize,
    ) {
        let mut edge: Vec<u64> = from.to_vec();
        while !edge.is_empty() && !self.links.is_empty() {
            let asked: Vec<u64> = edge
                .iter()
                .flat_map(|at| self.links.iter().map(|l| shifted(*at, *l)))
                .collect();
            let mut next: Vec<u64> = space
                .words(&asked)
                .into_iter()
                .filter(|to| (0x1_0000..1 << 47).contains(to))
                .map(|to| shifted(to, self.link_offset))
                .filter(|at| !known.contains(at))
                .collect();
            next.sort_unstable();
            next.dedup();
            let names: Vec<u64> = next.iter().map(|at| shifted(*at, self.name)).collect();
            let names = space.words(&names);
            edge.clear();
            for (at, name) in next.into_iter().zip(names) {
                if known.len() >= most {
                    return;
                }
                if images.named_at(space, name).is_some() {
                    known.insert(at);
                    edge.push(at);
                }
            }
        }
    }
}
