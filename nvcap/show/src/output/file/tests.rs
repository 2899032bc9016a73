//! Tests of the files that the user names.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let own = format!("nvcap-file-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(own);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn what_was_there_stays_until_there_is_something_to_write() {
    let folder = Folder::new("old");
    let (old, new) = (folder.0.join("old"), folder.0.join("new"));
    fs::write(&old, "of yesterday").unwrap();
    fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
    drop((Named::over(&old).unwrap(), Named::over(&new).unwrap()));
    assert_eq!(fs::read(&old).unwrap(), b"of yesterday");
    assert_eq!(old.metadata().unwrap().mode() & 0o777, 0o644);
    assert!(!new.exists(), "nothing came of it");
    for path in [&old, &new] {
        let mut named = Named::over(path).unwrap();
        let mut again = named.again().unwrap();
        named.begin().unwrap();
        (&named.file).write_all(b"of to").unwrap();
        again.begin().unwrap();
        again.file.write_all(b"day").unwrap();
        drop((named, again));
        assert_eq!(fs::read(path).unwrap(), b"of today");
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
    }
}

#[test]
fn a_recording_is_not_written_over_another() {
    let folder = Folder::new("unused");
    let at = |name: &str| folder.0.join(name);
    let mut first = Named::unused(&at("run.pcapng"), true).unwrap();
    // Nothing is in it yet, but somebody writes there.
    let mut second = Named::unused(&at("run.pcapng"), true).unwrap();
    let third = Named::unused(&at("run.pcapng"), true).unwrap();
    for (named, name) in [
        (&first, "run.pcapng"),
        (&second, "run.2.pcapng"),
        (&third, "run.3.pcapng"),
    ] {
        assert_eq!(named.path(), at(name));
    }
    for named in [&mut first, &mut second] {
        named.begin().unwrap();
        (&named.file).write_all(b"x").unwrap();
    }
    drop((first, second, third));
    assert!(!at("run.3.pcapng").exists(), "nothing came of it");
    let mut third = Named::unused(&at("run.pcapng"), true).unwrap();
    assert_eq!(third.path(), at("run.3.pcapng"));
    fs::write(at("empty"), "").unwrap();
    assert_eq!(
        Named::unused(&at("empty"), true).unwrap().path(),
        at("empty")
    );
    third.begin().unwrap();
    let place = third.place();
    assert!(place.is_there());
    fs::remove_file(&place.path).unwrap();
    assert!(!place.is_there());
    fs::write(&place.path, "another's").unwrap();
    assert!(!place.is_there());
}

#[test]
fn a_link_is_followed_where_its_maker_may_be_trusted() {
    let folder = Folder::new("link");
    let (to, first, second) = (
        folder.0.join("to"),
        folder.0.join("first"),
        folder.0.join("second"),
    );
    symlink("to", &second).unwrap();
    symlink(&second, &first).unwrap();
    let mut named = Named::over(&first).unwrap();
    named.begin().unwrap();
    (&named.file).write_all(b"x").unwrap();
    assert_eq!(fs::read(&to).unwrap(), b"x");
    let around = folder.0.join("around");
    symlink("around", &around).unwrap();
    assert!(Named::over(&around).is_err());
}

#[test]
#[ignore = "needs root, who may give files away: cargo xtask test runs it as root"]
fn links_and_files_of_other_users_are_refused() {
    // SAFETY: reads an id.
    if unsafe { libc::geteuid() } != 0 {
        println!("NOT RUN links_and_files_of_other_users_are_refused: it needs root");
        return;
    }
    let folder = Folder::new("others");
    let victim = folder.0.join("victim");
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, Permissions::from_mode(0o644)).unwrap();
    let planted = folder.0.join("planted");
    symlink("victim", &planted).unwrap();
    std::os::unix::fs::lchown(&planted, Some(65534), None).unwrap();
    let refused = Named::over(&planted).unwrap_err().to_string();
    assert!(
        refused.contains("symbolic link of another user"),
        "{refused}"
    );
    // One that all may write to, and that user's own.
    for (name, mode) in [("open", 0o1777), ("home", 0o755)] {
        let home = folder.0.join(name);
        fs::create_dir(&home).unwrap();
        fs::set_permissions(&home, Permissions::from_mode(mode)).unwrap();
        std::os::unix::fs::chown(&home, Some(65534), None).unwrap();
        let above = home.join("above");
        symlink(&folder.0, &above).unwrap();
        std::os::unix::fs::lchown(&above, Some(65534), None).unwrap();
        let real = folder.0.canonicalize().unwrap().join("output");
        let real = format!("the path that it leads to: {}", real.display());
        let output = above.join("output");
        let refused = [
            Named::over(&output).map(|_| ()),
            Named::unused(&output, false).map(|_| ()),
            new(&output).map(|_| ()),
            replace(&output, b"x", 0o644, &|_| true),
        ];
        for refused in refused.map(|r| r.unwrap_err().to_string()) {
            assert!(refused.ends_with(&real), "{refused}");
        }
        assert!(check_folder(&above.join("new")).is_err());
    }
    assert!(!folder.0.join("output").exists());
    let theirs = folder.0.join("theirs");
    fs::write(&theirs, "mine").unwrap();
    std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
    let refused = Named::over(&theirs).unwrap_err().to_string();
    assert!(refused.contains("belongs to another user"), "{refused}");
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(victim.metadata().unwrap().mode() & 0o777, 0o644);
    assert_eq!(fs::read(&theirs).unwrap(), b"mine");
}

