//! Recordings on the command line: of captures, cut, and of other kinds of files.

use std::fs;
use std::path::Path;

use nvcap_decode::ledger::Observed;
use nvcap_recording::recording::{Item, Reader};
use nvcap_show::output::recorder::{Files, Recorder, Rotation};
use nvcap_show::pipeline::{Pipeline, PipelineOptions};

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::fixture;

/// A recording of the fixture, and what the fixture itself is shown as.
fn recorded(folder: &Folder, options: &[&str]) -> (String, Vec<u8>) {
    recorded_as(folder, "run", options)
}

/// Makes a recording of the fixture with a name of its own, and returns what the fixture itself is shown as.
fn recorded_as(folder: &Folder, name: &str, options: &[&str]) -> (String, Vec<u8>) {
    let capture = argument(fixture("h200-cut.orc"));
    let file = folder.path(&format!("{name}.pcapng"));
    let mut args = vec!["export", "pcapng", &capture, "-o", &file];
    args.extend(options);
    let out = nvcap(&args);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    let shown = nvcap(&["decode", "--json", "-vv", &capture]);
    (file, shown.stdout)
}

#[test]
fn a_recording_is_shown_as_the_capture_that_it_was_made_of() {
    let folder = Folder::new("recording");
    let (file, wanted) = recorded(&folder, &[]);
    assert!(wanted.len() > 100_000);
    let out = nvcap(&["decode", "--json", "-vv", &file]);
    assert_eq!(out.status.code(), Some(3));
    assert!(out.stdout == wanted, "it is shown differently");
    // A recording of the recording, too.
    let again = folder.path("again.pcapng");
    nvcap(&["export", "pcapng", &file, "-o", &again]);
    let out = nvcap(&["decode", "--json", "-vv", &again]);
    assert!(out.stdout == wanted, "the second is shown differently");
}

#[cfg(feature = "zstd")]
#[test]
fn a_name_that_ends_in_zst_compresses() {
    let folder = Folder::new("recording-zst");
    let (file, wanted) = recorded(&folder, &[]);
    let packed = folder.path("run.pcapng.zst");
    nvcap(&["export", "pcapng", &file, "-o", &packed]);
    let sizes = [&file, &packed].map(|f| fs::metadata(f).unwrap().len());
    assert!(sizes[1] < sizes[0] / 2, "{sizes:?}");
    let out = nvcap(&["decode", "--json", "-vv", &packed]);
    assert!(out.stdout == wanted, "it is shown differently");
}

#[test]
fn what_a_cut_recording_lacks_is_said() {
    let folder = Folder::new("recording-cut");
    let (file, _) = recorded(&folder, &[]);
    let whole = fs::read(&file).unwrap();
    let cut = folder.path("cut.pcapng");
    fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let out = nvcap(&["decode", "-q", &cut]);
    assert_eq!(out.status.code(), Some(3));
    let shown = text(&out.stdout);
    assert!(shown.contains("the recording has no end"), "{shown}");
    let out = nvcap(&["decode", "-q", "--strict", &cut]);
    assert_eq!(out.status.code(), Some(1));
    // Something else in the middle of it.
    let mut damaged = whole.clone();
    let half = damaged.len() / 2;
    damaged[half..half + 3000].fill(0xff);
    fs::write(&cut, &damaged).unwrap();
    let shown = text(&nvcap(&["decode", "-q", &cut]).stdout);
    assert!(shown.contains("of the records up to number"), "{shown}");
}

/// As a file system may leave a file after a loss of power: as long as it was, with zeros behind what came to the disk.
#[test]
fn a_recording_that_ends_in_zeros_opens_to_its_last_whole_record() {
    let folder = Folder::new("recording-zeros");
    let (file, _) = recorded(&folder, &[]);
    let whole = fs::read(&file).unwrap();
    let (zeros, cut) = (folder.path("zeros.pcapng"), folder.path("cut.pcapng"));
    let from = whole.len() / 2 / 4096 * 4096;
    let mut bytes = whole.clone();
    bytes[from..].fill(0);
    fs::write(&zeros, &bytes).unwrap();
    fs::write(&cut, &whole[..from]).unwrap();
    let [zeros, cut] = [zeros, cut].map(|file| nvcap(&["decode", "--json", &file]));
    assert_eq!(zeros.status.code(), Some(3), "{}", text(&zeros.stderr));
    // All that came before, and the account, which differs in the bytes that are no whole block.
    let [zeros, cut] = [zeros, cut].map(|out| {
        let lines = text(&out.stdout);
        let (before, ledger) = lines.trim_end().rsplit_once('\n').unwrap();
        let is_shown = |line: &&str| !line.contains("\"type\":\"loss\"");
        let before: Vec<String> = before.lines().filter(is_shown).map(str::to_owned).collect();
        (before, ledger.to_owned())
    });
    assert!(zeros.0 == cut.0 && zeros.0.len() > 50);
    for (ledger, bytes) in [(&zeros.1, whole.len() - from), (&cut.1, 0)] {
        let said = member(ledger, "verdict");
        assert!(said.contains("INCOMPLETE"), "{said}");
        let untraced = member(ledger, "untraced");
        assert!(untraced.contains("the recording has no end"), "{untraced}");
        let number = |w: &str| w.parse::<usize>().ok();
        let most = untraced.split(' ').filter_map(number).max();
        assert!(most >= Some(bytes), "{untraced}");
    }
}

