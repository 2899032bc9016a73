//! Command lines that are not understood: status 2, whoever finds it.

use std::fs;

use crate::common::cli::{Folder, argument, nvcap, refused, text};
use crate::common::files::fixture;

/// Nothing was traced with these words, and nothing says so: they were passed over, with status 0.
#[test]
fn options_of_a_live_trace_are_refused_beside_a_file() {
    let file = argument(fixture("training.pcapng"));
    let live: [&[&str]; 14] = [
        &["--duration", "1"],
        &["--how", "observe"],
        &["--record", "r.pcapng"],
        &["--rotate", "1M"],
        &["--comm", "x"],
        &["-a"],
        &["-p", "1"],
        &["--observe-cpu", "5%"],
        &["--gpu-time-cpu", "5%"],
        &["--max-submissions", "3"],
        &["--stop-at-exit", "never"],
        &["--no-follow"],
        &["--no-images"],
        &["--buffer", "64M"],
    ];
    let commands: [&[&str]; 9] = [
        &["time"],
        &["ranks"],
        &["stacks"],
        &["decode"],
        &["stats"],
        &["report"],
        &["export", "perfetto"],
        &["export", "csv"],
        &["export", "kineto"],
    ];
    for command in commands {
        let lines = live.map(|options| ([&[&*file], options].concat(), 2, options[0]));
        refused(command, &lines);
    }
    for (command, options) in [
        (&["sample"][..], &["--duration", "1s"][..]),
        (&["dump"], &["--comm", "x"]),
        (&["dump"], &["--times", "2"]),
        (&["top"], &["--interval", "2s"]),
        (&["top"], &["--pod", "x"]),
        (&["ioctls"], &["--duration", "1"]),
        (&["channels"], &["--buffer", "64M"]),
        (&["maps"], &["--no-follow"]),
        (&["diff", &file], &["--duration", "1"]),
    ] {
        refused(command, &[([&[&*file], options].concat(), 2, options[0])]);
    }
}

#[test]
fn a_command_line_that_contradicts_itself_is_a_usage_error() {
    let file = argument(fixture("training.pcapng"));
    for (line, words) in [
        ("time FILE -s", "shows sums alone"),
        ("time FILE --rank 7", "--rank"),
        ("ranks FILE -v", "shows sums alone"),
        ("ranks FILE -e op=launch", "leave out -e"),
        ("stats FILE -q", "shows sums alone"),
        ("stats FILE --by phase", "--phases FILE"),
        ("decode FILE -e phase=x", "--phases FILE"),
        ("decode FILE -", "standard input is read alone"),
        ("report FILE --json", "nvcap stats"),
        ("stacks FILE --json", "sums over stacks alone"),
        ("stacks --how observe -p 1", "leave --how observe out"),
        ("export csv FILE --json", "for another program"),
        ("export csv FILE", "name a folder with -o"),
        (
            "export csv FILE --table kernels --part-rows 5",
            "name a folder with -o",
        ),
        ("record -s -p 1", "shows nothing"),
        ("record --record x -p 1", "name it with -o"),
        (
            "record --rotate 1M -o - -p 1",
            "--rotate makes several files",
        ),
        ("-e frame=x -p 1", "add --stacks"),
        ("-e gpu_ns>1 -p 1", "add --gpu-time"),
        ("--exec-time -p 1", "add --gpu-time"),
        ("-e pod=x -p 1", "add -a"),
        ("explain class", "give the number too"),
        ("explain filter x", "takes nothing more"),
        ("explain xid abc", "no decimal number"),
        ("explain c8b5 301 1", "multiples of 4"),
        #[cfg(feature = "serve")]
        ("serve --listen 0.0.0.0:0", "give a certificate"),
        #[cfg(feature = "serve")]
        ("serve --sample 5% --budget 1%", "must be less than"),
    ] {
        let args = line.split(' ').map(|word| match word {
            "FILE" => &*file,
            word => word,
        });
        let out = nvcap(&args.collect::<Vec<_>>());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(words), "{line}: {said}");
    }
    // What the file lacks is no fault of the command line.
    let out = nvcap(&["decode", &file, "-e", "frame=x"]);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("add --stacks"), "{said}");
}

/// The text of clap says that they are refused beside each other, not what to type.
#[test]
fn an_option_of_a_live_target_beside_a_file_says_what_to_type() {
    let file = argument(fixture("training.pcapng"));
    for (line, typed) in [
        (
            "time FILE --duration 1",
            "type nvcap time FILE, or nvcap time --duration <SECONDS> -p PID",
        ),
        (
            "export perfetto FILE -p 4711",
            "type nvcap export perfetto FILE, or nvcap export perfetto --pid <PID|NAME>",
        ),
        (
            "top FILE --interval 2s",
            "type nvcap top FILE, or nvcap top --interval <TIME> -p PID",
        ),
    ] {
        let args = line.split(' ').map(|word| match word {
            "FILE" => &*file,
            word => word,
        });
        let out = nvcap(&args.collect::<Vec<_>>());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(typed), "{line}: {said}");
    }
    // The files of these options are no recordings that are read.
    for line in [
        "dump -p 4711 --merge look.json",
        "dump --merge look.json --record r.pcapng",
    ] {
        let out = nvcap(&line.split(' ').collect::<Vec<_>>());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(!said.contains("FILE is a recording"), "{line}: {said}");
    }
}

