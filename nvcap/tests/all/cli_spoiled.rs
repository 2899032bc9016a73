//! No file of the user's is spoiled: by two outputs that are one file, by what appears while a command runs, by files that look like
//! nvcap's own; and what a command prints is in no recording.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::cli::{Folder, argument, nvcap, text};
use crate::common::files::fixture;

const OLD: &str = "of yesterday\n";

fn capture() -> String {
    argument(fixture("h200-cut.orc"))
}

fn recording() -> String {
    argument(fixture("training.pcapng"))
}

/// Runs a command line that must be refused as one that is not understood is: its words.
fn refused(args: &[&str], words: &str) -> String {
    let out = nvcap(args);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
    assert!(said.contains(words), "{args:?}: {said}");
    said
}

fn has_status(out: &Output, status: i32) {
    assert_eq!(out.status.code(), Some(status), "{}", text(&out.stderr));
}

/// `nvcap record` of a command that uses no GPU: status 4.
fn record(more: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvcap"));
    command.args(["record", "--how", "observe"]).args(more);
    command
}

#[test]
fn two_outputs_are_not_one_file() {
    let folder = Folder::new("spoiled-twice");
    let (recording, capture) = (recording(), capture());
    let file = folder.path("x");
    fs::write(&file, "").unwrap();
    let (second, link, way) = (
        folder.path("second"),
        folder.path("link"),
        folder.path("way"),
    );
    symlink("new", &link).unwrap();
    symlink(".", &way).unwrap();
    let (new, by_way, folder_of_tables) = (
        folder.path("new"),
        folder.path("way/new"),
        folder.path("cd"),
    );
    let member = folder.path("cd/kernels.csv");
    let part = folder.path("cd/kernels/part-0.csv");
    let pid = ["-p", "4194305"];
    for (one, other) in [(&file, &file), (&new, &new), (&new, &link), (&new, &by_way)] {
        for command in [
            &["dump"][..],
            &["dump", "--stream"],
            &[],
            &["stacks"],
            &["time"],
        ] {
            let args = [command, &pid, &["-o", one, "--record", other]].concat();
            refused(&args, "would be one file");
        }
        refused(&["bench", "-o", one, "--plots", other], "would be one file");
    }
    let args = ["export", "csv", "-o", &folder_of_tables, "--record"];
    refused(&[&args[..], &[&member], &pid].concat(), "would be one file");
    let parts = [&args[..], &[&part, "--part-rows", "5"], &pid].concat();
    refused(&parts, "would be one file");
    refused(
        &["-p", "4194305", "-o", "-", "--record", "-"],
        "would be one file",
    );
    // By a second name: neither may be written to.
    fs::hard_link(&file, &second).unwrap();
    let said = refused(
        &["dump", "-p", "4194305", "-o", &file, "--record", &second],
        "would be one file",
    );
    assert!(said.contains("name another file with"), "{said}");
    let said = refused(
        &["decode", &capture, "-o", &second],
        "one of 2 names of the same file",
    );
    assert!(!said.contains("of your own"), "{said}");
    refused(
        &["record", "-p", "4194305", "-o", &second],
        "one of 2 names",
    );
    fs::remove_file(&second).unwrap();
    // Nor is an output what is read, whatever is forced.
    let copy = folder.path("copy.pcapng");
    fs::copy(&recording, &copy).unwrap();
    let (twin, copied) = (folder.path("twin"), fs::read(&copy).unwrap());
    symlink("copy.pcapng", &twin).unwrap();
    for args in [
        &["decode", &copy, "-o", &twin, "--force"][..],
        &["dump", &copy, "-o", &twin, "--force"],
        &["export", "pcapng", &copy, "-o", &copy, "--force"],
        &["export", "perfetto", &copy, "-o", &twin],
        &["export", "kineto", &copy, "-o", &twin],
        &["export", "nsys-sqlite", &copy, "-o", &twin],
        &[
            "export", "csv", &copy, "--table", "kernels", "-o", &twin, "--force",
        ],
        &["diff", &recording, &copy, "-o", &twin],
        &["stacks", &copy, "-o", &twin, "--force"],
        &["stats", &recording, "--phases", &copy, "-o", &twin],
        &["record", "-p", "4194305", "--channels", &copy, "-o", &twin],
    ] {
        refused(args, "it is read, too");
    }
    assert!(fs::read(&copy).unwrap() == copied);
    assert!(!Path::new(&folder_of_tables).exists() && !Path::new(&new).exists());
}

