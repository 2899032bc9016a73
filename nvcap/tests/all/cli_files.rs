//! Files as users have them: compressed in any of three ways, cut, or of another kind than was meant.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::{fixture, xz_fixture};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[cfg(feature = "zstd")]
fn zstd(bytes: &[u8]) -> Vec<u8> {
    ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
}

/// The same bytes in every form that this build reads, under names that tell nothing.
fn forms(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("plain", bytes.to_vec()),
        ("gzip", gzip(bytes)),
        #[cfg(feature = "zstd")]
        ("zstd", zstd(bytes)),
    ]
}

#[test]
fn a_capture_is_known_by_its_content_in_every_form() {
    let folder = Folder::new("forms");
    let whole = nvcap(&[
        "decode",
        "--from",
        "orc",
        &argument(fixture("h200-cut.orc")),
    ]);
    let plain = fs::read(fixture("h200-cut.orc")).unwrap();
    let mut all = forms(&plain);
    if let Some(xz) = xz_fixture("h200-cut.orc.xz") {
        all.push(("xz", fs::read(xz).unwrap()));
    }
    for (name, bytes) in all {
        let file = folder.path(name);
        fs::write(&file, &bytes).unwrap();
        let out = nvcap(&["decode", &file]);
        assert_eq!(out.status.code(), whole.status.code(), "{name}");
        assert!(out.stdout == whole.stdout, "{name} is shown differently");
        // And from a pipe.
        let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
            .args(["decode", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut to = child.stdin.take().unwrap();
        let writer = std::thread::spawn(move || to.write_all(&bytes));
        let out = child.wait_with_output().unwrap();
        writer.join().unwrap().unwrap();
        assert!(out.stdout == whole.stdout, "{name} from a pipe");
    }
}

/// An output that would wait for a reader without a word, as a FIFO does, says so first; then it is as any other.
#[test]
fn a_fifo_that_nobody_reads_is_said_to_be_waited_for() {
    use std::io::{BufRead as _, BufReader};
    use std::time::Duration;

    let folder = Folder::new("fifo");
    let fifo = folder.path("out");
    assert!(
        Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let capture = argument(fixture("h200-cut.orc"));
    let args = ["decode", "--from", "orc", &capture];
    let whole = nvcap(&args);
    let mut child = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(args)
        .args(["-o", &fifo])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let (to, from) = std::sync::mpsc::channel();
    let lines = std::thread::spawn(move || {
        let mut line = String::new();
        errors.read_line(&mut line).unwrap();
        to.send(line).unwrap();
        // The rest is taken, so that nobody waits.
        std::io::copy(&mut errors, &mut std::io::sink()).unwrap();
    });
    let said = from.recv_timeout(Duration::from_secs(120));
    if said.is_err() {
        child.kill().unwrap();
    }
    let said = said.expect("guard: nothing is said");
    assert!(
        said.contains("FIFO that nobody reads") && said.contains("-o -"),
        "{said}"
    );
    let got = fs::read(&fifo).unwrap();
    assert_eq!(child.wait().unwrap().code(), whole.status.code());
    lines.join().unwrap();
    assert!(got == whole.stdout, "{} bytes", got.len());
}

#[test]
fn a_compressed_capture_that_was_cut_is_never_complete() {
    let folder = Folder::new("cuts");
    let plain = fs::read(fixture("h200-cut.orc")).unwrap();
    let mut all = forms(&plain);
    all.remove(0);
    if let Some(xz) = xz_fixture("h200-cut.orc.xz") {
        all.push(("xz", fs::read(xz).unwrap()));
    }
    let file = folder.path("cut");
    for (name, bytes) in all {
        for end in (1..24)
            .map(|n| bytes.len() * n / 24)
            .chain([bytes.len() - 1])
        {
            fs::write(&file, &bytes[..end]).unwrap();
            let out = nvcap(&["decode", "--from", "orc", "-q", &file]);
            assert_eq!(out.status.code(), Some(3), "{name} cut at {end}");
            assert!(text(&out.stdout).contains("INCOMPLETE"), "{name}");
            // Without --from, too, but where nothing comes out that says what it is.
            let out = nvcap(&["decode", "-q", &file]);
            let (shown, said) = (text(&out.stdout), text(&out.stderr));
            match out.status.code() {
                Some(3) => assert!(shown.contains("INCOMPLETE"), "{name} cut at {end}"),
                // The first bytes do not say how it is compressed.
                Some(1) if end < 6 => {}
                status => {
                    assert_eq!(status, Some(1), "{name} cut at {end}");
                    assert!(
                        said.contains("cut or damaged before the first byte"),
                        "{said}"
                    );
                }
            }
            let out = nvcap(&["decode", "--strict", "-q", &file]);
            assert_eq!(out.status.code(), Some(1), "{name} cut at {end}, strict");
        }
    }
}

#[test]
fn logs_phases_and_channels_are_read_in_every_form() {
    let folder = Folder::new("texts");
    let mut log = Vec::new();
    let packed = fs::File::open(fixture("h200-ioctl-part.log.gz")).unwrap();
    let mut decoder = flate2::read::GzDecoder::new(packed);
    std::io::Read::read_to_end(&mut decoder, &mut log).unwrap();
    let capture = argument(fixture("h200-cut.orc"));
    let file = folder.path("file");
    let mut shown = Vec::new();
    for (name, bytes) in forms(&log) {
        fs::write(&file, bytes).unwrap();
        for command in ["ioctls", "channels", "maps"] {
            let out = nvcap(&[command, &file]);
            assert!(
                out.status.code().is_some_and(|c| c == 0 || c == 3),
                "{name}"
            );
            shown.push((command, out.status.code(), out.stdout));
        }
    }
    let first = shown[..3].to_vec();
    for (n, again) in shown.iter().enumerate() {
        assert!(*again == first[n % 3], "{} is shown differently", again.0);
    }
    // It is a cut of a capture.
    let status = nvcap(&["decode", &capture, "-q"]).status.code();
    for (name, bytes) in forms(b"PHASE all 0 99999999999999\n") {
        fs::write(&file, &bytes).unwrap();
        let out = nvcap(&["decode", &capture, "--phases", &file, "-e", "phase=all"]);
        assert_eq!(out.status.code(), status, "{name}: {}", text(&out.stderr));
        assert!(text(&out.stdout).contains("[all]"), "{name}");
        if name != "plain" {
            fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
            let out = nvcap(&["decode", &capture, "--phases", &file]);
            assert_eq!(out.status.code(), Some(1), "{name}");
            let said = text(&out.stderr);
            assert!(said.contains("cannot read the phases"), "{said}");
        }
    }
    let out = nvcap(&["decode", &capture, "--phases", &capture]);
    assert_eq!(out.status.code(), Some(1));
    let said = text(&out.stderr);
    assert!(said.contains("it is no text, it is a capture"), "{said}");
    // What the oracle printed of one of the capture's channels.
    for (name, bytes) in forms(b"[oracle] nothing of channels\n") {
        fs::write(&file, bytes).unwrap();
        let out = nvcap(&["decode", &capture, "--channels", &file, "-q"]);
        assert_eq!(out.status.code(), status, "{name}");
    }
    for (name, bytes) in forms(b"# one\nchanel token=1\n") {
        fs::write(&file, bytes).unwrap();
        let out = nvcap(&["--channels", &file, "-p", "1"]);
        assert_eq!(out.status.code(), Some(1), "{name}");
        assert!(text(&out.stderr).contains("line 2"), "{name}");
    }
}

/// Else nothing would be looked for, and nothing be missed.
#[test]
fn a_channels_file_that_names_no_channel_is_refused() {
    let folder = Folder::new("no-channel");
    let file = folder.path("channels");
    for (lines, says) in [
        ("", "it names no channel and no doorbell"),
        ("# a note\n", "it names no channel and no doorbell"),
        ("doorbell addr=0x7000090\n", "name the channels too"),
    ] {
        fs::write(&file, lines).unwrap();
        let out = nvcap(&["--how", "observe", "--channels", &file, "--", "true"]);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{lines:?}: {said}");
        assert!(said.contains(says), "{lines:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let args = ["--how=observe", "--doorbell=0x7000090", "--", "true"];
    assert!(text(&nvcap(&args).stderr).contains("name the channels too"));
}

/// A bound holds for what comes out, not for what the file has.
#[test]
fn a_small_file_that_becomes_a_large_text_is_refused() {
    let folder = Folder::new("bomb");
    let file = folder.path("bomb");
    let capture = argument(fixture("h200-cut.orc"));
    for (name, bytes) in forms(&vec![b'\n'; 17 << 20]) {
        fs::write(&file, bytes).unwrap();
        let out = nvcap(&["decode", &capture, "--phases", &file]);
        assert_eq!(out.status.code(), Some(1), "{name}");
        let said = text(&out.stderr);
        assert!(said.contains("longer than 16 MiB"), "{name}: {said}");
    }
}

#[test]
fn a_file_of_another_kind_is_named() {
    let folder = Folder::new("kinds");
    let log = argument(fixture("h200-ioctl-part.log.gz"));
    let program = env!("CARGO_BIN_EXE_nvcap").to_owned();
    let (pcap, packed, json) = (folder.path("a"), folder.path("b"), folder.path("c"));
    let head = [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0];
    fs::write(&pcap, head).unwrap();
    fs::write(&packed, gzip(&head)).unwrap();
    fs::write(&json, "{\"type\":\"ledger\"}\n").unwrap();
    let capture = argument(fixture("h200-cut.orc"));
    for (args, says) in [
        (&["decode", &log][..], "nvcap ioctls /"),
        (
            &["decode", &pcap],
            "it is a capture of network packets (pcap)\n",
        ),
        (
            &["decode", &packed],
            "it is a capture of network packets (pcap)\n",
        ),
        (
            &["time", &pcap],
            "it is a capture of network packets (pcap)\n",
        ),
        (&["decode", &program], "give it behind --"),
        (&["decode", &json], "JSON, which nvcap writes"),
        (&["ioctls", &program], "give it behind --"),
        (&["channels", &pcap], "(pcap)"),
        (&["maps", &capture], "nvcap decode FILE"),
    ] {
        let out = nvcap(args);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(says), "{args:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // Who knows better may say so.
    let out = nvcap(&["decode", "--from", "orc", "-q", &pcap]);
    assert_eq!(out.status.code(), Some(3));
}
