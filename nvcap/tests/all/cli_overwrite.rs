//! Files that are there are not replaced by an output, unless `--force` says so; what is no such file is written as ever.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::fixture;

const OLD: &str = "of yesterday\n";

fn capture() -> String {
    argument(fixture("h200-cut.orc"))
}

fn recording() -> String {
    argument(fixture("training.pcapng"))
}

/// A file that is there, with a mode of its own.
fn old(folder: &Folder, name: &str) -> String {
    let file = folder.path(name);
    fs::write(&file, OLD).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    file
}

/// Runs a command line that must be refused before it does anything: its words.
fn refused(args: &[&str]) -> String {
    let out = nvcap(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
    assert_eq!(text(&out.stdout), "", "{args:?}");
    assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    for words in ["would be lost", "name another", "--force"] {
        assert!(said.contains(words), "{args:?}: {said}");
    }
    said
}

/// Each command that writes to a file of the user's leaves one that is there, and says what to type.
#[test]
fn a_file_that_is_there_stays() {
    let folder = Folder::new("overwrite-refused");
    let file = old(&folder, "old");
    let (capture, recording) = (capture(), recording());
    let log = argument(fixture("h200-ioctl-part.log.gz"));
    let marker = folder.path("marker");
    let before = fs::metadata(&file).unwrap();
    for args in [
        &["decode", &capture, "-o", &file][..],
        &["decode", &capture, "--json", "-q", "-o", &file],
        &["stats", &capture, "-o", &file],
        &["report", &capture, "-o", &file],
        &["diff", &capture, &capture, "-o", &file],
        &["dump", &recording, "-o", &file],
        &["dump", "-p", "4194305", "-o", &file],
        &["dump", "--merge", &capture, "-o", &file],
        &["time", &recording, "-o", &file],
        &["time", "-p", "4194305", "-o", &file],
        &["stacks", &recording, "-o", &file],
        &["stacks", "-p", "4194305", "-o", &file],
        &["ioctls", &log, "-o", &file],
        &["channels", &log, "-o", &file],
        &["maps", "-p", "4194305", "-o", &file],
        &["code", "add", &capture, "-o", &file],
        &["counts", "-p", "4194305", "-o", &file],
        &["share", "-o", &file],
        &["bench", "-o", &file],
        &["bench", "--plots", &file],
        &["bench", "--submissions", &file],
        &["export", "pcapng", &capture, "-o", &file],
        &["export", "wireshark", &recording, "-o", &file],
        &["export", "perfetto", &capture, "-o", &file],
        &["export", "perfetto", "-p", "4194305", "-o", &file],
        &["export", "kineto", &capture, "-o", &file],
        &["export", "nsys-sqlite", &capture, "-o", &file],
        &["-p", "4194305", "-o", &file],
        &["-a", "-o", &file],
        &["--how=observe", "-o", &file, "--", "touch", &marker],
    ] {
        let said = refused(args);
        let option = args[args.len() - 2];
        let option = if option.starts_with("--p") || option.starts_with("--s") {
            option
        } else {
            "-o"
        };
        let another = format!("name another file with {option}, or add --force");
        assert!(said.contains(&file) && said.contains(&another), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), OLD, "{args:?}");
    }
    let after = fs::metadata(&file).unwrap();
    let about = |m: &fs::Metadata| (m.ino(), m.mode(), m.mtime(), m.mtime_nsec());
    assert_eq!(about(&after), about(&before));
    assert!(!Path::new(&marker).exists(), "the command was started");
    // By a link, too.
    let link = folder.path("link");
    symlink(&file, &link).unwrap();
    assert!(refused(&["decode", &capture, "-o", &link]).contains(&link));
    // One of a table has the ending of its format.
    let table = old(&folder, "kernels.csv");
    refused(&[
        "export", "csv", &capture, "--table", "kernels", "-o", &table,
    ]);
    assert_eq!(fs::read_to_string(&table).unwrap(), OLD);
}

#[test]
fn force_writes_over_it() {
    let folder = Folder::new("overwrite-forced");
    let (capture, file) = (capture(), folder.path("out"));
    for command in [
        &["decode", &capture][..],
        &["stats", &capture],
        &["report", &capture],
        &["export", "pcapng", &capture],
        &["export", "perfetto", &capture],
        &["export", "kineto", &capture],
    ] {
        let args = [command, &["--force", "-o", &file]].concat();
        old(&folder, "out");
        assert_eq!(nvcap(&args).status.code(), Some(3), "{args:?}");
        let forced = fs::read(&file).unwrap();
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{args:?}");
        // As into a new file.
        fs::remove_file(&file).unwrap();
        let args = [command, &["-o", &file]].concat();
        assert_eq!(nvcap(&args).status.code(), Some(3), "{args:?}");
        let new = fs::read(&file).unwrap();
        assert!(!forced.starts_with(OLD.as_bytes()), "{args:?}");
        // A recording has the time at which it was made, and a page its parts in any order.
        let is_text = ["decode", "stats"].contains(&command[0]);
        assert!(!is_text || forced == new, "{args:?}");
        fs::remove_file(&file).unwrap();
    }
}

