//! `nvcap ioctls`, `channels`, `maps`, `explain` and `--explain-streams` as a user meets them: on the log cut from an
//! H200's, on the whole log where it is present, and on a process of this test's own that looks like one of CUDA's.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::{capture, fixture};
use crate::common::schema::Schema;
use crate::common::waiting::Sleeper;
use serde_json::Value;

/// Runs nvcap, which must end with 0, and returns its output.
fn stdout(args: &[&str]) -> String {
    let out = nvcap(args);
    assert_eq!(
        out.status.code(),
        Some(0),
        "{args:?}: {}",
        text(&out.stderr)
    );
    text(&out.stdout)
}

fn array(text: &str) -> Vec<Value> {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn part() -> String {
    argument(fixture("h200-ioctl-part.log.gz"))
}

/// The whole log.
fn whole() -> Option<String> {
    capture("h200-ioctl.log.gz").map(argument)
}

/// Objects by type.
fn types(lines: &str) -> HashMap<String, usize> {
    let mut types = HashMap::new();
    for line in lines.lines() {
        let object: Value = serde_json::from_str(line).unwrap();
        *types
            .entry(object["type"].as_str().unwrap().to_owned())
            .or_default() += 1;
    }
    types
}

fn tokens(channels: &[Value]) -> Vec<u64> {
    channels
        .iter()
        .map(|c| c["token"].as_u64().unwrap())
        .collect()
}

#[test]
fn every_ioctl_of_a_log_is_shown() {
    let lines = stdout(&["ioctls", "--json", "--from", "ioctl-log", &part()]);
    let types = types(&lines);
    assert_eq!(types["ioctl"], 291);
    assert_eq!(types["mapping"], 31);
    assert_eq!(types.len(), 2, "{types:?}");

    let out = nvcap(&["ioctls", "--from", "ioctl-log", &part()]);
    let shown = text(&out.stdout);
    assert_eq!(shown.lines().count(), 291 + 31);
    assert!(shown.contains("hClass=HOPPER_CHANNEL_GPFIFO_A"), "{shown}");
    assert!(shown.contains(" = NV_OK"));
    assert!(!shown.contains('\x1b'), "a pipe gets no colour");
    assert!(text(&out.stderr).contains("291 ioctls (0 failed)"));
    // Zeros and raw bytes are shown when asked for.
    let more = stdout(&["ioctls", "-v", "--from", "ioctl-log", &part()]);
    assert!(more.len() > shown.len());
    let raw = stdout(&["ioctls", "-vv", "--from", "ioctl-log", &part()]);
    assert!(raw.len() > more.len());
}

#[test]
fn a_log_with_a_line_that_is_none_is_incomplete() {
    let folder = Folder::new("bad-log");
    let log = folder.path("log");
    fs::write(
        &log,
        "IOCTL /dev/nvidiactl fd=8 nr=0xd6 size=8\n in[8] 00000040 00000000\n ret=0 fd=8 nr=0xd6\n out[8] 00000040 \
         00000000\nnonsense\nIOCTL /dev/nvidiactl fd=8 nr=0xd6 size=8\n in[8] 00000040 00000000\n",
    )
    .unwrap();
    let out = nvcap(&["ioctls", "--from", "ioctl-log", &log]);
    assert_eq!(out.status.code(), Some(3));
    let said = text(&out.stderr);
    assert!(
        said.contains("1 line was not understood, the first is line 5"),
        "{said}"
    );
    assert!(
        said.contains("of 1 ioctl what came back is missing"),
        "{said}"
    );
    assert!(text(&out.stdout).contains("NV_ESC_SYS_PARAMS(memblock_size=0x40000000) = 0"));
    let out = nvcap(&["channels", "--json", "--from", "ioctl-log", &log]);
    assert_eq!(
        (out.status.code(), text(&out.stdout).as_str()),
        (Some(3), "[]\n")
    );

    fs::write(&log, "nothing of the kind\n").unwrap();
    let out = nvcap(&["ioctls", "--from", "ioctl-log", &log]);
    assert_eq!(out.status.code(), Some(1));
    assert!(text(&out.stderr).contains("no IOCTL or MMAP line"));
}

#[test]
fn channels_of_a_log() {
    let folder = Folder::new("channels");
    let file = folder.path("channels.json");
    let written = stdout(&[
        "channels",
        "--json",
        "-o",
        &file,
        "--from",
        "ioctl-log",
        &part(),
    ]);
    assert_eq!(written, "");
    let channels = array(&fs::read_to_string(&file).unwrap());
    assert_eq!(
        tokens(&channels),
        [
            0xa, 0xb, 0x10012, 0x10013, 0x30016, 0x30017, 0xa001a, 0xa001b
        ]
    );
    let first = &channels[0];
    assert_eq!(first["chid"], 10);
    assert_eq!(first["runlist"], 0);
    assert_eq!(first["class"], 0xc86f);
    assert_eq!(first["entries"], 1024);
    assert_eq!(first["ring"], 0x2_0060_0000u64);
    assert_eq!(first["userd"], 0x2_0060_2000u64);
    assert_eq!(first["engines"], serde_json::json!(["GR0", "COPY1"]));
    assert_eq!(first["pid"], Value::Null, "a log has no process id");
    assert_eq!(first["submissions"], Value::Null, "and no submissions");
    assert_eq!(channels[2]["tsg"], channels[3]["tsg"]);
    assert_ne!(channels[2]["tsg"], channels[1]["tsg"]);

    let table = stdout(&["channels", "--from", "ioctl-log", &part()]);
    assert!(
        table.starts_with("process ?: 8 channels, driver 580.159.04\n"),
        "{table}"
    );
    assert!(table.contains("GH100"));
    assert!(table.contains("runlist 10"));
}

#[test]
fn a_process_that_tidied_up_is_shown_as_it_was() {
    use nvcap_decode::record::{At, CpuVa, Life, Process, Record, Unmapping};
    use nvcap_recording::file::ioctl_log;
    use nvcap_show::output::model_view::ModelView;
    use nvcap_show::pipeline::{Pipeline, PipelineOptions};

    let options = ioctl_log::LogOptions {
        pid: 77,
        driver_version: None,
    };
    let log = ioctl_log::read_file(Path::new(&part()), options).unwrap();
    let shown = |also: Vec<Record>| {
        let mut gather = ModelView::new(true);
        let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(&mut gather)]);
        for record in log.records.iter().chain(&also) {
            pipeline.record(record.clone()).unwrap();
        }
        pipeline.finish().unwrap();
        (gather.channels_json(), gather.maps_json())
    };
    let at = At {
        time_ns: 1 << 40,
        pid: 77,
        tid: 77,
    };
    // The ring's mapping, then every channel's client, then the process.
    let mut freed: Vec<Record> = vec![Record::Unmapping(Unmapping {
        at,
        start: CpuVa(0x2_0060_0000),
        len: 2 << 20,
    })];
    let free = |r: &&Record| matches!(r, Record::Ioctl(i) if i.request & 0xff == 0x29);
    let Some(Record::Ioctl(free)) = log.records.iter().find(free) else {
        panic!("the log has a free");
    };
    let (before, maps) = shown(Vec::new());
    assert_eq!(before.len(), 8);
    let client = u32::try_from(before[0]["client"].as_u64().unwrap()).unwrap();
    let mut free = free.clone();
    free.at = at;
    for bytes in [&mut free.input.data, &mut free.output.data] {
        for word in [0, 4, 8] {
            bytes[word..word + 4].copy_from_slice(&client.to_le_bytes());
        }
    }
    freed.push(Record::Ioctl(free));
    freed.push(Record::Process(Process {
        at,
        life: Life::Exit { process: true },
    }));
    let (after, maps_after) = shown(freed);
    assert_eq!(before, after);
    assert_eq!(maps, maps_after);
}