/// Traces a script with `-o FILE`, which the script fills or replaces; what it put there stays. Returns the trace's status and messages.
fn traced_into(file: &str, script: &str) -> (Option<i32>, String) {
    let out = nvcap(&[
        "--how=observe",
        "--json",
        "-o",
        file,
        "--",
        "sh",
        "-c",
        script,
    ]);
    assert_eq!(fs::read_to_string(file).unwrap(), "precious\n", "{script}");
    (out.status.code(), text(&out.stderr))
}

/// What a traced command puts in the place of FILE stays, and so does what nvcap writes: what it had written before, too.
#[test]
fn a_file_that_is_replaced_meanwhile_stays() {
    let folder = Folder::new("spoiled-replaced");
    let file = folder.path("out.json");
    let other = folder.path("out.2.json");
    let replace = format!("echo precious > '{file}.new'; mv '{file}.new' '{file}'");
    let wait = format!("until test -s '{file}'; do sleep 0.05; done");
    for (script, before) in [
        (replace.clone(), None),
        (replace.clone(), Some("")),
        // nvcap has begun to write.
        (format!("{wait}; {replace}"), None),
    ] {
        if let Some(before) = before {
            fs::write(&file, before).unwrap();
        }
        let (status, said) = traced_into(&file, &script);
        assert_eq!(status, Some(4), "{said}");
        assert!(
            said.contains("meanwhile") && said.contains(&other),
            "{said}"
        );
        let saved = fs::read_to_string(&other).unwrap();
        assert!(saved.contains("\"ledger\"") && saved.contains("\"exec\""));
        fs::remove_file(&file).unwrap();
        fs::remove_file(&other).unwrap();
    }
}

/// What nvcap writes goes into a new file also where a FIFO, or a link to a device, has taken the place of FILE: it waits for nobody, and
/// loses nothing.
#[test]
fn a_fifo_or_a_device_in_the_place_of_a_file_gets_nothing() {
    let folder = Folder::new("spoiled-fifo");
    let file = folder.path("out.json");
    let other = folder.path("out.2.json");
    let wait = format!("until test -s '{file}'; do sleep 0.05; done");
    for there in ["mkfifo", "ln -s /dev/full"] {
        // At once: nvcap makes a file anew that has gone.
        let replace = format!("{there} '{file}.new'; mv -fT '{file}.new' '{file}'");
        // Before nvcap has written anything, if the command is fast enough, and after.
        for script in [replace.clone(), format!("{wait}; {replace}")] {
            let args = ["--how=observe", "--json", "-o", &file, "--", "sh", "-c"];
            let out = nvcap(&[&args[..], &[&script]].concat());
            has_status(&out, 4);
            let (said, saved) = (text(&out.stderr), fs::read_to_string(&other).unwrap());
            assert!(
                said.contains("meanwhile") && said.contains(&other),
                "{said}"
            );
            assert!(saved.contains("\"ledger\"") && saved.contains("\"exec\""));
            assert!(!Path::new(&file).symlink_metadata().unwrap().is_file());
            fs::remove_file(&file).unwrap();
            fs::remove_file(&other).unwrap();
        }
    }
}

/// What a traced command writes into FILE meanwhile stays. Where nvcap has begun to write by then, which depends on how fast the machine is,
/// it says that the rest cannot be written.
#[test]
fn a_file_that_is_filled_meanwhile_stays() {
    let folder = Folder::new("spoiled-filled");
    let file = folder.path("out.json");
    let other = folder.path("out.2.json");
    let fill = format!("echo precious > '{file}'");
    let wait = format!("until test -s '{file}'; do sleep 0.05; done");
    for (script, has_begun) in [(fill.clone(), false), (format!("{wait}; {fill}"), true)] {
        let (status, said) = traced_into(&file, &script);
        let is_told = said.contains("another program writes to it, too");
        match has_begun || is_told {
            true => assert!(is_told && status == Some(1), "{status:?}: {said}"),
            false => {
                assert!(
                    status == Some(4) && said.contains("meanwhile") && said.contains(&other),
                    "{said}"
                );
                assert!(fs::read_to_string(&other).unwrap().contains("\"ledger\""));
            }
        }
        fs::remove_file(&file).unwrap();
        let _ = fs::remove_file(&other);
    }
}

