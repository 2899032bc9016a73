//! `nvcap export nsys-sqlite`: where its file goes, what it says and what is refused. What is in the file is tested beside the code.
#![cfg(feature = "sqlite")]

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use crate::common::cli::{Folder, argument, nvcap, refused, text};
use crate::common::files::fixture;

#[test]
fn it_goes_where_it_is_told_and_has_the_verdict() {
    let folder = Folder::new("nsys-places");
    let (training, file) = (
        argument(fixture("training.pcapng")),
        folder.path("run.sqlite"),
    );
    let command = ["export", "nsys-sqlite", &training, "-o", &file];
    let out = nvcap(&command);
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("INCOMPLETE: 3 entries missing"), "{said}");
    assert!(
        said.contains("run.sqlite: its tables are those of Nsight Systems"),
        "{said}"
    );
    assert!(out.stdout.is_empty());
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let written = fs::read(&file).unwrap();
    assert!(written.starts_with(b"SQLite format 3\0"));
    let has = |words: &[u8]| written.windows(words.len()).any(|w| w == words);
    assert!(has(b"void softmax<float>(float const*, float*, int)"));
    assert!(has(b"INCOMPLETE: 3 entries missing"));
    // Nothing is beside it.
    assert_eq!(fs::read_dir(folder.path("")).unwrap().count(), 1);
    // What is there is no database, is longer, and goes.
    fs::write(&file, vec![b'x'; 10_000_000]).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let out = nvcap(&command);
    assert_eq!(out.status.code(), Some(2), "{}", text(&out.stderr));
    let out = nvcap(&[&command[..], &["--force"]].concat());
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert!(fs::read(&file).unwrap() == written, "the same bytes");
    let mode = fs::metadata(&file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // A folder that is a link of one's own is gone through, as by other commands.
    symlink(folder.path(""), folder.path("linked")).unwrap();
    let linked = folder.path("linked/again.sqlite");
    let out = nvcap(&["export", "nsys-sqlite", &training, "-o", &linked]);
    assert_eq!(out.status.code(), Some(3), "{}", text(&out.stderr));
    assert!(fs::read(folder.path("again.sqlite")).unwrap() == written);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let training = argument(fixture("training.pcapng"));
    let lines = [
        (vec![&*training, "--json"], 2, "for another program"),
        (vec![&*training], 2, "name a file with -o"),
        (vec![&*training, "-o", "/dev/null"], 1, "needs a file"),
        (vec![&*training, "-o", &*training], 2, "it is read, too"),
        (vec!["-o", "x.sqlite"], 2, "nothing to trace"),
    ];
    refused(&["export", "nsys-sqlite"], &lines);
}