#[test]
fn maps_of_a_log() {
    let maps = array(&stdout(&["maps", "--json", "--from", "ioctl-log", &part()]));
    assert_eq!(maps.len(), 31);
    let doorbells: Vec<&Value> = maps
        .iter()
        .filter(|m| m["what"].as_str().unwrap().starts_with("doorbell page"))
        .collect();
    assert_eq!(doorbells.len(), 2);
    assert!(
        doorbells
            .iter()
            .any(|m| m["what"].as_str().unwrap().contains("BAR1"))
    );
    let table = stdout(&["maps", "--from", "ioctl-log", &part()]);
    assert!(table.contains("rings or USERD of 8 channels"), "{table}");
    assert!(table.contains("31 mappings"));
}

#[test]
fn the_whole_log_of_an_h200() {
    let Some(log) = whole() else { return };
    let lines = stdout(&["ioctls", "--json", "--from", "ioctl-log", &log]);
    assert_eq!(types(&lines)["ioctl"], 475);
    let channels = array(&stdout(&[
        "channels",
        "--json",
        "--from",
        "ioctl-log",
        &log,
    ]));
    let expected: Vec<u64> = (0xa..=0x11)
        .chain(0x10012..=0x10015)
        .chain(0x30016..=0x30019)
        .chain(0xa001a..=0xa001d)
        .collect();
    assert_eq!(tokens(&channels), expected);
    for (c, i) in channels.iter().zip(0u64..) {
        assert_eq!(c["ring"], 0x2_0060_0000 + i * 0x3000);
        assert_eq!(c["userd"], 0x2_0060_2000 + i * 0x3000);
        let token = c["token"].as_u64().unwrap();
        assert_eq!(c["chid"], token & 0xfff);
        assert_eq!(c["runlist"], token >> 16);
    }
    let mut groups: Vec<u64> = channels
        .iter()
        .map(|c| c["tsg"].as_u64().unwrap())
        .collect();
    groups.dedup();
    assert_eq!(groups.len(), 4);
}

