//! The model and its printers on tests/fixtures/h200-ioctl-part.log.gz: the start of captures/h200-ioctl.log.gz
//! with the first two channels of each group and without most of the questions libcuda asks.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use nvcap_decode::{
    driver::{Model, ModelOptions, report},
    record::{CpuVa, Record},
};
use nvcap_recording::file::ioctl_log;
use nvcap_show::{
    output::{channels, ioctls, style::Color, writer::Output},
    pipeline::{Pipeline, PipelineOptions},
};

const PID: u32 = 77;

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/h200-ioctl-part.log.gz")
}

fn log() -> ioctl_log::Log {
    let options = ioctl_log::LogOptions {
        pid: PID,
        driver_version: None,
    };
    let log = ioctl_log::read_file(&fixture(), options).unwrap();
    assert!(log.bad_lines.is_empty());
    assert_eq!(log.unfinished, 0);
    log
}

fn model() -> Model {
    let mut model = Model::new(ModelOptions::default());
    for record in &log().records {
        let _ = model.record(record);
    }
    model
}

#[derive(Clone, Default)]
struct Sunk(Arc<Mutex<Vec<u8>>>);

impl Write for Sunk {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn printed(
    make: impl Fn(Output, ioctls::IoctlOptions) -> ioctls::Ioctls,
    options: ioctls::IoctlOptions,
) -> String {
    let sunk = Sunk::default();
    let mut sink = make(Output::to(Box::new(sunk.clone())), options);
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut sink)]);
    for record in log().records {
        pipeline.record(record).unwrap();
    }
    pipeline.finish().unwrap();
    let bytes = sunk.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn channels_of_four_groups() {
    let model = model();
    let channels: Vec<_> = model.channels().collect();
    let tokens: Vec<_> = channels.iter().filter_map(|c| c.token).collect();
    assert_eq!(
        tokens,
        [
            0xa, 0xb, 0x10012, 0x10013, 0x30016, 0x30017, 0xa001a, 0xa001b
        ]
    );
    for c in &channels {
        let ring = c.ring.unwrap().0;
        assert_eq!((ring - 0x2_0060_0000) % 0x3000, 0);
        assert_eq!(c.userd, Some(CpuVa(ring + 0x2000)));
    }
    let spread = report::spread(&model);
    assert_eq!(spread.len(), 1);
    assert_eq!(spread[0].chip.as_deref(), Some("GH100"));
    let runlists: Vec<_> = spread[0]
        .runlists
        .iter()
        .map(|r| {
            (
                r.number.unwrap(),
                r.engines.join("+"),
                r.channels(),
                r.groups.len(),
            )
        })
        .collect();
    let expected = [(0, "GR0+COPY1"), (1, "COPY2"), (3, "COPY3"), (10, "COPY4")];
    for (found, (number, engines)) in runlists.iter().zip(expected) {
        assert_eq!(*found, (number, engines.to_owned(), 2, 1));
    }
    assert_eq!(model.doorbells().count(), 2);
}

#[test]
fn the_table_and_the_json_say_the_same() {
    let model = model();
    let mut live = std::collections::BTreeMap::new();
    let first = model.channels().next().unwrap().id;
    live.insert(
        first,
        channels::Live {
            gp_get: Some(955),
            gp_put: Some(974),
            submissions: Some(12),
            entries: None,
            ..channels::Live::default()
        },
    );
    let table = channels::table(&model, Some(PID), &live);
    let row = table
        .lines()
        .find(|l| l.trim_start().starts_with("0x0000a "))
        .unwrap();
    let cells: Vec<_> = row.split_whitespace().collect();
    assert_eq!(
        cells,
        [
            "0x0000a",
            "0",
            "10",
            "0",
            "GR0+COPY1",
            "0x5c000015",
            "0xc86f",
            "0x200600000",
            "1024",
            "0x200602000",
            "955/974",
            "12",
            "compute"
        ]
    );
    assert!(table.contains("GH100 0000:00:06.0 GPU-ce9418df-f207-9da0-8305-06ca8af10ca9"));
    assert!(channels::table(&model, Some(PID + 1), &live).is_empty());

    let json = channels::json(&model, None, &live);
    let all = json.as_array().unwrap();
    assert_eq!(all.len(), 8);
    let c = &all[2];
    for (name, value) in [
        ("token", 0x10012u64),
        ("chid", 0x12),
        ("runlist", 1),
        ("class", 0xc86f),
        ("ring", 0x2_0061_8000),
        ("entries", 1024),
        ("userd", 0x2_0061_a000),
        ("tsg", 0x5c00_003e),
    ] {
        assert_eq!(c[name].as_u64(), Some(value), "{name}");
    }
    assert_eq!(c["engines"], serde_json::json!(["COPY2"]));
    assert_eq!(c["use"], "copy (H2D)");
    assert_eq!(all[4]["use"], "copy (D2H)");
    assert_eq!(all[0]["gp_put"], 974);
}