#[test]
fn a_part_that_another_program_cut_out_says_what_it_lacks() {
    let folder = Folder::new("recording-part");
    let (file, _) = recorded(&folder, &[]);
    let bytes = fs::read(&file).unwrap();
    // Without the sixth packet, as editcap does it.
    let (mut part, mut at, mut packets) = (Vec::new(), 0, 0);
    while let Some(head) = bytes.get(at..at + 8) {
        let len = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        packets += u32::from(head[0] == 6);
        if head[0] != 6 || packets != 6 {
            part.extend_from_slice(&bytes[at..at + len]);
        }
        at += len;
    }
    fs::write(&file, &part).unwrap();
    let shown = text(&nvcap(&["decode", "-q", &file]).stdout);
    let said = "1 of the records up to number";
    assert!(shown.contains(said), "{shown}");
}

#[test]
fn users_data_can_be_left_out() {
    let folder = Folder::new("recording-redacted");
    let (file, wanted) = recorded(&folder, &["--redact"]);
    let out = nvcap(&["decode", "--json", &file]);
    let (shown, wanted) = (text(&out.stdout), text(&wanted));
    let launches = |text: &str| {
        let lines = text.lines().filter(|l| l.contains("\"op\":\"launch\""));
        lines
            .map(|l| member(l, "grid") + &member(l, "program"))
            .collect::<Vec<_>>()
    };
    assert_eq!(launches(&shown), launches(&wanted));
    assert!(!launches(&shown).is_empty());
    assert!(shown.contains("redacted_bytes"));
}

/// The bodies of the packets of submissions.
fn submissions(file: &str) -> Vec<Vec<u8>> {
    let bytes = fs::read(file).unwrap();
    let (mut bodies, mut at) = (Vec::new(), 0);
    while let Some(head) = bytes.get(at..at + 8) {
        let len = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        let block = &bytes[at..at + len];
        if block[0] == 6 && block[28 + 9] == 6 {
            bodies.push(block[28 + 32..len - 4].to_vec());
        }
        at += len;
    }
    bodies
}

#[test]
fn what_was_hidden_is_not_hidden_again() {
    let folder = Folder::new("recording-hidden-once");
    let (file, _) = recorded(&folder, &["--redact"]);
    let again = folder.path("again.pcapng");
    nvcap(&["export", "pcapng", &file, "-o", &again]);
    assert!(submissions(&file).len() > 20);
    assert!(submissions(&file) == submissions(&again));
    // Asked for anew it is, with another key.
    nvcap(&[
        "export", "pcapng", "--redact", "--force", &file, "-o", &again,
    ]);
    assert!(submissions(&file) != submissions(&again));
}

/// A member of an object, as it is written.
fn member(line: &str, name: &str) -> String {
    let object: serde_json::Value = serde_json::from_str(line).unwrap();
    object[name].to_string()
}

#[test]
fn what_is_asked_of_the_wrong_file_is_explained() {
    let folder = Folder::new("recording-wrong");
    let (file, _) = recorded(&folder, &[]);
    for (args, said) in [
        (vec!["time", &file], "they are recorded with --gpu-time"),
        (vec!["stacks", &file], "they are recorded with --stacks"),
        (
            vec!["decode", "--channels", &file, &file],
            "knows its channels",
        ),
        (vec![file.as_str()], "nvcap decode"),
        (vec!["code", "vadd", &file], "has no kernel named vadd"),
        (vec!["decode", "-e", "api=x", &file], "add --stacks"),
        (vec!["decode", "-e", "gpu_ns>1ms", &file], "add --gpu-time"),
        (vec!["diff", "-e", "api=x", &file, &file], "add --stacks"),
    ] {
        let out = nvcap(&args);
        let error = text(&out.stderr);
        assert!(error.contains(said), "{args:?}: {error}");
        assert!(matches!(out.status.code(), Some(1 | 2)), "{args:?}");
    }
    // What is of no recording.
    let network = folder.path("network.pcapng");
    let section: Vec<u8> = [0x0a0d_0d0au32, 28, 0x1a2b_3c4d, 1, !0, !0, 28]
        .iter()
        .flat_map(|w| w.to_le_bytes())
        .collect();
    fs::write(&network, section).unwrap();
    let error = text(&nvcap(&["decode", &network]).stderr);
    assert!(error.contains("network packets (pcapng)"), "{error}");
    // Those that do read it.
    for command in ["ioctls", "channels", "maps"] {
        let out = nvcap(&[command, &file]);
        // The fixture's beginning is missing.
        let error = text(&out.stderr);
        assert!(
            matches!(out.status.code(), Some(0 | 3)),
            "{command}: {error}"
        );
    }
}

