//! Tables of operations, submissions, kernels and calls of the driver, for DuckDB, pandas, Spark and spreadsheets: a sink that
//! writes them as CSV or Parquet while the trace goes on. docs/tables.md lists the tables, docs/queries.md asks them.
//!
//! - [`all`]: all tables. `columns`, `faults`, `samples`, `slices`, `ending`: the columns of what comes one by one, and of what is known at the end. [`schema`]: what a
//!   column is.
//! - [`layout`], `files`: one file a table, or many. `partitions`: the tables of a fleet.
//! - `csv`, `parquet`: the formats.

pub mod all;
mod columns;
mod csv;
mod ending;
mod faults;
mod files;
pub mod layout;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
pub mod partitions;
mod samples;
pub mod schema;
mod slices;

use std::{io, mem};

use crate::output::kernels;
use crate::output::names::is_timed;
use crate::output::redact::Redactor;
use crate::output::writer::Output;
use crate::output::{Detail, Sink};
use crate::samples::{Kernels, kernel_at};
use crate::shares::Holders;
use nvcap_decode::decode::event::{Body, Event, Operation};
use nvcap_decode::driver::{Call, Model};
use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{Record, Samples};
use nvcap_decode::samples::Counter;
use nvcap_decode::switches::{Slice, Slices, Who};

use all::TABLES;
use files::Files;
use layout::{Format, Layout, Opener};
use schema::{Row, Trace};

/// About the bytes of rows that wait to be written, of all files together.
const MOST_WAITING: usize = 64 << 20;

/// Options of the output, beside the choice of tables.
#[derive(Debug, Default)]
pub struct TablesOptions {
    /// Replaces users' data; `None` shows the data.
    pub redact: Option<Redactor>,
    /// Facts about the trace.
    pub trace: Trace,
}

/// The sink.
pub struct Tables {
    options: TablesOptions,
    opener: Opener,
    /// Files of those of [`TABLES`] that are written.
    files: [Option<Files>; TABLES.len()],
    /// Bytes of rows that wait.
    waiting: usize,
    /// Kernels that samples lie in, where samples are written.
    kernels: Kernels,
    /// Contexts that have engines, and names of their processes, where slices are written.
    slices: Slices,
    holders: Holders,
}

/// The places of tables in [`TABLES`].
const OPERATIONS: usize = 0;
const SUBMISSIONS: usize = 1;
const KERNELS: usize = 2;
const IOCTLS: usize = 3;
const CHANNELS: usize = 4;
const LOSSES: usize = 5;
const FAULTS: usize = 6;
const SAMPLES: usize = 7;
const SLICES: usize = 8;
const LEDGER: usize = 9;

impl Tables {
    /// Writes one table, by its place in [`TABLES`], to `out`.
    ///
    /// # Errors
    /// When the format cannot have such a table.
    pub fn one(
        format: Format,
        table: usize,
        out: Output,
        options: TablesOptions,
    ) -> io::Result<Self> {
        let opener: Opener = Box::new(|_| Err(io::ErrorKind::Unsupported.into()));
        let mut tables = Self::empty(options, opener);
        tables.files[table] = Some(Files::one(format, &TABLES[table], out)?);
        Ok(tables)
    }

    /// Writes these tables to files in a folder.
    ///
    /// # Errors
    /// When the folder cannot be made, or a table that becomes several files has some already.
    pub fn several(
        format: Format,
        chosen: &[usize],
        layout: &Layout,
        opener: Opener,
        options: TablesOptions,
    ) -> io::Result<Self> {
        let mut tables = Self::empty(options, opener);
        for table in chosen {
            let files = Files::several(format, &TABLES[*table], layout.clone())?;
            tables.files[*table] = Some(files);
        }
        Ok(tables)
    }

    fn empty(options: TablesOptions, opener: Opener) -> Self {
        Self {
            options,
            opener,
            files: [const { None }; TABLES.len()],
            waiting: 0,
            kernels: Kernels::default(),
            slices: Slices::default(),
            holders: Holders::default(),
        }
    }

    fn row(&mut self, table: usize, row: &Row<'_>) -> io::Result<()> {
        let Some(files) = &mut self.files[table] else {
            return Ok(());
        };
        let more = files.row(row, &self.opener)?;
        self.waiting = self.waiting.saturating_add_signed(more);
        if self.waiting > MOST_WAITING {
            let largest = self.files.iter_mut().flatten();
            if let Some(files) = largest.max_by_key(|files| files.largest()) {
                files.write_largest()?;
            }
            self.waiting = self.files.iter().flatten().map(Files::waiting).sum();
        }
        Ok(())
    }

    fn operation(&mut self, event: &Event<'_>, operation: &Operation) -> io::Result<()> {
        let launch = match operation {
            Operation::Launch(launch) => Some(launch),
            _ => None,
        };
        let kernel = launch.and_then(|l| l.kernel.as_deref());
        let redact = self.options.redact.clone();
        let row = Row::Event(schema::Event {
            context: event.context,
            entry: event.entry,
            head: None,
            operation: Some(operation),
            times: { event.context }
                .gpu_time_of(event.entry)
                .filter(|_| is_timed(operation)),
            name: kernel.map(kernels::name),
            redact: redact.as_ref(),
        });
        self.row(OPERATIONS, &row)?;
        match launch {
            Some(_) => self.row(KERNELS, &row),
            None => Ok(()),
        }
    }

