//! Recordings: a packet that was changed is missing, and what is missing is said.

use nvcap::capture::{Item, Reader, TraceInfo, Writer};
use nvcap::ledger::Ledger;
use nvcap::record::{At, Loss, Lost, Record};
use nvcap::source::file::orc::Orc;

use super::{Kept, Seeds, check_output, holds, pipeline};
use crate::mutate::Mutant;

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

/// Nothing is wrong only where all records are there.
pub(super) fn check(seeds: &Seeds, mutant: &Mutant) -> Result<(), String> {
    let (text, json) = (Kept::default(), Kept::default());
    let mut pipeline = pipeline(&text, &json);
    let (mut whole, mut records) = (true, 0);
    for item in Reader::new(mutant.bytes.as_slice()) {
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
    check_output(mutant.bytes.len(), &text.take(), &json.take())
}
