//! Names of the host's users, from its `/etc/passwd`.

use std::{
    collections::HashMap,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The most bytes of the file that are read.
const MOST: u64 = 16 << 20;
/// Time for which a failed lookup is cached.
const AGAIN: Duration = Duration::from_secs(60);

/// Names of users, from the file.
#[derive(Debug)]
pub(super) struct Users {
    file: PathBuf,
    read_at: Option<Instant>,
    names: HashMap<u32, String>,
}

impl Users {
    /// Returns the users of the host whose files are below `root`.
    pub(super) fn of(root: &Path) -> Self {
        Self {
            file: root.join("etc/passwd"),
            read_at: None,
            names: HashMap::new(),
        }
    }

    /// Returns the name of a user.
    pub(super) fn name(&mut self, uid: u32, now: Instant) -> Option<String> {
        let stale = self
            .read_at
            .is_none_or(|at| now.duration_since(at) >= AGAIN);
        if !self.names.contains_key(&uid) && stale {
            self.read_at = Some(now);
            self.names = read(&self.file);
        }
        self.names.get(&uid).cloned()
    }
}

fn read(file: &Path) -> HashMap<u32, String> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|f| f.take(MOST).read_to_end(&mut bytes));
    if read.is_err() {
        return HashMap::new();
    }
    let text = String::from_utf8_lossy(&bytes);
    let account = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|n| !n.is_empty())?;
        Some((fields.nth(1)?.parse().ok()?, name.to_owned()))
    };
    let mut names = HashMap::new();
    for (uid, name) in text.lines().filter_map(account) {
        // The first account with a number is the one whose name the system shows.
        names.entry(uid).or_insert(name);
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_users() {
        let root = std::env::temp_dir().join(format!("nvcap-users-{}", std::process::id()));
        std::fs::create_dir_all(root.join("etc")).unwrap();
        let text = b"root:x:0:0::/root:/bin/sh\ntoor:x:0:0::/:\n\nbroken\n:x:7:7::/:\nann\xff:x:1000:1000::/home/ann:\n";
        std::fs::write(root.join("etc/passwd"), text).unwrap();
        let mut users = Users::of(&root);
        let now = Instant::now();
        assert_eq!(users.name(0, now).as_deref(), Some("root"));
        assert_eq!(users.name(1000, now).as_deref(), Some("ann\u{fffd}"));
        assert_eq!((users.name(7, now), users.name(8, now)), (None, None));
        std::fs::write(root.join("etc/passwd"), "new:x:8:8::/:\n").unwrap();
        assert_eq!(users.name(8, now + AGAIN / 2), None);
        assert_eq!(users.name(8, now + AGAIN).as_deref(), Some("new"));
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(Users::of(&root).name(0, now), None);
    }
}
