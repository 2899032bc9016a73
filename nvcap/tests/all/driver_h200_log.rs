//! The model against the log of a vector-add process on an H200: tests/captures/h200-ioctl.log.gz, every ioctl
//! and every mmap of it.

use crate::common::cli::{Folder, nvcap, text};
use crate::common::files;
use std::collections::BTreeSet;
use std::{fs, io::Read as _};

use nvcap_decode::{
    decode::event::Place,
    driver::{Aperture, Call, Change, Family, Model, ModelOptions, Subject, Version, names},
    record::{CpuVa, Device, Record},
    wire::GpuVa,
};
use nvcap_recording::file::ioctl_log;

const PID: u32 = 4242;

fn log(driver_version: Option<Version>) -> Option<ioctl_log::Log> {
    let path = files::capture("h200-ioctl.log.gz")?;
    let options = ioctl_log::LogOptions {
        pid: PID,
        driver_version,
    };
    Some(ioctl_log::read_file(&path, options).expect("the log reads"))
}

fn expected_tokens() -> Vec<u32> {
    (0xa..=0x11)
        .chain(0x10012..=0x10015)
        .chain(0x30016..=0x30019)
        .chain(0xa001a..=0xa001d)
        .collect()
}

fn run(log: &ioctl_log::Log, options: ModelOptions) -> (Model, Vec<Change>) {
    let mut model = Model::new(options);
    let changes = log.records.iter().flat_map(|r| model.record(r)).collect();
    (model, changes)
}

#[test]
fn nothing_of_the_log_is_dropped() {
    let Some(log) = log(None) else { return };
    assert!(log.bad_lines.is_empty(), "{:?}", log.bad_lines);
    assert_eq!(log.unfinished, 0);
    let ioctls = log.records.iter().filter(|r| matches!(r, Record::Ioctl(_)));
    assert_eq!(ioctls.count(), 475);
    let maps = log
        .records
        .iter()
        .filter(|r| matches!(r, Record::Mapping(_)));
    assert_eq!(maps.count(), 31);
    let (model, _) = run(&log, ModelOptions::default());
    let stats = model.stats();
    assert_eq!((stats.ioctls, stats.failed, stats.refused), (475, 0, 0));
}

#[test]
fn every_control_and_every_allocation_is_named() {
    let Some(log) = log(None) else { return };
    let version = Some(Version::new(580, 159, 4));
    let (mut controls, mut allocations, mut unlisted) = (0, 0, BTreeSet::new());
    for record in &log.records {
        let Record::Ioctl(ioctl) = record else {
            continue;
        };
        let call = Call::read(ioctl, version);
        let name = call.name(version);
        assert!(!name.contains("0x"), "{name}");
        match call.subject {
            Subject::Control(command) => {
                controls += 1;
                let name = names::control(command, version);
                assert!(name.contains("_CTRL_"), "{name}");
                assert!(!name.starts_with("NVXXXX_CTRL_CMD(0x"), "{name}");
                if names::known_control(command, version).is_none() {
                    unlisted.insert(name);
                }
            }
            Subject::Class(class) => {
                assert!(names::is_known_class(class), "{class:#x}");
                // Four are NV_ESC_RM_ALLOC_MEMORY.
                allocations += usize::from(call.nr == 0x2b);
            }
            Subject::None => assert!(call.family == Family::Uvm || call.nr != 0x2a),
        }
    }
    assert_eq!(controls, 194);
    assert_eq!(allocations, 122);
    // No public header or source names these: they are for the GSP firmware, or of the binary API.
    let unlisted: Vec<_> = unlisted.iter().map(AsRef::as_ref).collect();
    assert_eq!(
        unlisted,
        [
            "NV2080_CTRL_CMD(CLK_LEGACY_NON_PRIVILEGED, 0x38)",
            "NV2080_CTRL_CMD(GPU_LEGACY_NON_PRIVILEGED, 0x59)",
            "NV2080_CTRL_CMD(GPU_LEGACY_NON_PRIVILEGED, 0x62)",
            "NVXXXX_CTRL_CMD(NV2081_BINAPI, 0x01, 0x08)",
        ]
    );
}

