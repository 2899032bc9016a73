//! The browser that tests open pages with: Debian's headless Chromium, 98 MB of packages, ten seconds to install.
//!
//! Where it cannot be installed, the tests that need it say that they did not run.

use crate::{install, paths};

/// Programs that the tests look for, the smallest first.
const BROWSERS: [&str; 4] = [
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
];

/// Installs what the tests of `nvcap report` open pages with; says why where it cannot.
pub fn headless() {
    let package = BROWSERS[0];
    if BROWSERS.iter().any(|name| paths::on_path(name).is_some())
        || !install::apt_allowed()
        || !install::apt_offers(package)
    {
        return;
    }
    if let Err(error) = install::apt(&[package], "opening pages of nvcap report") {
        eprintln!("Chromium is not there: {error:#}");
    }
}