#[test]
fn mappings_are_explained() {
    let model = model();
    let text = channels::maps_table(&model, PID);
    let line = |start: &str| {
        text.lines()
            .find(|l| l.trim_start().starts_with(start))
            .unwrap_or_else(|| panic!("{start} in\n{text}"))
    };
    assert!(line("0x200600000").ends_with(
        "video memory, uncached (object 0x5c000017 NV01_MEMORY_LOCAL_USER); rings or USERD of 8 channels"
    ));
    assert!(line("0x200800000").contains("56 MiB"));
    assert!(line("0x7fbc28cc4000").contains("doorbell page through BAR1"));
    assert!(line("0x7fbc28cd4000").contains("doorbell page through BAR0"));
    let json = channels::maps_json(&model, PID);
    assert_eq!(
        json.as_array().unwrap().len(),
        text.lines()
            .filter(|l| l.trim_start().starts_with("0x"))
            .count()
    );
}

#[test]
fn ioctls_read_as_a_human_would_want() {
    let text = printed(ioctls::Ioctls::text, ioctls::IoctlOptions::default());
    let has = |what: &str| assert!(text.contains(what), "{what}");
    has(
        "NV_ESC_RM_CONTROL(hClient=0xc1d00020, hObject=0x5c00001c(HOPPER_CHANNEL_GPFIFO_A), \
         cmd=NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN, params={workSubmitToken=0 -> 10}, paramsSize=4) = NV_OK",
    );
    has(
        "hObjectNew=0x5c00001c, hClass=HOPPER_CHANNEL_GPFIFO_A, pAllocParms={hObjectError=0x5c00001b(NV01_MEMORY_SYSTEM)",
    );
    has("gpFifoOffset=0x200600000, gpFifoEntries=1024");
    has("mmap(0x7fbc28cc4000, 0x10000, -w) doorbell page through BAR1 (object 0x5c000006)");
    has("NV_ESC_RM_FREE(hRoot=0xc1d0001f");
    has("engineID=NULL -> COPY2");
    // An unknown command, whole.
    has("cmd=NVXXXX_CTRL_CMD(NV2081_BINAPI, 0x01, 0x08), params={00*992}, paramsSize=992");
    let lines = text.lines().count();
    assert_eq!(lines, log().records.len());
}

#[test]
fn ioctls_in_json() {
    let text = printed(ioctls::Ioctls::json, ioctls::IoctlOptions::default());
    let objects: Vec<serde_json::Value> = text
        .lines()
        .map(|l| serde_json::from_str(l).unwrap())
        .collect();
    assert_eq!(objects.len(), log().records.len());
    for o in &objects {
        for name in ["type", "time_ns", "pid", "tid", "token"] {
            assert!(o.get(name).is_some(), "{name} in {o}");
        }
    }
    let tokens: Vec<u64> = objects
        .iter()
        .filter(|o| o["command"] == 0xc36f_0108u32)
        .map(|o| o["params"]["out"]["workSubmitToken"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens.len(), 8);
    assert_eq!(tokens[0], 0xa);
    let unknown = objects
        .iter()
        .find(|o| o["command"] == 0x2081_0108u32)
        .unwrap();
    assert_eq!(unknown["params"]["in_hex"].as_str().unwrap().len(), 2 * 992);
    let array = printed(
        ioctls::Ioctls::json,
        ioctls::IoctlOptions {
            array: true,
            ..Default::default()
        },
    );
    let array: Vec<serde_json::Value> = serde_json::from_str(&array).unwrap();
    assert_eq!(array, objects);
}

#[test]
fn colour_changes_nothing_but_colour() {
    let plain = printed(ioctls::Ioctls::text, ioctls::IoctlOptions::default());
    let coloured = printed(
        ioctls::Ioctls::text,
        ioctls::IoctlOptions {
            color: Color::Always,
            ..Default::default()
        },
    );
    let mut stripped = String::new();
    let mut rest = coloured.as_str();
    while let Some(at) = rest.find('\u{1b}') {
        stripped.push_str(&rest[..at]);
        rest = rest[at..].split_once('m').unwrap().1;
    }
    stripped.push_str(rest);
    assert_eq!(stripped, plain);
}

#[test]
fn raw_bytes_are_whole() {
    let text = printed(
        ioctls::Ioctls::json,
        ioctls::IoctlOptions {
            raw: true,
            ..Default::default()
        },
    );
    let mut shown = text
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap());
    for record in &log().records {
        let object = shown.next().unwrap();
        let Record::Ioctl(ioctl) = record else {
            continue;
        };
        let hex: String = ioctl
            .output
            .data
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        assert_eq!(object["args"]["out_hex"].as_str(), Some(hex.as_str()));
    }
}