#[test]
fn a_number_where_a_file_belongs_may_be_a_process() {
    for (line, typed) in [
        ("time 4711", "nvcap time -p 4711"),
        ("export csv 4711 -o x", "nvcap export csv -p 4711"),
        ("dump 4711", "nvcap dump -p 4711"),
        ("maps 4711", "nvcap maps -p 4711"),
        ("top 4711", "nvcap top -p 4711"),
    ] {
        let out = nvcap(&line.split(' ').collect::<Vec<_>>());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        let expected = format!("for the running process: {typed}\n");
        assert!(said.ends_with(&expected), "{line}: {said}");
    }
    // Of a file that is no process's number, and of a command that takes no process.
    for line in ["time 4711.pcapng", "stats 4711"] {
        let out = nvcap(&line.split(' ').collect::<Vec<_>>());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{line}: {said}");
        assert!(!said.contains("-p"), "{line}: {said}");
    }
}

#[test]
fn verdicts_are_explained() {
    for (words, begins) in [
        (
            &["explain", "GPU-bound"][..],
            &["GPU-bound: ", "GPU-bound by graph replays: "][..],
        ),
        (&["explain", "copy-bound"], &["copy-bound: "]),
        (&["explain", "hang"], &["HANG: "]),
        (&["explain", "DEADLOCK"], &["DEADLOCK: "]),
        (
            &["explain", "waiting", "for", "peers"],
            &["waiting for peers: "],
        ),
    ] {
        let out = nvcap(words);
        let said = text(&out.stdout);
        assert!(out.status.success(), "{words:?}: {}", text(&out.stderr));
        let firsts: Vec<_> = said.lines().zip(begins).collect();
        assert_eq!(said.lines().count(), begins.len(), "{said}");
        for (line, begin) in firsts {
            assert!(line.starts_with(begin), "{line}");
        }
    }
}

/// Behind `--` stands a command: `-- -1` would start one.
#[test]
fn no_tip_names_a_command_that_would_be_started() {
    for line in [
        "-p -1",
        "time --duration -1",
        "record --rotate -1",
        "decode --nothing",
    ] {
        let out = nvcap(&line.split(' ').collect::<Vec<_>>());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line}: {said}");
        assert!(!said.contains("as a value"), "{line}: {said}");
        assert_eq!(said.contains("is negative"), line.ends_with("-1"), "{said}");
    }
}

#[test]
fn files_that_cannot_be_read_have_a_next_step() {
    let folder = Folder::new("usage-unreadable");
    let none = folder.path("none.pcapng");
    let of_folder = argument(fixture("python"));
    for (files, said) in [
        (&[&none][..], "nvcap record -o FILE"),
        (&[&of_folder], "name the files in it"),
        (
            &[&argument(fixture("training.pcapng")), &none],
            "nvcap record -o FILE",
        ),
    ] {
        let files: Vec<&str> = files.iter().map(|f| f.as_str()).collect();
        let out = nvcap(&[&["stats"], &files[..]].concat());
        let all = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{all}");
        assert!(
            all.contains("cannot read the capture ") && all.contains(said),
            "{all}"
        );
    }
}

#[test]
fn a_file_with_nothing_in_it_is_the_same_to_all() {
    let folder = Folder::new("usage-empty");
    let empty = folder.path("empty.pcapng");
    fs::write(&empty, "").unwrap();
    let page = folder.path("page.html");
    for (command, more) in [
        (&["decode"][..], &[][..]),
        (&["stats"], &[]),
        (&["time"], &[]),
        (&["ranks"], &[]),
        (&["stacks"], &[]),
        (&["sample"], &[]),
        (&["dump"], &[]),
        (&["report"], &["-o", &page]),
        (&["export", "perfetto"], &["-o", &page]),
        (&["export", "pcapng"], &["-o", &page]),
    ] {
        let out = nvcap(&[command, &[&*empty], more].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{command:?}: {said}");
        let expected = format!("nvcap: {empty} is no recording: it is empty\n");
        assert_eq!(said, expected, "{command:?}");
    }
    let out = nvcap(&["diff", &empty, &empty]);
    assert_eq!(out.status.code(), Some(2));
    assert!(text(&out.stderr).contains("it is empty"));
}

#[test]
fn a_command_that_was_mistyped_is_told() {
    for (line, meant) in [
        (&["tiem"][..], "time"),
        (&["tiem", "x.pcapng"], "time"),
        (&["rank", "x.pcapng"], "ranks"),
        (&["sttas", "x.pcapng", "--json"], "stats"),
        (&["decdoe"], "decode"),
    ] {
        let out = nvcap(line);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{line:?}: {said}");
        let words = format!("no command `{}`; did you mean `{meant}`?", line[0]);
        assert!(said.contains(&words), "{line:?}: {said}");
    }
}
