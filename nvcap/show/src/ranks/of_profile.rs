//! A rank of a job by the trace that torch.profiler wrote of it: its works, and its calls of collectives by their kernels' names. The stream stands for
//! the communicator, and the order of begins for that of calls.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::collect::{All, Gathered};
use super::job::{Call, Class, Comm, Rank, Work};
use crate::profile::{self, About, What, Works};
use nvcap_decode::record::{At, Kernel};

/// Keeps the works of one file.
pub struct OfProfile {
    all: Rc<RefCell<All>>,
    file: usize,
    /// Places of the file's ranks by their GPUs: most files have one.
    ranks: HashMap<Option<u32>, usize>,
}

impl OfProfile {
    /// Begins with the next file of a job.
    #[must_use]
    pub fn new(of: &Gathered) -> Self {
        let file = of.0.borrow().files;
        of.0.borrow_mut().files += 1;
        Self {
            all: of.0.clone(),
            file,
            ranks: HashMap::new(),
        }
    }

    /// Ends the file: it says which rank it is of, and has a name.
    pub fn finish(self, name: &str, about: &About) {
        let number = |n: Option<u64>| n.and_then(|n| u32::try_from(n).ok());
        let mut all = self.all.borrow_mut();
        all.job.has_times = true;
        for place in self.ranks.into_values() {
            let rank = &mut all.job.ranks[place];
            rank.number = number(about.rank);
            rank.world_size = number(about.world_size);
            rank.process = Some(name.to_owned());
            // A cut file lacks what came behind.
            rank.losses = u32::from(about.cut.is_some());
        }
    }
}

impl Works for OfProfile {
    fn work(&mut self, work: &profile::Work<'_>) {
        let mut all = self.all.borrow_mut();
        let place = *self.ranks.entry(work.gpu).or_insert_with(|| {
            all.job.ranks.push(Rank {
                gpu: work.gpu,
                file: self.file,
                ..Rank::default()
            });
            all.job.ranks.len() - 1
        });
        let named = match work.what {
            What::Kernel(name) => Some(all.kernel(&Kernel::called(At::default(), 0, name))),
            _ => None,
        };
        let span = { work.times }.map(|(begin, ns)| (begin, begin.saturating_add(ns)));
        let (error, of_duration) = work.errors;
        let collective = named.and_then(|named| named.collective);
        if let Some((kind, _)) = collective {
            let comm = Comm::Channel(work.stream.unwrap_or(u32::MAX));
            if all.keeps_call(place, comm) {
                all.job.ranks[place].calls.push(Call {
                    comm,
                    kind,
                    begin: span.map(|(begin, _)| begin),
                    error,
                    end: span.map(|(_, end)| end),
                    end_error: error.saturating_add(of_duration),
                    submitted: None,
                    epoch: 0,
                });
            }
        }
        let Some((begin, end)) = span else {
            all.job.ranks[place].untimed += 1;
            return;
        };
        if !all.keeps() {
            return;
        }
        let name = match named {
            Some(named) => named.name,
            None => {
                let text = work.what.of_copies().unwrap_or_default();
                all.job.names.number(&text)
            }
        };
        let rank = &mut all.job.ranks[place];
        rank.until = rank.until.max(end);
        rank.works.push(Work {
            begin,
            end,
            there: None,
            name,
            class: match (collective, named) {
                (Some(_), _) => Class::Collective,
                (None, Some(_)) => Class::Kernel,
                (None, None) => Class::Copy,
            },
        });
    }

    fn goes_on(&mut self) -> bool {
        true
    }
}
