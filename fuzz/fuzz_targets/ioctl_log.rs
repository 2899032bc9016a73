//! Ioctl logs, and the driver model that follows them: any bytes are taken, what a log gives does not depend on how the
//! bytes come, and the model answers without contradiction.
#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use nvcap_decode::{
    driver::{Model, ModelOptions},
    record::{Life, Process, Record},
    wire::GpuVa,
};
use nvcap_recording::file::ioctl_log;
use nvcap_show::{
    output::{channels, ioctls, writer::Output},
    pipeline::{Pipeline, PipelineOptions},
};

/// Gives a few bytes at a time.
struct Drip<'a>(&'a [u8]);

impl Read for Drip<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = out.len().min(self.0.len()).min(7);
        let (now, later) = self.0.split_at(n);
        out[..n].copy_from_slice(now);
        self.0 = later;
        Ok(n)
    }
}

fuzz_target!(|data: &[u8]| {
    // The release chooses layouts.
    let versions = ["515.43.04", "535.104.05", "580.159.04", "595.45.04"];
    let driver_version = data
        .first()
        .and_then(|b| versions.get(usize::from(*b & 7)))
        .map(|v| v.parse().expect("a release"));
    let options = ioctl_log::LogOptions {
        pid: 1,
        driver_version,
    };
    let log = ioctl_log::read(data, options).expect("memory can be read");
    assert_eq!(ioctl_log::read(Drip(data), options).expect("as well"), log);
    let lines = data.iter().filter(|b| **b == b'\n').count() + 1;
    assert!(log.records.len() <= lines && log.bad_lines.len() <= lines);

    let mut model = Model::new(ModelOptions { driver_version });
    let sink = || Output::to(Box::new(std::io::sink()));
    let raw = ioctls::IoctlOptions {
        raw: true,
        ..ioctls::IoctlOptions::default()
    };
    let mut text = ioctls::Ioctls::text(sink(), raw.clone());
    let mut json = ioctls::Ioctls::json(sink(), raw);
    let options = PipelineOptions {
        driver_version,
        ..PipelineOptions::default()
    };
    let mut pipeline = Pipeline::new(options, vec![Box::new(&mut text), Box::new(&mut json)]);
    let mut pids = Vec::new();
    for record in &log.records {
        let _ = model.record(record);
        pipeline.record(record.clone()).expect("a sink takes all");
        let at = match record {
            Record::Ioctl(i) => i.at,
            Record::Mapping(m) => m.at,
            other => panic!("{other:?}"),
        };
        pids.push(at);
    }
    let _ = pipeline.finish().expect("a sink takes all");
    assert_eq!(text.totals(), json.totals());

    for channel in model.channels() {
        let map = model.address_map(channel.id);
        for pair in map.ranges.windows(2) {
            assert!(pair[0].gpu.0 + pair[0].len <= pair[1].gpu.0);
        }
        for range in &map.ranges {
            assert!(range.len > 0);
            let (cpu, room) = map.at(range.gpu.0).expect("it begins there");
            assert_eq!((cpu, room), (range.cpu.0, range.len));
        }
        let _ = model.place_for(channel.id, GpuVa(channel.ring_gpu.map_or(0, |r| r.0)));
    }
    let _ = channels::table(&model, None, &Default::default());
    let _ = channels::json(&model, None, &Default::default()).to_string();

    // With its processes goes all that they held.
    for at in pids {
        let _ = model.record(&Record::Process(Process {
            at,
            life: Life::Exit { process: true },
        }));
    }
    assert_eq!(
        (model.channels().count(), model.doorbells().count()),
        (0, 0)
    );
});