#[test]
fn a_file_with_a_second_name_is_refused() {
    let folder = Folder::new("names");
    let (one, two) = (folder.0.join("one"), folder.0.join("two"));
    fs::write(&one, "precious").unwrap();
    fs::hard_link(&one, &two).unwrap();
    assert!(Named::over(&two).is_err());
    assert_eq!(fs::read(&one).unwrap(), b"precious");
    assert_eq!(obstacle(&two, true), Some(Obstacle::Names(2)));
}

#[test]
fn devices_and_given_streams_are_written_to_as_they_are() {
    for path in ["/dev/null", "/dev/stderr", "/proc/self/fd/2", "/dev/fd/2"] {
        match Named::over(Path::new(path)) {
            Ok(mut named) => {
                assert!(!named.regular, "{path}");
                named.begin().unwrap();
            }
            // A socket cannot be opened by name.
            Err(e) => assert_eq!(e.raw_os_error(), Some(libc::ENXIO), "{path}: {e}"),
        }
    }
}

/// Contents that come into a file, or into its place, before the first write stay.
#[test]
fn what_appears_meanwhile_is_not_written_over() {
    let folder = Folder::new("meanwhile");
    for (name, other) in [("filled", "filled.2"), ("replaced", "replaced.2")] {
        let (path, other) = (folder.0.join(name), folder.0.join(other));
        let mut named = Named::unused(&path, false).unwrap();
        let mut again = named.again().unwrap();
        if name == "replaced" {
            fs::write(folder.0.join("new"), "precious").unwrap();
            fs::rename(folder.0.join("new"), &path).unwrap();
        } else {
            fs::write(&path, "precious").unwrap();
        }
        named.begin().unwrap();
        named.file.write_all(b"of to").unwrap();
        again.begin().unwrap();
        again.file.write_all(b"day").unwrap();
        assert_eq!(named.path(), other);
        assert_eq!(fs::read(&path).unwrap(), b"precious", "{name}");
        assert_eq!(fs::read(&other).unwrap(), b"of today", "{name}");
    }
    // One that nothing was written to, and that another program has filled, is not removed.
    let path = folder.0.join("theirs");
    let named = Named::unused(&path, false).unwrap();
    fs::write(&path, "precious").unwrap();
    drop(named);
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    // One that has gone is made again.
    let path = folder.0.join("gone");
    let mut named = Named::unused(&path, false).unwrap();
    fs::remove_file(&path).unwrap();
    named.begin().unwrap();
    named.file.write_all(b"x").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"x");
}

/// Two programs do not write into one file, also where the first has not begun to.
#[test]
fn a_file_has_one_writer() {
    let folder = Folder::new("writer");
    let path = folder.0.join("out.txt");
    assert_eq!(obstacle(&path, false), None);
    let first = Named::unused(&path, false).unwrap();
    for force in [false, true] {
        assert_eq!(obstacle(&path, force), Some(Obstacle::Writer));
    }
    let second = Named::unused(&path, false).unwrap();
    assert_eq!(second.path(), folder.0.join("out.2.txt"));
    let refused = Named::over(&path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    drop((first, second));
    fs::write(&path, "x").unwrap();
    assert_eq!(obstacle(&path, false), Some(Obstacle::Content));
    assert_eq!(obstacle(&path, true), None);
}

/// Bytes that another program appends between a look at the file and a write stay.
#[test]
fn what_another_program_appends_is_not_written_over() {
    let folder = Folder::new("append");
    for (name, is_old) in [("old", true), ("new", false)] {
        let path = folder.0.join(name);
        if is_old {
            fs::write(&path, "of yesterday").unwrap();
        }
        let mut named = match is_old {
            true => Named::over(&path).unwrap(),
            false => Named::unused(&path, false).unwrap(),
        };
        named.begin().unwrap();
        named.file.write_all(b"a").unwrap();
        named.note(|all| all + 1);
        assert!(!named.is_spoiled());
        let mut other = OpenOptions::new().append(true).open(&path).unwrap();
        other.write_all(b"precious").unwrap();
        named.file.write_all(b"b").unwrap();
        named.note(|all| all + 1);
        assert_eq!(fs::read(&path).unwrap(), b"apreciousb", "{name}");
        assert!(named.is_spoiled());
    }
}

/// On a file system that says of every file that it has no name, and numbers files anew, an output stays where it is.
#[test]
fn a_file_system_without_counts_of_names_loses_nothing() {
    let folder = Folder::new("counts");
    let path = folder.0.join("out");
    let mut named = Named::unused(&path, false).unwrap();
    named.begin().unwrap();
    named.file.write_all(b"x").unwrap();
    {
        let mut state = named.state();
        state.place.counts_names = false;
        state.place.inode = (0, 0);
    }
    // As that file system has it: the open file has no name, and another number is at the path.
    fs::rename(&path, folder.0.join("away")).unwrap();
    fs::write(&path, "x").unwrap();
    fs::remove_file(folder.0.join("away")).unwrap();
    assert!(!named.save().unwrap());
    assert!(!folder.0.join("out.2").exists());
    fs::remove_file(&path).unwrap();
    assert!(named.save().unwrap(), "it has gone");
    assert_eq!(fs::read(&path).unwrap(), b"x");
}