/// An empty file, as mktemp makes it, a FIFO, /dev/null and an inherited stream lose nothing.
#[test]
fn what_loses_nothing_is_written_without_force() {
    let folder = Folder::new("overwrite-nothing");
    let capture = capture();
    let args = ["decode", &capture, "-o"];
    let whole = nvcap(&["decode", &capture]).stdout;
    let into = |file: &str| {
        let out = nvcap(&[&args[..], &[file]].concat());
        assert_eq!(out.status.code(), Some(3), "{file}: {}", text(&out.stderr));
    };
    let empty = folder.path("empty");
    fs::write(&empty, "").unwrap();
    into(&empty);
    assert!(fs::read(&empty).unwrap() == whole);
    into("/dev/null");
    let fifo = folder.path("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let reader = {
        let fifo = fifo.clone();
        std::thread::spawn(move || fs::read(fifo).unwrap())
    };
    into(&fifo);
    assert!(reader.join().unwrap() == whole);
    // The shell's >> has chosen the file.
    let log = old(&folder, "log");
    let appended = fs::OpenOptions::new().append(true).open(&log).unwrap();
    let ended = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(args)
        .arg("/dev/stdout")
        .stdout(appended)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(ended.code(), Some(3));
    assert!(fs::read(&log).unwrap() == [OLD.as_bytes(), &whole].concat());
}

/// Tables in a folder: those that would be replaced are told, and other files do not matter.
#[test]
fn tables_that_are_there_stay() {
    let folder = Folder::new("overwrite-tables");
    let (capture, to) = (capture(), folder.path("run.tables"));
    fs::create_dir(&to).unwrap();
    let note = Path::new(&to).join("note.txt");
    fs::write(&note, OLD).unwrap();
    let args = ["export", "csv", &capture, "-o", &to];
    assert_eq!(nvcap(&args).status.code(), Some(3));
    let kernels = Path::new(&to).join("kernels.csv");
    let whole = fs::read(&kernels).unwrap();
    let said = refused(&args);
    assert!(said.contains("operations.csv and 9 other files"), "{said}");
    // One is enough; of tables that are not written it does not matter.
    for name in fs::read_dir(&to).unwrap() {
        let path = name.unwrap().path();
        if path != kernels && path != note {
            fs::remove_file(path).unwrap();
        }
    }
    fs::write(&kernels, OLD).unwrap();
    assert!(refused(&args).contains("kernels.csv: there is something in it"));
    assert_eq!(fs::read_dir(&to).unwrap().count(), 2, "nothing was made");
    assert_eq!(fs::read_to_string(&kernels).unwrap(), OLD);
    let ledger = [&args[..], &["--table", "ledger"]].concat();
    assert_eq!(nvcap(&ledger).status.code(), Some(3));
    let forced = [&args[..], &["--force"]].concat();
    assert_eq!(nvcap(&forced).status.code(), Some(3));
    assert!(fs::read(&kernels).unwrap() == whole);
    assert_eq!(fs::read_to_string(&note).unwrap(), OLD);
}

#[cfg(feature = "parquet")]
#[test]
fn partitions_that_are_there_stay() {
    let folder = Folder::new("overwrite-partitions");
    let (recording, fleet) = (recording(), folder.path("fleet"));
    let args = ["export", "partitions", "--host=a", "-o", &fleet, &recording];
    assert_eq!(nvcap(&args).status.code(), Some(0));
    let place = "date=2023-11-14/hour=22/host=a/1700000000000000000-00000.parquet";
    let [kernels, ledger] = ["kernels", "ledger"].map(|t| Path::new(&fleet).join(t).join(place));
    let whole = fs::read(&kernels).unwrap();
    fs::write(&kernels, OLD).unwrap();
    let said = refused(&args);
    assert!(said.contains(&recording) && said.contains(place), "{said}");
    assert_eq!(fs::read_to_string(&kernels).unwrap(), OLD);
    // What can be read once is looked at when it is read.
    let piped = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args([&args[..5], &["-"]].concat())
        .stdin(fs::File::open(&recording).unwrap())
        .output()
        .unwrap();
    assert_eq!(piped.status.code(), Some(2));
    assert!(text(&piped.stderr).contains("are there already"));
    assert_eq!(fs::read_to_string(&kernels).unwrap(), OLD);
    // Another host's are others.
    let other = ["export", "partitions", "--host=b", "-o", &fleet, &recording];
    assert_eq!(nvcap(&other).status.code(), Some(0));
    let forced = [&args[..], &["--force"]].concat();
    assert_eq!(nvcap(&forced).status.code(), Some(0));
    assert!(fs::read(&kernels).unwrap() == whole);
    // Without its ledger an export was interrupted, and is made whole.
    fs::remove_file(&ledger).unwrap();
    assert_eq!(nvcap(&args).status.code(), Some(0));
    assert!(ledger.exists());
}

/// The results of an earlier study stay; a program of the user's with the name of a study's stays, too.
#[test]
fn results_of_a_study_stay() {
    let folder = Folder::new("overwrite-study");
    let here = argument(folder.0.clone());
    for name in ["dma.html", "dma.pcapng", "work.py"] {
        let file = old(&folder, name);
        let said = refused(&["study", "dma", "-o", &here]);
        let another = "name another folder with -o";
        assert!(said.contains(&file) && said.contains(another), "{said}");
        assert_eq!(fs::read_to_string(&file).unwrap(), OLD);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
        fs::remove_file(&file).unwrap();
    }
}