/// The files of a rotated recording of the fixture; `trace`: the number of the trace.
fn rotated(folder: &Folder, name: &str, trace: u32) -> Vec<String> {
    rotated_of(folder, name, trace, None)
}

fn rotated_of(folder: &Folder, name: &str, trace: u32, observed: Option<Observed>) -> Vec<String> {
    let (whole, _) = recorded_as(folder, name, &[]);
    let mut reader = Reader::new(fs::File::open(&whole).unwrap());
    let info = reader.trace().unwrap().clone();
    let rotation = Rotation {
        bytes: Some(fs::metadata(&whole).unwrap().len() / 5),
        ..Rotation::default()
    };
    let path = folder.path(&format!("{name}-part.pcapng"));
    let files = Files::numbered(Path::new(&path), rotation, false).unwrap();
    let recorder = Recorder::new(files, info, trace).unwrap();
    let mut pipeline = Pipeline::new(PipelineOptions::default(), vec![Box::new(recorder)]);
    for item in reader {
        if let Ok(Item::Record(record)) = item {
            pipeline.record(record).unwrap();
        }
    }
    if let Some(observed) = observed {
        pipeline.observed(observed);
    }
    pipeline.finish().unwrap();
    let parts = (1..).map(|n| folder.path(&format!("{name}-part.{n:05}.pcapng")));
    parts.take_while(|part| Path::new(part).exists()).collect()
}

/// The last file has the end of the trace, and with it sums of all files.
#[test]
fn sums_of_the_whole_trace_are_said_to_be_so() {
    let folder = Folder::new("recording-last-part");
    let parts = rotated_of(&folder, "one", 7, Some(Observed::default()));
    let said = |files: &[String]| {
        let files = files.iter().map(String::as_str);
        let args: Vec<&str> = ["stats"].into_iter().chain(files).collect();
        text(&nvcap(&args).stderr).contains("are those of the whole trace")
    };
    let (last, before) = parts.split_last().unwrap();
    assert!(said(std::slice::from_ref(last)));
    assert!(!said(&before[1..2]) && !said(&parts));
}

#[test]
fn the_files_of_one_trace_are_read_as_one() {
    let folder = Folder::new("recording-parts");
    let (whole, _) = recorded(&folder, &[]);
    let parts = rotated(&folder, "one", 7);
    assert!(parts.len() > 3, "{parts:?}");
    let of = |command: &[&str], files: &[&String]| {
        let files = files.iter().map(|f| f.as_str());
        let args: Vec<&str> = command.iter().copied().chain(files).collect();
        let out = nvcap(&args);
        (out.status.code(), text(&out.stdout), text(&out.stderr))
    };
    let mut shuffled: Vec<&String> = parts.iter().rev().collect();
    shuffled.swap(0, 2);
    for command in [&["decode", "--json", "-vv"][..], &["stats", "--json"]] {
        let (status, wanted, _) = of(command, &[&whole]);
        assert_eq!(of(command, &shuffled), (status, wanted, String::new()));
    }
    // One that lacks is said and counted, and so is the end.
    let without: Vec<&String> = [0, 1, 3].map(|n| &parts[n]).to_vec();
    let (status, shown, said) = of(&["stats"], &without);
    assert_eq!(status, Some(3));
    assert!(
        said.contains("1 file between those given is missing"),
        "{said}"
    );
    assert!(
        said.contains("the trace goes on in the next file"),
        "{said}"
    );
    assert!(shown.contains("of the records up to number"), "{shown}");
    // One that was cut: the next ones are read all the same.
    let bytes = fs::read(&parts[1]).unwrap();
    let cut = folder.path("cut.pcapng");
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    let mut with_cut: Vec<&String> = parts.iter().collect();
    with_cut[1] = &cut;
    let (status, shown, _) = of(&["decode", "-q"], &with_cut);
    assert_eq!(status, Some(3));
    assert!(
        shown.contains("are missing, the first is number"),
        "{shown}"
    );
    assert!(!shown.contains("the recording has no end"), "{shown}");
}

#[test]
fn files_that_are_not_of_one_trace_are_refused() {
    let folder = Folder::new("recording-not-parts");
    let (one, two) = (rotated(&folder, "one", 7), rotated(&folder, "two", 8));
    let capture = argument(fixture("h200-cut.orc"));
    for (files, status, words) in [
        ([&one[0], &two[1]], 2, "are of two traces"),
        ([&one[0], &one[0]], 2, "both have file 0 of the trace"),
        ([&one[0], &capture], 1, "is no recording of nvcap's"),
        (
            [&one[0], &"-".to_owned()],
            2,
            "standard input is read alone",
        ),
    ] {
        let out = nvcap(&["decode", files[0], files[1]]);
        assert_eq!(out.status.code(), Some(status), "{files:?}");
        let said = text(&out.stderr);
        assert!(said.contains(words), "{said}");
    }
}
