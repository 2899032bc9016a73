//! The built program, run as a user runs it.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub fn nvcap(args: &[&str]) -> Output {
    nvcap_with(&[], args)
}

/// With these variables in its environment.
pub fn nvcap_with(environment: &[(&str, &str)], args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nvcap"))
        .args(args)
        .envs(environment.iter().copied())
        .env_remove("NO_COLOR")
        .output()
        .unwrap()
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