/// A second command with the same FILE is refused.
#[test]
fn a_file_has_one_writer() {
    let folder = Folder::new("spoiled-writer");
    let file = folder.path("out.json");
    let mut first = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args([
            "--how=observe",
            "--json",
            "-s",
            "-o",
            &file,
            "--",
            "sleep",
            "900",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    crate::common::waiting::until("the file is there", || Path::new(&file).exists());
    for force in [&[][..], &["--force"]] {
        let capture = capture();
        let args = [&["decode", &*capture, "-o", &file][..], force].concat();
        refused(&args, "another program writes to it");
    }
    // SIGTERM is passed on to the command. With SIGINT it would go on, and hold the test's output for its 900 s.
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(first.id() as libc::pid_t, libc::SIGTERM) };
    first.wait().unwrap();
    assert!(fs::metadata(&file).unwrap().len() > 0);
}

/// Numbered files take names that are free, each once, and only their own are removed.
#[test]
fn rotated_recordings_leave_others_alone() {
    let folder = Folder::new("spoiled-rotated");
    let (file, theirs) = (folder.path("run.pcapng"), folder.path("run.00001.pcapng"));
    fs::write(&theirs, OLD).unwrap();
    let args = [
        "--rotate", "1s", "--keep", "1", "-o", &file, "--", "sleep", "2.5",
    ];
    let both = [0, 1].map(|_| record(&args).stderr(Stdio::piped()).spawn().unwrap());
    for running in both {
        has_status(&running.wait_with_output().unwrap(), 4);
    }
    assert_eq!(fs::read_to_string(&theirs).unwrap(), OLD);
    let mut kept = 0;
    for entry in fs::read_dir(&folder.0).unwrap() {
        let path = argument(entry.unwrap().path());
        if path != theirs {
            has_status(&nvcap(&["decode", &path]), 4);
            kept += 1;
        }
    }
    assert_eq!(kept, 2, "the last of each");
}

/// A recording that goes to standard output is whole: what the command prints goes to standard error.
#[test]
fn a_command_prints_into_no_recording() {
    let folder = Folder::new("spoiled-printed");
    let print = ["--", "sh", "-c", "echo printed; sleep 0.1"];
    for place in ["-", "/dev/stdout"] {
        let out = record(&[&["-o", place], &print[..]].concat())
            .output()
            .unwrap();
        has_status(&out, 4);
        let file = folder.path("run.pcapng");
        fs::write(&file, &out.stdout).unwrap();
        assert!(
            text(&out.stderr).contains("printed\n"),
            "{}",
            text(&out.stderr)
        );
        let decoded = nvcap(&["decode", "--strict", &file]);
        has_status(&decoded, 4);
    }
    // The ledger of a running process, which is shown on standard output, is in none either.
    let mut sleeper = Command::new("sleep").arg("900").spawn().unwrap();
    let pid = sleeper.id().to_string();
    let out = record(&["-o", "-", "--duration", "0.3", "-p", &pid])
        .output()
        .unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    has_status(&out, 4);
    let file = folder.path("attached.pcapng");
    fs::write(&file, &out.stdout).unwrap();
    has_status(&nvcap(&["decode", "--strict", &file]), 4);
}

/// Tables go where -o says: into a file of any format's ending, into a device, and with --force in the place of earlier parts.
#[test]
fn tables_go_where_they_are_to_go() {
    let folder = Folder::new("spoiled-tables");
    let capture = capture();
    let export = |more: &[&str]| nvcap(&[&["export", "csv", &capture], more].concat());
    has_status(&export(&["-o", "/dev/null"]), 3);
    has_status(&export(&["--table", "kernels", "-o", "/dev/null"]), 3);
    let named = folder.path("k.parquet");
    has_status(&export(&["--table", "kernels", "-o", &named]), 3);
    assert!(Path::new(&named).is_file());
    let empty = folder.path("made-by-mktemp");
    fs::write(&empty, "").unwrap();
    has_status(&export(&["--table", "kernels", "-o", &empty]), 3);
    assert!(fs::metadata(&empty).unwrap().len() > 0);
    // Parts.
    let to = folder.path("parts");
    let parts = ["-o", &to, "--table", "operations", "--partition", "pid"];
    let whole = ["-o", &to, "--table", "operations", "--part-rows", "5"];
    has_status(&export(&whole), 3);
    let table = Path::new(&to).join("operations");
    let files = || fs::read_dir(&table).unwrap().count();
    let before = files();
    assert!(before > 2);
    let args = [&["export", "csv", &capture], &parts[..]].concat();
    refused(&args, "is not empty");
    assert_eq!(files(), before);
    let forced = [&parts[..], &["--force"]].concat();
    has_status(&export(&forced), 3);
    let names: Vec<_> = { fs::read_dir(&table).unwrap() }
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert!(
        names.iter().all(|name| name.starts_with("pid=")),
        "{names:?}"
    );
    has_status(&export(&[&whole[..], &["--force"]].concat()), 3);
    assert_eq!(files(), before, "those of the processes are gone");
    // What is no part stays.
    let note = table.join("note.txt");
    fs::write(&note, OLD).unwrap();
    let args = [&["export", "csv", &capture], &forced[..]].concat();
    refused(&args, "note.txt is no part of a table");
    assert_eq!(fs::read_to_string(&note).unwrap(), OLD);
}

#[cfg(feature = "parquet")]
#[test]
fn partitions_do_not_replace_other_files() {
    let folder = Folder::new("spoiled-partitions");
    let (recording, fleet) = (recording(), folder.path("fleet"));
    let args = ["export", "partitions", "--host=a", "-o", &fleet, &recording];
    let place = "kernels/date=2023-11-14/hour=22/host=a/1700000000000000000-00000.parquet";
    let theirs = Path::new(&fleet).join(place);
    fs::create_dir_all(theirs.parent().unwrap()).unwrap();
    fs::write(&theirs, OLD).unwrap();
    let said = refused(&args, "is there already, and would be lost");
    assert!(said.contains(place) && said.contains("--force"), "{said}");
    assert_eq!(fs::read_to_string(&theirs).unwrap(), OLD);
    assert_eq!(
        fs::read_dir(&fleet).unwrap().count(),
        1,
        "nothing else is left"
    );
    has_status(&nvcap(&[&args[..], &["--force"]].concat()), 0);
    assert!(fs::read(&theirs).unwrap().starts_with(b"PAR1"));
}

#[cfg(feature = "serve")]
#[test]
fn a_state_of_others_stays() {
    let folder = Folder::new("spoiled-state");
    let state = folder.path("state");
    for theirs in [OLD, "4711\n"] {
        fs::write(&state, theirs).unwrap();
        refused(
            &["serve", "--listen", "127.0.0.1:0", "--state", &state],
            "that nvcap has not written",
        );
        assert_eq!(fs::read_to_string(&state).unwrap(), theirs);
    }
}

/// Files that are not nvcap's stay, whatever they are called, and one that quotes nvcap's mark.
#[test]
fn files_of_wireshark_s_user_stay() {
    let folder = Folder::new("spoiled-wireshark");
    let here = argument(folder.0.clone());
    let install = ["wireshark", "install", "--dir", &here];
    let plugins = folder.0.join("plugins");
    fs::create_dir(&plugins).unwrap();
    let quoting = "-- My own.\n-- Not written by `nvcap wireshark install`.\n";
    fs::write(plugins.join("nvcap.lua"), quoting).unwrap();
    fs::write(plugins.join("nvcap.new"), OLD).unwrap();
    refused(&install, "nvcap.lua is not nvcap's");
    assert_eq!(
        fs::read_to_string(plugins.join("nvcap.lua")).unwrap(),
        quoting
    );
    fs::remove_file(plugins.join("nvcap.lua")).unwrap();
    for _ in 0..2 {
        has_status(&nvcap(&install), 0);
    }
    assert_eq!(fs::read_to_string(plugins.join("nvcap.new")).unwrap(), OLD);
    assert_eq!(fs::read_dir(&plugins).unwrap().count(), 2);
    // A profile that Wireshark has written stays, and is no reason to fail.
    let preferences = folder.0.join("profiles/nvcap/preferences");
    fs::write(&preferences, OLD).unwrap();
    has_status(&nvcap(&install), 0);
    has_status(&nvcap(&["wireshark", "uninstall", "--dir", &here]), 0);
    assert_eq!(fs::read_to_string(&preferences).unwrap(), OLD);
    assert!(!plugins.join("nvcap.lua").exists());
}

/// What a message tells the user to type can be typed.
#[test]
fn names_in_hints_are_quoted() {
    let folder = Folder::new("spoiled quoted");
    let copy = folder.path("it's.pcapng");
    fs::copy(recording(), &copy).unwrap();
    let typed = format!("'{}'", copy.replace('\'', r"'\''"));
    let out = nvcap(&[&copy]);
    assert!(text(&out.stderr).contains(&format!("nvcap decode {typed}")));
    let out = nvcap(&["dump", &copy, "-e", "op=launch"]);
    let said = text(&out.stderr);
    assert!(
        said.contains(&format!("nvcap decode {typed} has them")),
        "{said}"
    );
}