#[test]
fn what_is_not_there_is_said() {
    for command in ["ioctls", "channels", "maps"] {
        let out = nvcap(&[command]);
        assert_eq!(out.status.code(), Some(2), "{command}");
        assert!(text(&out.stderr).contains(&format!("nvcap {command} -- ./vadd")));
        let out = nvcap(&[command, "--from", "ioctl-log"]);
        assert_eq!(out.status.code(), Some(2), "{command} without a file");
        let out = nvcap(&[command, "--from", "ioctl-log", "/nonexistent/log"]);
        assert_eq!(out.status.code(), Some(1));
        assert!(text(&out.stderr).contains("/nonexistent/log"));
    }
    for command in ["channels", "maps"] {
        let out = nvcap(&[command, "-p", "4194305"]);
        assert_eq!(out.status.code(), Some(1));
        let said = text(&out.stderr);
        assert!(said.contains("there is no such process"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
#[ignore = "needs the right to look into another process: cargo xtask test runs it as root"]
fn a_process_that_has_nothing_to_do_with_a_gpu_has_no_channel() {
    let child = Sleeper::start();
    let out = nvcap(&["channels", "--json", "-p", &child.id().to_string()]);
    if text(&out.stderr).contains("cap_sys_ptrace") {
        println!(
            "NOT RUN a_process_that_has_nothing_to_do_with_a_gpu_has_no_channel: this user may not look into its own processes"
        );
        return;
    }
    assert_eq!(
        (out.status.code(), text(&out.stdout).as_str()),
        (Some(0), "[]\n")
    );
    assert!(text(&out.stderr).contains("no channel was found"));
}

#[test]
fn explain_names_classes_controls_and_statuses() {
    assert_eq!(
        stdout(&["explain", "control", "20801218"]),
        "control 0x20801218 NV2080_CTRL_CMD_GR_GET_CTX_BUFFER_SIZE\n"
    );
    assert_eq!(
        stdout(&["explain", "status", "0x57"]),
        "status 0x57 NV_ERR_OBJECT_NOT_FOUND\n"
    );
    assert_eq!(
        stdout(&["explain", "class", "2080"]),
        "class 0x2080 NV20_SUBDEVICE_0\n"
    );
    assert!(stdout(&["explain", "class", "c8b5"]).contains("LAUNCH_DMA"));
    let object: Value =
        serde_json::from_str(&stdout(&["explain", "class", "a06c", "--json"])).unwrap();
    assert_eq!(object["name"], "KEPLER_CHANNEL_GROUP_A");
    assert_eq!(nvcap(&["explain", "class", "fffe"]).status.code(), Some(1));
    assert_eq!(nvcap(&["explain", "class"]).status.code(), Some(2));
}

#[test]
fn streams_follow_the_ledger_and_ignore_filters() {
    let capture = argument(fixture("h200-cut.orc"));
    let shown = nvcap(&[
        "decode",
        "--from",
        "orc",
        &capture,
        "-q",
        "--explain-streams",
    ]);
    let shown = text(&shown.stdout);
    let (ledger, streams) = shown
        .split_once("streams: who shared which channel\n")
        .unwrap();
    assert!(ledger.contains("42 submissions"), "{ledger}");
    assert!(streams.contains("channel 6   0x10012"), "{streams}");

    let schema = Schema::of_output();
    let folder = Folder::new("streams");
    let file = folder.path("out.jsonl");
    let last = |more: &[&str]| {
        let mut args = vec![
            "decode",
            "--from",
            "orc",
            &capture,
            "--json",
            "--explain-streams",
        ];
        args.extend(["--force", "-o", &file]);
        args.extend(more);
        nvcap(&args);
        let lines: Vec<Value> = fs::read_to_string(&file)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect();
        for line in &lines {
            assert!(schema.check(line).is_ok(), "{}", schema.explain(line));
        }
        let n = lines.len();
        assert_eq!(lines[n - 2]["type"], "ledger");
        assert_eq!(lines[n - 1]["type"], "streams");
        (n, lines[n - 1].clone())
    };
    let (all, streams) = last(&[]);
    let (few, filtered) = last(&["-e", "op=launch"]);
    assert!(few < all, "the filter has left out something");
    assert_eq!(streams, filtered);
    let counted: u64 = streams["channels"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["submissions"].as_u64().unwrap())
        .sum();
    assert_eq!(counted, 42);
}

/// A process laid out as CUDA lays itself out, as far as /proc shows it: this test itself, with a file under the
/// name of a GPU's mapped at a ring's place and at a doorbell's.
mod look {
    use std::os::fd::AsRawFd;
    use std::process::Output;

    use crate::common::cli::nvcap_with;

    use super::*;

    const SLOT: usize = 0x3000;

    /// As the tests' own GPU: plain files count as the driver's.
    fn nvcap(args: &[&str]) -> Output {
        nvcap_with(&[("NVCAP_DEVICES_BY_NAME", "1")], args)
    }

    fn stdout(args: &[&str]) -> String {
        let out = nvcap(args);
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        text(&out.stdout)
    }

    struct Mapped(*mut u8, usize);

    impl Mapped {
        /// At `hint` where that is free.
        fn new(file: &fs::File, hint: usize, len: usize, protection: i32) -> Self {
            // SAFETY: a new mapping that replaces none, given back when dropped.
            let at = unsafe {
                libc::mmap(
                    hint as *mut libc::c_void,
                    len,
                    protection,
                    libc::MAP_SHARED,
                    file.as_raw_fd(),
                    0,
                )
            };
            assert_ne!(at, libc::MAP_FAILED);
            Self(at.cast(), len)
        }

        fn put(&self, at: usize, bytes: &[u8]) {
            assert!(at + bytes.len() <= self.1);
            // SAFETY: within the mapping, which nobody else in this process uses.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.0.add(at), bytes.len()) };
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: made by `new`, used no more.
            unsafe { libc::munmap(self.0.cast(), self.1) };
        }
    }

    #[test]
    fn one_look_finds_rings_positions_and_doorbell() {
        let folder = Folder::new("look");
        fs::create_dir_all(folder.0.join("dev")).unwrap();
        let open = |name: &str| {
            let file = fs::OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(folder.0.join("dev").join(name))
                .unwrap();
            file.set_len(2 << 20).unwrap();
            file
        };
        let (gpu, control) = (open("nvidia3"), open("nvidiactl"));
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let rings = Mapped::new(&gpu, 0, 2 << 20, rw);
        let doorbell = Mapped::new(&gpu, 0, 0x10000, libc::PROT_WRITE);
        let pushbuffers = Mapped::new(&control, 0x2_0080_0000, 0x20000, rw);
        // Where libcuda has them: a ring entry has 40 bits for an address.
        assert_eq!(pushbuffers.0 as u64 >> 40, 0, "{:p}", pushbuffers.0);
        // Channels 0 and 2 have been used, 1 not yet; entries are 8 words of the pushbuffer: one header, seven data.
        pushbuffers.put(
            0,
            &(1u32 << 29 | 7 << 16 | 1 << 13 | 0x1b4 >> 2).to_le_bytes(),
        );
        let entry = (pushbuffers.0 as u64) & 0xff_ffff_fffc | 8 << 42;
        for (slot, get, put) in [(0, 5u32, 7u32), (2, 1023, 0)] {
            let userd = slot * SLOT + 0x2000;
            rings.put(userd + 0x88, &get.to_le_bytes());
            rings.put(userd + 0x8c, &put.to_le_bytes());
            // The ring of the last has been filled to its end.
            for at in 0..if put == 0 { 1024 } else { put as usize } {
                rings.put(slot * SLOT + 8 * at, &entry.to_le_bytes());
            }
        }
        let pid = std::process::id().to_string();
        let out = nvcap(&["channels", "--json", "-p", &pid]);
        if text(&out.stderr).contains("cap_sys_ptrace") {
            println!("not run: this user may not look into its own processes");
            return;
        }
        assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
        let channels = array(&text(&out.stdout));
        let fits = |name: &str, all: &[Value]| {
            let all = Value::Array(all.to_vec());
            Schema::of(name)
                .check(&all)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
        };
        fits("channels", &channels);
        let base = rings.0 as u64;
        let of = |c: &Value, what: &str| c[what].as_u64().unwrap();
        let seen: Vec<_> = channels
            .iter()
            .map(|c| (of(c, "ring") - base, of(c, "gp_get"), of(c, "gp_put")))
            .collect();
        let slot = SLOT as u64;
        assert_eq!(seen, [(0, 5, 7), (slot, 0, 0), (2 * slot, 1023, 0)]);
        for c in &channels {
            assert_eq!(c["pid"], std::process::id());
            assert_eq!(c["gpu"], 3);
            assert_eq!(c["origin"], "found");
            assert_eq!(of(c, "userd"), of(c, "ring") + 0x2000);
            assert_eq!(c["entries"], 1024);
            assert_eq!(c["token"], Value::Null);
            assert_eq!(c["submissions"], Value::Null);
        }
        assert!(
            text(&out.stderr).contains("24 more slots"),
            "{}",
            text(&out.stderr)
        );
        let table = stdout(&["channels", "-p", &pid]);
        assert!(
            table.contains(" 5/7 ") && table.contains(" 1023/0 "),
            "{table}"
        );

        let maps = array(&stdout(&["maps", "--json", "-p", &pid]));
        fits("maps", &maps);
        let map = |at: *mut u8| {
            let found = maps.iter().find(|m| m["start"] == at as u64);
            found.unwrap_or_else(|| panic!("{at:?} in {maps:?}"))
        };
        assert_eq!(map(doorbell.0)["what"], "doorbell page (by its shape)");
        assert_eq!(map(rings.0)["channels"].as_array().unwrap().len(), 3);
        assert_eq!(map(rings.0)["device"], "/dev/nvidia3");
        assert_eq!(map(rings.0)["found"], true);
        assert!(
            map(pushbuffers.0)["what"]
                .as_str()
                .unwrap()
                .starts_with("system memory")
        );
        assert_eq!(maps.len(), 3);

        // Without that word they are what they are: files with a name.
        for command in ["channels", "maps"] {
            let out = nvcap_with(&[], &[command, "--json", "-p", &pid]);
            let answer = (out.status.code(), text(&out.stdout));
            assert_eq!(answer, (Some(0), "[]\n".to_owned()), "{command}");
        }
        let out = nvcap_with(&[], &["dump", "-p", &pid]);
        let said = text(&out.stderr);
        assert!(said.contains("uses no GPU"), "{said}");
        assert_eq!(out.status.code(), Some(4));
    }
}