    /// The rows of a window.
    fn samples(&mut self, window: &Samples) -> io::Result<()> {
        let kernels = std::mem::take(&mut self.kernels);
        let known = kernels.of(window.at.pid);
        let others = Counter {
            samples: window.others,
            ..Counter::default()
        };
        let counters = window.counters.iter().map(|(pc, c)| (Some(*pc), c));
        let others = (window.others > 0).then_some((None, &others));
        let written = counters.chain(others).try_for_each(|(pc, counter)| {
            let row = schema::Samples {
                window,
                pc,
                counter,
                kernel: pc.and_then(|pc| kernel_at(known, pc)),
            };
            self.row(SAMPLES, &Row::Samples(row))
        });
        self.kernels = kernels;
        written
    }

    /// Rows of slices.
    fn slices(
        &mut self,
        each: impl FnOnce(Slices, &mut dyn FnMut(Slice)) -> Slices,
    ) -> io::Result<()> {
        let (slices, holders) = (mem::take(&mut self.slices), mem::take(&mut self.holders));
        let mut written = Ok(());
        let slices = each(slices, &mut |slice| {
            let name = match slice.who {
                Who::Process(pid) => holders.identity(pid).map(|who| who.comm.as_str()),
                Who::Hidden | Who::Driver => None,
            };
            if written.is_ok() {
                let slice = &slice;
                written = self.row(SLICES, &Row::Slice(schema::Slice { slice, name }));
            }
        });
        (self.slices, self.holders) = (slices, holders);
        written
    }

    fn end(&mut self, table: usize) -> io::Result<()> {
        match &mut self.files[table] {
            Some(files) => files.finish(&self.opener),
            None => Ok(()),
        }
    }
}

impl Sink for Tables {
    fn detail(&self) -> Option<Detail> {
        Some(Detail::Operations)
    }

    fn event(&mut self, event: &Event<'_>) -> io::Result<()> {
        match &event.body {
            Body::Submission(head) => {
                let row = Row::Event(schema::Event {
                    context: event.context,
                    entry: 0,
                    head: Some(head),
                    operation: None,
                    times: event.context.gpu_time_of_submission(),
                    name: None,
                    redact: None,
                });
                self.row(SUBMISSIONS, &row)
            }
            Body::Operation(operation) => self.operation(event, operation),
            Body::Entry(_) | Body::Method(_) | Body::Chip(_) | Body::Stop(_) => Ok(()),
        }
    }

    fn record(&mut self, record: &Record, model: &Model) -> io::Result<()> {
        match record {
            Record::Ioctl(ioctl) => {
                let version = model.version();
                let call = Call::read(ioctl, version);
                self.row(IOCTLS, &Row::Call(schema::Ioctl { call, version }))
            }
            Record::Fault(fault) => {
                let row = schema::Fault {
                    fault,
                    access: fault.message.as_ref().and_then(|m| m.access()),
                    gpu: (fault.channel)
                        .and_then(|id| model.channel(id)?.gpu)
                        .or_else(|| fault.message.as_ref()?.gpu),
                };
                self.row(FAULTS, &Row::Fault(row))
            }
            Record::Kernel(kernel) if self.files[SAMPLES].is_some() => {
                self.kernels.add(kernel);
                Ok(())
            }
            Record::Samples(window) if self.files[SAMPLES].is_some() => self.samples(window),
            Record::Switches(window) if self.files[SLICES].is_some() => {
                self.holders.record(record);
                self.slices(|mut slices, each| {
                    slices.window(window, each);
                    slices
                })
            }
            Record::Process(_) if self.files[SLICES].is_some() => {
                self.holders.record(record);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_for_later(&self) -> bool {
        true
    }

    fn flush(&mut self) -> io::Result<()> {
        self.files.iter_mut().flatten().try_for_each(Files::flush)
    }

    fn unshown(&self) -> u64 {
        self.files.iter().flatten().map(Files::lost).sum()
    }

    fn finish(&mut self, ledger: &Ledger, _model: &Model) -> io::Result<()> {
        let known = self.unshown();
        self.slices(|slices, each| {
            slices.finish(each);
            Slices::default()
        })?;
        for table in [OPERATIONS, SUBMISSIONS, KERNELS, IOCTLS, SAMPLES, SLICES] {
            self.end(table)?;
        }
        // What could not be written at the end is in the ledger, too.
        let mut ledger = ledger.clone();
        ledger.add_unshown(self.unshown() - known);
        for (id, ledger) in ledger.channels() {
            self.row(CHANNELS, &Row::Channel(schema::Channel { id, ledger }))?;
        }
        for loss in ending::losses(&ledger) {
            self.row(LOSSES, &Row::Loss(loss))?;
        }
        let trace = self.options.trace.clone();
        let whole = schema::Whole {
            ledger: &ledger,
            trace: &trace,
            version: env!("CARGO_PKG_VERSION"),
        };
        self.row(LEDGER, &Row::Ledger(whole))?;
        [CHANNELS, LOSSES, FAULTS, LEDGER]
            .into_iter()
            .try_for_each(|table| self.end(table))
    }
}
