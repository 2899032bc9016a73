//! tshark with nvcap's dissector, which is installed into a test's own folder.

use std::process::Command;

use super::cli::{Folder, argument, nvcap, text};

/// Tells whether Wireshark's programs are here.
pub fn is_here(test: &str) -> bool {
    let here = Command::new("tshark").arg("--version").output().is_ok();
    if !here {
        println!("NOT RUN {test}: there is no tshark; type: sudo apt-get install tshark");
    }
    here
}

/// Installs the dissector, which [`tshark`] then uses.
pub fn install(folder: &Folder) {
    let dir = argument(folder.0.join("installed"));
    let installed = nvcap(&["wireshark", "install", "--dir", &dir]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
}

/// Runs tshark and returns its output; it must print nothing on standard error.
pub fn tshark(folder: &Folder, args: &[&str]) -> String {
    let script = argument(folder.0.join("installed/plugins/nvcap.lua"));
    let out = Command::new("tshark")
        .args(["-X", &format!("lua_script:{script}")])
        .args(args)
        .env("HOME", &folder.0)
        .env_remove("XDG_CONFIG_HOME")
        .output()
        .unwrap();
    let said = text(&out.stderr);
    let lines = said.lines().filter(|l| !l.starts_with("Running as user"));
    assert_eq!(lines.collect::<String>(), "", "{args:?}");
    assert!(out.status.success(), "{args:?}");
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// All values of a field, in the packets that a filter lets through.
pub fn values(folder: &Folder, file: &str, filter: &str, field: &str) -> Vec<String> {
    let fields = ["-T", "fields", "-E", "aggregator=/s", "-e", field];
    let shown = tshark(folder, &[&["-r", file, "-Y", filter], &fields[..]].concat());
    shown.split_whitespace().map(str::to_owned).collect()
}