#[test]
fn twenty_channels_with_the_tokens_and_rings_of_the_capture() {
    let Some(log) = log(None) else { return };
    let (model, changes) = run(&log, ModelOptions::default());
    let channels: Vec<_> = model.channels().collect();
    assert_eq!(channels.len(), 20);
    let tokens: Vec<_> = channels.iter().filter_map(|c| c.token).collect();
    assert_eq!(tokens, expected_tokens());
    for (i, c) in (0u64..).zip(&channels) {
        assert_eq!(c.pid, PID);
        assert_eq!(c.gpu, Some(0));
        assert_eq!(c.class, Some(0xc86f));
        assert_eq!(c.entries, Some(1024));
        let ring = 0x2_0060_0000 + i * 0x3000;
        assert_eq!(c.ring_gpu, Some(GpuVa(ring)));
        assert_eq!(c.ring, Some(CpuVa(ring)));
        assert_eq!(c.userd, Some(CpuVa(ring + 0x2000)));
        assert_eq!(c.chid(), Some(0xa + u32::try_from(i).unwrap()));
        // The notifier of each channel is a page of its own; the token is record 1 of it.
        let notifier = c.token_at.expect("notifier mapped").0;
        assert_eq!(notifier & 0xfff, 0x18);
    }
    let runlists: BTreeSet<_> = channels.iter().filter_map(|c| c.runlist()).collect();
    assert_eq!(runlists, BTreeSet::from([0, 1, 3, 10]));
    assert_eq!(channels[0].engines(), ["GR0", "COPY1"]);
    assert_eq!(channels[8].engines(), ["COPY2"]);
    assert_eq!(channels[12].engines(), ["COPY3"]);
    assert_eq!(channels[16].engines(), ["COPY4"]);
    assert_eq!(channels[0].bound.len(), 2);

    let groups = model.groups();
    assert_eq!(groups.len(), 4);
    let sizes: Vec<_> = groups.iter().map(|g| g.channels.len()).collect();
    assert_eq!(sizes, [8, 4, 4, 4]);

    // Said at once, each once, and the token after its channel.
    let said: Vec<_> = changes
        .iter()
        .filter_map(|c| match c {
            Change::Channel(c) => Some(c.id),
            _ => None,
        })
        .collect();
    assert_eq!(said.len(), 20);
    let said_tokens: Vec<_> = changes
        .iter()
        .filter_map(|c| match c {
            Change::Token { channel, token } => Some((*channel, *token)),
            _ => None,
        })
        .collect();
    let expected: Vec<_> = said.iter().copied().zip(expected_tokens()).collect();
    assert_eq!(said_tokens, expected);
}

#[test]
fn the_channels_are_those_of_the_mixed_capture() {
    let (Some(log), Some(path)) = (log(None), files::capture("h200-mixed.channels")) else {
        return;
    };
    let (model, _) = run(&log, ModelOptions::default());
    let text = std::fs::read_to_string(path).unwrap();
    let word = |line: &str, name: &str| -> String {
        let mut words = line.split_whitespace();
        words.find(|w| *w == name);
        words.next().unwrap_or_default().to_owned()
    };
    let hex = |s: String| u64::from_str_radix(s.trim_start_matches("0x"), 16).unwrap();
    let mut seen = 0;
    for line in text.lines().filter(|l| l.contains(" gpfifo ")) {
        let ring = hex(word(line, "gpfifo"));
        let channel = model
            .channels()
            .find(|c| c.ring_gpu == Some(GpuVa(ring)))
            .expect("the same ring");
        assert_eq!(channel.userd.unwrap().0 + 0x8c, hex(word(line, "put")));
        assert_eq!(u64::from(channel.class.unwrap()), hex(word(line, "cls")));
        let token = text
            .lines()
            .find(|l| l.contains(&format!("token ch {} =", word(line, "channel"))))
            .map(|l| hex(word(l, "=")))
            .unwrap();
        assert_eq!(u64::from(channel.token.unwrap()), token);
        seen += 1;
    }
    assert_eq!(seen, 20);
}

