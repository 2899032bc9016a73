//! The built program, run as a user runs it.

use std::fs;
use std::io::Read as _;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use super::waiting::until;

pub fn nvcap(args: &[&str]) -> Output {
    nvcap_with(&[], args)
}

/// Runs nvcap with these variables in its environment.
pub fn nvcap_with(environment: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(args)
        .envs(environment.iter().copied())
        .env_remove("NO_COLOR")
        .output()
        .unwrap()
}

/// Runs each of these command lines behind `command`: it must end with the status, and say the words.
pub fn refused(command: &[&str], lines: &[(Vec<&str>, i32, &str)]) {
    for (args, status, words) in lines {
        let all: Vec<&str> = command.iter().chain(args).copied().collect();
        let out = nvcap(&all);
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(*status), "{all:?}: {said}");
        assert!(said.contains(words), "{all:?}: {said}");
    }
}

/// The data in a report's page.
pub fn page_data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

/// Standard output must be no terminal: that is said with these words.
pub fn refused_on_a_terminal(args: &[&str], words: &str) {
    let (_own, terminal) = terminal(80);
    let out = Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(args)
        .stdout(terminal)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains(words), "{said}");
}

/// Opens a terminal of this number of columns: the test's end, and the program's.
pub fn terminal(columns: u16) -> (fs::File, OwnedFd) {
    let (mut own, mut its) = (-1, -1);
    let size = libc::winsize {
        ws_row: 24,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: writes two descriptors, and reads the size.
    let made = unsafe {
        libc::openpty(
            &mut own,
            &mut its,
            std::ptr::null_mut(),
            std::ptr::null(),
            &size,
        )
    };
    assert_eq!(made, 0, "{}", std::io::Error::last_os_error());
    // SAFETY: both were opened just now, and nobody else has them.
    unsafe { (fs::File::from_raw_fd(own), OwnedFd::from_raw_fd(its)) }
}

/// Returns the output of nvcap on a terminal of this number of columns, with colour or without, and its status. Its standard error is no terminal.
pub fn on_a_terminal(columns: u16, color: bool, args: &[&str]) -> (String, Option<i32>) {
    let (mut own, its) = terminal(columns);
    let mut command = Command::new(env!("CARGO_BIN_EXE_nvcap"));
    command
        .args(args)
        .env_remove("COLUMNS")
        .env("TERM", "xterm");
    match color {
        true => command.env_remove("NO_COLOR"),
        false => command.env("NO_COLOR", "1"),
    };
    let mut child = command.stdout(its).spawn().unwrap();
    // It has the terminal open, too.
    drop(command);
    // The end of the last one who has the terminal open is an error here.
    let (mut shown, mut part) = (Vec::new(), [0; 4096]);
    while let Ok(n @ 1..) = own.read(&mut part) {
        shown.extend_from_slice(&part[..n]);
    }
    let status = child.wait().unwrap().code();
    (text(&shown).replace("\r\n", "\n"), status)
}

/// The first word of a line of its status, which a child that was not waited for has after its end too.
fn status_of(child: &Child, line: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

/// Tells whether a child that was not waited for has not ended.
pub fn runs(child: &Child) -> bool {
    status_of(child, "State:") != "Z"
}

/// Waits until the program has begun to read: it catches signals then. False if it has ended before.
pub fn reads(child: &Child) -> bool {
    let mut catches = false;
    until("it has begun to read, or has ended", || {
        let mask = u64::from_str_radix(&status_of(child, "SigCgt:"), 16).unwrap();
        catches = mask & (1 << (libc::SIGINT - 1)) != 0;
        catches || !runs(child)
    });
    catches && runs(child)
}

/// Sends SIGINT when the program has begun to read, which it must not end by itself.
pub fn interrupt_while_it_reads(child: &Child) {
    assert!(reads(child), "it ended before it was interrupted");
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGINT) };
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file's path as an argument.
pub fn argument(path: PathBuf) -> String {
    path.into_os_string().into_string().unwrap()
}

/// A folder of this test's own, removed when done.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> String {
        argument(self.0.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The bytes of tests/captures/h200-mixed.orc.xz with one block less in the grid of grid3<<<dim3(7,5,3),...>>> of tests/gpu/work.cu: in its
/// constant banks and its QMD.
pub fn with_one_block_less(capture: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut reader = nvcap_recording::file::packed::open(capture).unwrap();
    reader.read_to_end(&mut bytes).unwrap();
    let words = |z: u32| [7, 5, z].map(u32::to_le_bytes).concat();
    let places: Vec<usize> = (0..bytes.len() - 12)
        .filter(|at| bytes[*at..*at + 12] == words(3))
        .collect();
    assert_eq!(places.len(), 3, "{places:x?}");
    for at in places {
        bytes[at..at + 12].copy_from_slice(&words(2));
    }
    bytes
}
