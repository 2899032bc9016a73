//! Tests of nvcap's files with Wireshark's own programs (capinfos, tshark, editcap, mergecap) and the dissector that nvcap installs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files;
use crate::common::tshark::{self, is_here};
use nvcap_recording::recording::{HostGpu, TraceInfo, Writer};
use serde_json::Value;

/// The capture of the fixtures as a recording, and with what the decoder says.
struct Files {
    folder: Folder,
    raw: String,
    decoded: String,
}

impl Files {
    fn new(name: &str) -> Self {
        let folder = Folder::new(name);
        let capture = argument(files::fixture("h200-cut.orc"));
        let (raw, decoded) = (folder.path("raw.pcapng"), folder.path("decoded.pcapng"));
        let made = nvcap(&["export", "pcapng", &capture, "-o", &raw]);
        assert_eq!(made.status.code(), Some(3), "{}", text(&made.stderr));
        let made = nvcap(&["export", "wireshark", &raw, "-o", &decoded]);
        assert_eq!(made.status.code(), Some(3), "{}", text(&made.stderr));
        tshark::install(&folder);
        Self {
            folder,
            raw,
            decoded,
        }
    }

    fn tshark(&self, args: &[&str]) -> String {
        tshark::tshark(&self.folder, args)
    }

    fn values(&self, file: &str, filter: &str, field: &str) -> Vec<String> {
        tshark::values(&self.folder, file, filter, field)
    }
}

