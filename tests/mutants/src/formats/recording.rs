//! Recordings: a packet that was changed is missing, and what is missing is said.

use std::cell::Cell;
use std::io::{self, Cursor, Read};

use nvcap_decode::ledger::Ledger;
use nvcap_decode::record::{At, Loss, Lost, Record};
use nvcap_recording::file::{orc::Orc, packed};
use nvcap_recording::recording::{Item, Reader, TraceInfo, Writer};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};

use super::{Kept, Seeds, check_output, holds, pipeline};
use crate::mutate::Mutant;

/// Frames of a compressed recording.
const FRAMES: usize = 5;

/// Counts what is read.
struct Counted<'a, R>(R, &'a Cell<usize>);

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let n = self.0.read(to)?;
        self.1.set(self.1.get() + n);
        Ok(n)
    }
}

/// Recordings of these captures.
pub(super) fn of_captures(captures: &Seeds) -> Seeds {
    let mut seeds = Seeds {
        names: Vec::new(),
        bytes: Vec::new(),
        records: Vec::new(),
    };
    let all = captures.names.iter().zip(&captures.bytes).zip(1..);
    for ((name, capture), trace) in all {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(TraceInfo::default(), trace);
        writer.begin_section(&mut bytes);
        let records: Vec<Record> = Orc::new(capture.as_slice())
            .filter_map(Result::ok)
            .collect();
        for record in &records {
            writer.record(record, &mut bytes);
        }
        writer.idle(&mut bytes);
        writer.end(Default::default(), &Ledger::new(), b"{}", &mut bytes);
        seeds.names.push(format!("a recording of {name}"));
        seeds.bytes.push(bytes);
        seeds.records.push(records.len());
    }
    seeds
}

/// Returns recordings compressed as `nvcap record --zstd` does it: in frames that can be read without each other.
pub(super) fn compressed(plain: &Seeds) -> Seeds {
    let packed = |bytes: &Vec<u8>| -> Vec<u8> {
        let frames = bytes.chunks(bytes.len().div_ceil(FRAMES).max(1));
        let packed = frames.flat_map(|frame| compress_to_vec(frame, CompressionLevel::Fastest));
        packed.collect()
    };
    Seeds {
        names: { plain.names.iter() }
            .map(|name| format!("{name}, compressed"))
            .collect(),
        bytes: plain.bytes.iter().map(packed).collect(),
        records: plain.records.clone(),
    }
}

/// As [`check`]; how much may be shown depends on what was unpacked.
pub(super) fn check_compressed(seeds: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let packed = Cursor::new(mutant.bytes.clone());
    match packed::unpacked(Box::new(packed)) {
        Ok(reader) => check_of(seeds, reader),
        // Nothing of it is shown.
        Err(_) => Ok(()),
    }
}

/// Nothing is wrong only where all records are there.
pub(super) fn check(seeds: &Seeds, mutant: &Mutant) -> Result<(), String> {
    check_of(seeds, mutant.bytes.as_slice())
}

fn check_of(seeds: &Seeds, reader: impl Read) -> Result<(), String> {
    let read = Cell::new(0);
    let counted = Counted(reader, &read);
    let (text, json) = (Kept::default(), Kept::default());
    let mut pipeline = pipeline(&text, &json);
    let (mut whole, mut records) = (true, 0);
    for item in Reader::new(counted) {
        let record = match item {
            Ok(Item::Record(record)) => {
                records += 1;
                record
            }
            Ok(_) => continue,
            Err(error) => {
                whole = false;
                let why = error.to_string();
                Record::Loss(Loss {
                    at: At::default(),
                    channel: None,
                    what: Lost::Untraced { why },
                })
            }
        };
        pipeline.record(record).map_err(|e| e.to_string())?;
    }
    // A mutant may be spliced of several recordings: then it is one's that it is read as.
    let had = seeds.records.iter().max().copied().unwrap_or(0);
    holds(records <= had, || format!("{records} of {had} records"))?;
    holds(!whole || seeds.records.contains(&records), || {
        format!("{records} records are no whole recording")
    })?;
    let ledger = pipeline.finish().map_err(|e| e.to_string())?;
    holds(ledger.is_complete() <= whole, || {
        "complete after an error".to_owned()
    })?;
    check_output(read.get(), &text.take(), &json.take())
}