#[test]
fn two_doorbell_pages_the_second_through_bar1() {
    let Some(log) = log(None) else { return };
    let (model, changes) = run(&log, ModelOptions::default());
    let pages: Vec<_> = changes
        .iter()
        .filter_map(|c| match c {
            Change::DoorbellPage {
                pid,
                gpu_minor,
                cpu_va,
                len,
                bar1,
                object,
            } => Some((
                *pid,
                *gpu_minor,
                cpu_va.0,
                *len,
                *bar1,
                object.unwrap().handle,
            )),
            _ => None,
        })
        .collect();
    assert_eq!(
        pages,
        [
            (
                PID,
                Some(0),
                0x7fbc_28cd_4000,
                0x10000,
                Some(false),
                0x5c00_0005
            ),
            (
                PID,
                Some(0),
                0x7fbc_28cc_4000,
                0x10000,
                Some(true),
                0x5c00_0006
            ),
        ]
    );
    assert_eq!(model.doorbells().count(), 2);
}

#[test]
fn the_gpu_and_the_driver_are_known() {
    let Some(log) = log(None) else { return };
    let (model, changes) = run(&log, ModelOptions::default());
    let version = Version::new(580, 159, 4);
    assert_eq!(model.version(), Some(version));
    assert!(changes.contains(&Change::DriverVersion(version)));
    let gpu = model.gpu_by_minor(0).expect("GPU 0");
    assert_eq!(gpu.pci_address().as_deref(), Some("0000:00:06.0"));
    assert_eq!(gpu.chip().as_deref(), Some("GH100"));
    assert_eq!(gpu.device_id, Some(0x2335));
    assert_eq!(
        gpu.uuid_text().as_deref(),
        Some("GPU-ce9418df-f207-9da0-8305-06ca8af10ca9")
    );
}

#[test]
fn addresses_are_resolved_to_objects_and_places() {
    let Some(log) = log(None) else { return };
    let (model, _) = run(&log, ModelOptions::default());
    // Pushbuffers: 56 MiB of system memory.
    let pushbuffer = model.resolve(PID, GpuVa(0x2_0080_1234)).unwrap();
    assert_eq!(pushbuffer.object.unwrap().handle, 0x5c00_0019);
    assert_eq!(pushbuffer.size, Some(56 << 20));
    assert_eq!(pushbuffer.aperture, Some(Aperture::System));
    assert_eq!(pushbuffer.cpu, Some(CpuVa(0x2_0080_1234)));
    assert_eq!(model.place(PID, GpuVa(0x2_0080_1234)), Some(Place::Host));
    // Rings: 2 MiB of video memory.
    let ring = model.resolve(PID, GpuVa(0x2_0060_3000)).unwrap();
    assert_eq!(ring.object.unwrap().handle, 0x5c00_0017);
    assert_eq!(ring.offset, 0x3000);
    assert_eq!(ring.aperture, Some(Aperture::Video));
    assert_eq!(model.place(PID, GpuVa(0x2_0060_3000)), Some(Place::Device));
    // Video memory without a CPU mapping.
    let device = model.resolve(PID, GpuVa(0x7fba_0d00_0000)).unwrap();
    assert_eq!(device.aperture, Some(Aperture::Video));
    assert_eq!(device.cpu, None);
    // Pageable memory made known to the GPU where it lies.
    let pinned = model.resolve(PID, GpuVa(0x7fba_0e80_0010)).unwrap();
    assert_eq!(pinned.class, Some(0x71));
    assert_eq!(pinned.cpu, Some(CpuVa(0x7fba_0e80_0010)));
    assert_eq!(model.place(PID, GpuVa(0x7fba_0e80_0010)), Some(Place::Host));
    // A doorbell page is no memory, and nothing is known of the stack.
    assert!(model.resolve(PID, GpuVa(0x7fbc_28cd_4090)).is_none());
    assert!(model.place(PID, GpuVa(0x7ffd_0000_0000)).is_none());
    assert!(model.translations(PID).is_empty());
    let all = model.all_translations(PID);
    assert!(all.iter().all(|t| t.gpu.0 == t.cpu.0));
    // Rings, pushbuffers and two more lie side by side.
    assert!(
        all.iter()
            .any(|t| t.gpu.0 <= 0x2_0060_0000 && t.gpu.0 + t.len >= 0x2_0060_0000 + (58 << 20))
    );
    let maps = model.mappings(PID);
    assert_eq!(maps.len(), 31);
    let rings = maps.iter().find(|m| m.start.0 == 0x2_0060_0000).unwrap();
    assert_eq!(rings.channels.len(), 20);
    assert_eq!(rings.device, Device::Gpu(0));
}