/// The objects of `nvcap decode --json`.
fn objects(args: &[&str]) -> Vec<Value> {
    let all: Vec<&str> = ["decode", "--json"]
        .into_iter()
        .chain(args.iter().copied())
        .collect();
    let out = nvcap(&all);
    let lines = text(&out.stdout);
    { lines.lines() }
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(out: &std::process::Output, name: &str) -> u64 {
    let text = text(&out.stdout);
    let line = text.lines().find_map(|l| l.strip_prefix(name));
    let value = line.unwrap_or_else(|| panic!("no {name:?} in {text}"));
    value.trim().parse().unwrap()
}

fn run(program: &str, args: &[&str]) -> std::process::Output {
    let out = Command::new(program).args(args).output().unwrap();
    assert!(out.status.success(), "{program}: {}", text(&out.stderr));
    out
}

#[test]
fn a_file_for_wireshark_is_decoded_as_the_recording() {
    let files = Files::new("wireshark-decode");
    let same = |args: &[&str]| {
        let of = |file: &str| {
            let all: Vec<&str> = ["decode", file]
                .into_iter()
                .chain(args.iter().copied())
                .collect();
            nvcap(&all).stdout
        };
        let (raw, decoded) = (of(&files.raw), of(&files.decoded));
        assert!(raw.len() > 10_000, "{args:?}");
        assert!(raw == decoded, "{args:?}");
    };
    same(&["--json", "-vv"]);
    same(&["-vvv"]);
    // And again: what the decoder said before is replaced.
    let again = files.folder.path("again.pcapng");
    nvcap(&["export", "wireshark", &files.decoded, "-o", &again]);
    assert_eq!(
        fs::metadata(&again).unwrap().len(),
        fs::metadata(&files.decoded).unwrap().len()
    );
}

/// The processor and the GPUs of the machine; of a recording without GPUs, no word of one.
#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn capinfos_and_tshark_show_the_machine() {
    if !is_here("capinfos_and_tshark_show_the_machine") {
        return;
    }
    let files = Files::new("wireshark-machine");
    let file = files.folder.path("machine.pcapng");
    let gpu = |minor, uuid: Option<&str>| HostGpu {
        minor,
        model: Some("NVIDIA H200".to_owned()),
        uuid: uuid.map(str::to_owned),
        bus: Some(format!("0000:0{minor}:00.0")),
    };
    let written = |gpus: Vec<HostGpu>| {
        let info = TraceInfo {
            processor: "a processor".to_owned(),
            gpus,
            ..TraceInfo::default()
        };
        let mut bytes = Vec::new();
        Writer::new(info, 1).begin_section(&mut bytes);
        fs::write(&file, bytes).unwrap();
        text(&run("capinfos", &["-F", &file]).stdout)
    };
    let line = |shown: &str| {
        let line = shown
            .lines()
            .find_map(|l| l.strip_prefix("Capture hardware:"));
        line.unwrap_or_else(|| panic!("{shown}")).trim().to_owned()
    };
    let shown = line(&written(vec![gpu(0, Some("GPU-12ab")), gpu(1, None)]));
    let wanted =
        "a processor; GPU 0: NVIDIA H200, 0000:00:00.0, GPU-12ab; GPU 1: NVIDIA H200, 0000:01:00.0";
    assert_eq!(shown, wanted);
    for (field, wanted) in [
        (
            "nvcap.hostgpu.model",
            &["NVIDIA", "H200", "NVIDIA", "H200"][..],
        ),
        ("nvcap.hostgpu.uuid", &["GPU-12ab"]),
        ("nvcap.hostgpu.bus", &["0000:00:00.0", "0000:01:00.0"]),
        // The first GPU's number is 0, which protobuf leaves out; and none is the packet's own GPU.
        ("nvcap.hostgpu.minor", &["1"]),
        ("nvcap.gpu", &[]),
    ] {
        assert_eq!(
            files.values(&file, "nvcap.kind == \"trace\"", field),
            wanted
        );
    }
    assert_eq!(line(&written(Vec::new())), "a processor");
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn capinfos_counts_packets_and_channels() {
    if !is_here("capinfos_counts_packets_and_channels") {
        return;
    }
    let files = Files::new("wireshark-capinfos");
    let all = objects(&[&files.raw]);
    let of = |kind: &str| all.iter().filter(|o| o["type"] == kind).count() as u64;
    for file in [&files.raw, &files.decoded] {
        let told = run("capinfos", &["-M", "-c", "-I", file]);
        // The trace's beginning, a moment of idleness, and the end have packets, too.
        assert_eq!(
            number(&told, "Number of packets:"),
            of("submission") + of("channel") + 3
        );
        assert_eq!(
            number(&told, "Number of interfaces in file:"),
            of("channel") + 1
        );
    }
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn tshark_shows_what_nvcap_decodes() {
    if !is_here("tshark_shows_what_nvcap_decodes") {
        return;
    }
    let files = Files::new("wireshark-tshark");
    let all = objects(&["-v", &files.raw]);
    let operations: Vec<&Value> = all.iter().filter(|o| o["type"] == "operation").collect();

    let mut wanted = BTreeMap::<&str, usize>::new();
    for op in operations.iter().filter_map(|o| o["op"].as_str()) {
        *wanted.entry(op).or_default() += 1;
    }
    let shown = files.values(&files.decoded, "nvcap", "nvcap.op");
    let mut counts = BTreeMap::<&str, usize>::new();
    for op in &shown {
        *counts.entry(op).or_default() += 1;
    }
    assert!(wanted.len() >= 7, "{wanted:?}");
    assert_eq!(counts, wanted);

    // Filters give the submissions that have such an operation; replays of graphs are on a later one, so they are left out.
    let serials = |which: &dyn Fn(&Value) -> bool| -> BTreeSet<String> {
        let found = operations.iter().filter(|o| which(o));
        found.map(|o| o["serial"].to_string()).collect()
    };
    for (filter, which) in [
        (
            "nvcap.op == \"copy\"",
            &(|o: &Value| o["op"] == "copy") as &dyn Fn(&Value) -> bool,
        ),
        ("nvcap.copy.bytes > 20000", &|o| {
            o["op"] == "copy" && o["bytes"].as_u64() > Some(20_000)
        }),
        ("nvcap.inline.content == \"data\"", &|o| {
            o["op"] == "inline" && o["content"] == "data"
        }),
        ("nvcap.launch.grid.x >= 4096", &|o| {
            o["grid"][0].as_u64() >= Some(4096)
        }),
        ("nvcap.semaphore.action contains \"acquire\"", &|o| {
            o["op"] == "semaphore"
                && o["action"]
                    .as_str()
                    .is_some_and(|a| a.starts_with("acquire"))
        }),
        ("nvcap.channel == 0 && nvcap.op == \"copy\"", &|o| {
            o["op"] == "copy" && o["channel"] == 0
        }),
        ("nvcap.token == 0x10012 && nvcap.op == \"copy\"", &|o| {
            o["op"] == "copy" && o["token"] == 0x10012
        }),
    ] {
        // The first one is that of the packet's submission.
        let first = ["-E", "occurrence=f", "-T", "fields", "-e", "nvcap.serial"];
        let shown = files.tshark(&[&["-r", &files.decoded, "-Y", filter], &first[..]].concat());
        let shown: BTreeSet<String> = shown.lines().map(str::to_owned).collect();
        let wanted = serials(which);
        assert!(filter.contains("acquire") || !wanted.is_empty(), "{filter}");
        assert_eq!(shown, wanted, "{filter}");
    }

    // Each method write is shown, or is one of the words that follow another one.
    let wanted = all.iter().filter(|o| o["type"] == "method").count();
    let single = files
        .values(&files.decoded, "nvcap", "nvcap.method.data")
        .len();
    let words = files.values(&files.decoded, "nvcap", "nvcap.method.words");
    let words: usize = words.iter().map(|n| n.parse::<usize>().unwrap()).sum();
    assert_eq!(single + words, wanted);
    assert!(words > 0 && single > 0);

    let text = files.tshark(&["-r", &files.decoded, "-V"]);
    assert!(text.contains("launch dma: 0x00000182"));
    assert!(text.contains("class name: HOPPER_DMA_COPY_A"));
    assert!(text.contains("field: DATA_TRANSFER_TYPE=NON_PIPELINED"));
    for bad in ["Malformed", "Lua Error", "damaged", "does not know"] {
        assert!(!text.contains(bad), "{bad}");
    }
    // Every value of an operation has a field of its own.
    assert_eq!(
        files.values(&files.decoded, "nvcap", "nvcap.value"),
        [""; 0]
    );
    // A recording says how to get what it lacks.
    let text = files.tshark(&["-r", &files.raw, "-V"]);
    assert!(text.contains("nvcap export wireshark") && text.contains("gp put: "));
    assert_eq!(files.values(&files.raw, "nvcap.op", "nvcap.op"), [""; 0]);
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn the_profile_has_columns_and_colours() {
    if !is_here("the_profile_has_columns_and_colours") {
        return;
    }
    let files = Files::new("wireshark-profile");
    let from = files.folder.0.join("installed/profiles");
    let config = files.folder.0.join(".config/wireshark");
    fs::create_dir_all(&config).unwrap();
    fs::rename(from, config.join("profiles")).unwrap();
    let field = "frame.coloring_rule.name";
    let args = [
        "-C",
        "nvcap",
        "--color",
        "-r",
        &files.decoded,
        "-T",
        "fields",
        "-e",
        field,
    ];
    let shown = files.tshark(&args);
    let rules: BTreeSet<&str> = shown.lines().collect();
    for rule in [
        "nvcap: launch of the program",
        "nvcap: copy or fill",
        "nvcap: graph",
    ] {
        assert!(rules.contains(rule), "{rules:?}");
    }
    let lines = files.tshark(&["-C", "nvcap", "-r", &files.decoded]);
    let line = lines
        .lines()
        .find(|l| l.contains("copy h2d 28 KiB"))
        .unwrap();
    assert!(
        line.contains("ch6 ce") && line.contains("submission"),
        "{line}"
    );
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn cut_merged_and_compressed_files() {
    if !is_here("cut_merged_and_compressed_files") {
        return;
    }
    let files = Files::new("wireshark-cut");
    let cut = files.folder.path("cut.pcapng");
    run("editcap", &[&files.decoded, &cut, "10-12"]);
    let decoded = nvcap(&["decode", &cut]);
    assert!(
        text(&decoded.stdout).contains("3 of the records up to number"),
        "{}",
        text(&decoded.stdout)
    );
    let experts = files.tshark(&["-r", &cut, "-q", "-z", "expert"]);
    assert!(
        experts.contains("3 records are missing before this one"),
        "{experts}"
    );

    let (other, merged) = (
        files.folder.path("other.pcapng"),
        files.folder.path("merged.pcapng"),
    );
    nvcap(&["export", "wireshark", &files.raw, "-o", &other]);
    run("mergecap", &["-w", &merged, &files.decoded, &other]);
    let decoded = nvcap(&["decode", &merged]);
    assert!(
        text(&decoded.stdout).contains("packets are of other traces"),
        "{}",
        text(&decoded.stdout)
    );
    // Two traces are not two halves of one.
    let ops = files.values(&files.decoded, "nvcap", "nvcap.op").len();
    assert_eq!(files.values(&merged, "nvcap", "nvcap.op").len(), 2 * ops);
    let experts = files.tshark(&["-r", &merged, "-q", "-z", "expert"]);
    assert!(!experts.contains("missing"), "{experts}");

    let plain = fs::read(&files.decoded).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut gzip, &plain).unwrap();
    let packed = files.folder.path("decoded.pcapng.gz");
    fs::write(&packed, gzip.finish().unwrap()).unwrap();
    assert_eq!(files.values(&packed, "nvcap", "nvcap.op").len(), ops);
    assert_eq!(objects(&[&packed]).len(), objects(&[&files.decoded]).len());
}

#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn damaged_packets_are_told() {
    if !is_here("damaged_packets_are_told") {
        return;
    }
    let files = Files::new("wireshark-damage");
    let whole = fs::read(&files.decoded).unwrap();
    let word = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap());
    let mut random = 1u32;
    let mut next = move |below: usize| {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (random >> 8) as usize % below
    };
    let mut damaged = Vec::new();
    for _ in 0..4 {
        let mut bytes = whole.clone();
        let mut at = 0;
        while at + 12 <= whole.len() {
            let (kind, len) = (word(at), word(at + 4) as usize);
            if kind == 6 {
                let packet = word(at + 20) as usize;
                for _ in 0..[1, 2, 20][next(3)] {
                    // Behind the magic; often in the packet's head.
                    let most = if next(3) == 0 { packet.min(80) } else { packet };
                    bytes[at + 28 + 4 + next(most - 4)] = next(256) as u8;
                }
            }
            at += len;
        }
        damaged.extend_from_slice(&bytes);
    }
    // Four sections in one file.
    let file = files.folder.path("damaged.pcapng");
    fs::write(&file, damaged).unwrap();
    let shown = files.tshark(&["-r", &file, "-V"]);
    assert!(shown.contains("The packet is damaged"), "no damage is told");
    for bad in ["Lua Error", "Malformed", ".lua:"] {
        let line = shown.lines().find(|l| l.contains(bad));
        assert_eq!(line, None, "{bad}");
    }
}

/// Packets of other programs that use the same link type.
#[test]
#[ignore = "needs tshark: cargo xtask test runs it where it is"]
fn packets_of_others_are_left_alone() {
    if !is_here("packets_of_others_are_left_alone") {
        return;
    }
    let files = Files::new("wireshark-others");
    let mut file: Vec<u8> = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 0xffff, 147] {
        file.extend(word.to_le_bytes());
    }
    let ip = [
        0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1,
    ];
    for packet in [&ip[..], b"nv", b"nvcp"] {
        for word in [1, 0, packet.len() as u32, packet.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    let path = files.folder.path("others.pcap");
    fs::write(&path, file).unwrap();
    assert_eq!(files.values(&path, "nvcap", "frame.number"), [""; 0]);
    assert_eq!(files.values(&path, "frame", "frame.number").len(), 3);
    let as_ip = "uat:user_dlts:\"User 0 (DLT=147)\",\"ip\",\"0\",\"\",\"0\",\"\"";
    let shown = files.tshark(&[
        "-o",
        as_ip,
        "-r",
        &path,
        "-Y",
        "frame.number == 1",
        "-T",
        "fields",
        "-e",
        "ip.src",
    ]);
    assert_eq!(shown.trim(), "127.0.0.1");
}

#[test]
fn what_is_not_nvcap_s_is_not_overwritten() {
    let folder = Folder::new("wireshark-install");
    let dir = argument(folder.0.join("dir"));
    let install = || nvcap(&["wireshark", "install", "--dir", &dir]);
    let uninstall = || text(&nvcap(&["wireshark", "uninstall", "--dir", &dir]).stdout);
    let first = install();
    assert_eq!(text(&first.stdout).matches("wrote ").count(), 4);
    let lua = folder.0.join("dir/plugins/nvcap.lua");
    fs::write(&lua, "-- somebody's own").unwrap();
    let second = install();
    assert_eq!(text(&second.stdout).matches("wrote ").count(), 3);
    assert!(
        text(&second.stderr).contains("nvcap.lua is not nvcap's"),
        "{}",
        text(&second.stderr)
    );
    assert_eq!(fs::read_to_string(&lua).unwrap(), "-- somebody's own");
    assert_eq!(uninstall().matches("removed ").count(), 3);
    assert!(lua.exists());
    assert!(!folder.0.join("dir/profiles/nvcap").exists());
    assert_eq!(uninstall(), "nothing of nvcap's is there\n");

    install();
    let program = folder.0.join("dir/extcap/nvcap");
    let out = Command::new(program)
        .args(["--extcap-interfaces", "--extcap-version=4.0"])
        .output()
        .unwrap();
    assert!(text(&out.stdout).contains("interface {value=nvcap}"));
}

/// The dissector knows each field of docs/nvcap.proto.
#[test]
fn the_dissector_has_the_fields_of_the_messages() {
    let top = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let proto = fs::read_to_string(top.join("../docs/nvcap.proto")).unwrap();
    let lua = fs::read_to_string(top.join("wireshark/nvcap.lua")).unwrap();
    let mut checked = 0;
    let mut message = None;
    for line in proto.lines() {
        let line = line.split("//").next().unwrap_or("").trim();
        if let Some(name) = line.strip_prefix("message ") {
            message = name.split_whitespace().next();
        }
        let number = line.strip_suffix(';').and_then(|l| l.rsplit_once(" = "));
        let (Some(message), Some((_, number))) = (message, number) else {
            continue;
        };
        // What the decoder says has code of its own.
        if number == "100" || ["Value", "Operation", "Method", "Stop", "Class"].contains(&message) {
            continue;
        }
        let start = lua.find(&format!("\n    {message} = {{"));
        let block = &lua[start.unwrap_or_else(|| panic!("no {message}")) + 1..];
        let first = block.lines().next().unwrap();
        let end = if first.ends_with("},") {
            first.len()
        } else {
            block.find("\n    },").unwrap()
        };
        assert!(
            block[..end].contains(&format!("{{ {number}, ")),
            "{message} {number}"
        );
        checked += 1;
    }
    assert!(checked > 120, "{checked}");
}