#[test]
fn a_file_that_is_no_log_says_so() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let error = ioctl_log::read_file(&path, Default::default()).unwrap_err();
    assert!(error.to_string().ends_with("it is a text"), "{error}");
    let error = ioctl_log::read_file(Path::new("/nowhere"), Default::default()).unwrap_err();
    assert!(error.to_string().starts_with("/nowhere: "), "{error}");
}

/// Reads a file with these bytes as a log; `None` where it is told to be none at all.
fn read_bytes(name: &str, bytes: &[u8]) -> Option<ioctl_log::Log> {
    let path = std::env::temp_dir().join(format!("nvcap-{name}-{}.gz", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    let log = ioctl_log::read_file(&path, Default::default());
    std::fs::remove_file(&path).unwrap();
    log.ok()
}

#[test]
fn a_compressed_log_that_was_cut_gives_what_is_whole_and_says_so() {
    let bytes = std::fs::read(fixture()).unwrap();
    let whole = read_bytes("whole", &bytes).unwrap();
    assert_eq!(whole.cut, None);
    let mut before = 0;
    for len in (1..150).map(|n| bytes.len() * n / 150) {
        let Some(log) = read_bytes("cut", &bytes[..len]) else {
            assert_eq!(before, 0, "{len}");
            continue;
        };
        assert!(log.cut.is_some(), "{len} of {} B", bytes.len());
        assert!(log.records.len() >= before);
        before = log.records.len();
    }
    assert!(before > 50, "{before}");
    let all_but_the_check = read_bytes("check", &bytes[..bytes.len() - 1]).unwrap();
    assert!(all_but_the_check.cut.is_some());
}

#[test]
fn a_compressed_log_with_something_behind_it_says_so() {
    let bytes = std::fs::read(fixture()).unwrap();
    let whole = read_bytes("whole-too", &bytes).unwrap();
    for behind in [&b"x"[..], b"garbage behind it", &[0; 64], &[0x1f, 0x8b]] {
        let log = read_bytes("behind", &[&bytes, behind].concat()).unwrap();
        assert!(log.cut.is_some(), "{behind:?}");
        assert_eq!(log.records, whole.records);
    }
    // Another whole stream is none of that: that is how logs are put together.
    let log = read_bytes("twice", &[&bytes[..], &bytes].concat()).unwrap();
    assert_eq!(log.cut, None);
    assert_eq!(log.records.len(), 2 * whole.records.len());
}

#[test]
fn a_plain_log_that_was_cut_says_so() {
    use std::io::Read;
    let mut text = Vec::new();
    let file = std::fs::File::open(fixture()).unwrap();
    flate2::read::GzDecoder::new(file)
        .read_to_end(&mut text)
        .unwrap();
    let whole = read_bytes("plain", &text).unwrap();
    assert_eq!((whole.cut.as_ref(), whole.unfinished), (None, 0));
    // Where a record begins nothing tells that more came.
    let begins = |at: usize| {
        text[at - 1] == b'\n'
            && [&b"IOCTL "[..], b"MMAP "]
                .iter()
                .any(|w| text[at..].starts_with(w))
    };
    let places = (1..400).map(|n| text.len() * n / 400);
    // And at every place of some lines' ends.
    let ends = (1..text.len()).filter(|at| text[at - 1] == b'\n').take(400);
    for at in places.chain(ends).chain(text.len() - 200..text.len()) {
        let Some(log) = read_bytes("plain-cut", &text[..at]) else {
            continue;
        };
        let said = log.cut.is_some() || log.unfinished > 0;
        assert_eq!(
            said,
            !begins(at),
            "{at}: {:?}",
            String::from_utf8_lossy(&text[at.saturating_sub(60)..at])
        );
    }
}