/// The log, of a release that is newer than the tables.
fn of_newer_release(folder: &Folder) -> String {
    let path = files::capture("h200-ioctl.log.gz").expect("a capture");
    let mut text = String::new();
    let file = fs::File::open(path).expect("the capture opens");
    flate2::read::GzDecoder::new(file)
        .read_to_string(&mut text)
        .expect("text");
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let (from, to) = (hex(b"580.159.04"), hex(b"610.43.02\0"));
    let mut replaced = 0;
    let line = |line: &str| {
        let Some((head, words)) = line.split_once("] ").filter(|(h, _)| h.starts_with(' ')) else {
            return line.to_owned();
        };
        let digits = words.replace(' ', "");
        replaced += digits.matches(&from).count();
        let digits = digits.replace(&from, &to);
        let words: Vec<&str> = (0..digits.len())
            .step_by(8)
            .map(|at| &digits[at..digits.len().min(at + 8)])
            .collect();
        format!("{head}] {}", words.join(" "))
    };
    let lines: Vec<String> = text.lines().map(line).collect();
    assert!(replaced > 0, "the log tells its release");
    let path = folder.path("newer.log");
    fs::write(&path, lines.join("\n")).expect("the log is written");
    path
}

/// Each command that reads it says so, once.
#[test]
fn a_newer_release_is_said_once() {
    let folder = Folder::new("newer");
    let log = of_newer_release(&folder);
    for args in [
        &["ioctls", &log][..],
        &["ioctls", "-v", &log],
        &["channels", &log],
        &["maps", &log],
    ] {
        let out = nvcap(args);
        let said = text(&out.stderr);
        let words = "610.43.02 is newer than those that nvcap knows";
        assert_eq!(said.matches(words).count(), 1, "{args:?}: {said}");
    }
}

/// A driver newer than the tables has a handle more in a channel's parameters, and no call names their size: the memory of GP_GET and GP_PUT is
/// found where it is, by its handle.
#[test]
fn a_channel_of_a_newer_release_is_placed_by_evidence() {
    let Some(mut log) = log(None) else { return };
    let grown = |bytes: &mut Vec<u8>| {
        bytes.splice(64..64, [0; 4]);
        bytes.splice(32..32, [0; 4]);
    };
    let mut channels = 0;
    for record in &mut log.records {
        let Record::Ioctl(ioctl) = record else {
            continue;
        };
        let is_channel = Call::read(ioctl, None).subject == Subject::Class(0xc86f);
        let nested = ioctl.nested.as_mut().filter(|_| is_channel);
        for bytes in nested
            .into_iter()
            .flat_map(|n| [&mut n.input, &mut n.output])
        {
            grown(&mut bytes.data);
            channels += 1;
        }
    }
    assert_eq!(channels, 2 * 20);
    // Without the release that the log's own calls tell.
    log.records.retain(|record| match record {
        Record::Ioctl(ioctl) => {
            let told = |bytes: &[u8]| bytes.windows(10).any(|w| w == b"580.159.04");
            let nested = ioctl.nested.as_ref();
            !told(&ioctl.output.data) && !nested.is_some_and(|n| told(&n.output.data))
        }
        _ => true,
    });
    let userds = |version| {
        let options = ModelOptions {
            driver_version: Some(version),
        };
        let (model, _) = run(&log, options);
        model.channels().filter(|c| c.userd.is_some()).count()
    };
    assert_eq!(userds(Version::new(610, 43, 2)), 20);
    assert_eq!(userds(Version::new(595, 45, 4)), 0, "misread");
}
