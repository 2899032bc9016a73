//! What the gate runs beside the live tests, in processor time that they leave idle: it stands still while a test measures.

/// A file with the process group of what runs beside the tests; empty or not there where nothing does.
const GROUP: &str = "NVCAP_BESIDE";

/// What runs beside the tests, standing still; it goes on when this is dropped.
pub struct Paused(Option<i32>);

/// Has it stand still.
pub fn pause() -> Paused {
    let group = std::env::var_os(GROUP).and_then(|file| std::fs::read_to_string(file).ok());
    let group = group.and_then(|text| text.trim().parse().ok());
    let paused = Paused(group.filter(|group| *group > 1));
    paused.signal(libc::SIGSTOP);
    paused
}

impl Paused {
    fn signal(&self, signal: libc::c_int) {
        if let Some(group) = self.0 {
            // SAFETY: sends a signal, to a group that .ci/run has begun and waits for: its number is of no other one;
            // where it has ended, the file is empty.
            unsafe { libc::kill(-group, signal) };
        }
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        self.signal(libc::SIGCONT);
    }
}
