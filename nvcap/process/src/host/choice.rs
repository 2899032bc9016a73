//! Choice among a host's processes: the filters of `-a`.

use std::path::PathBuf;

use nvcap_decode::glob::like;
use nvcap_decode::record::{Identity, UsedGpu};

/// Patterns by kind. A process is chosen if it matches, for each kind that has patterns, one of them. The patterns are those of the filter
/// language: `*` stands for any run of characters, `?` for any one, and letter case does not matter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// The user, by name or number.
    pub user: Vec<String>,
    /// The path of the control group, or its end (`*/mine.slice*`).
    pub cgroup: Vec<String>,
    /// The command name.
    pub comm: Vec<String>,
    /// A GPU that the process uses, by minor number or UUID.
    pub gpu: Vec<String>,
    /// The container, by name or by the beginning of its id.
    pub container: Vec<String>,
    /// The pod: its name, `NAMESPACE/NAME`, or its UID.
    pub pod: Vec<String>,
}

/// Processes that a command concerns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// The processes with these ids.
    Named(Vec<u32>),
    /// All chosen processes that use a GPU. The path is the root folder of the host's files.
    All(Choice, PathBuf),
}

fn fits(patterns: &[String], texts: &[&str]) -> bool {
    let fits = |p: &String| texts.iter().any(|t| like(p.as_bytes(), t.as_bytes()));
    patterns.is_empty() || patterns.iter().any(fits)
}

fn or_empty(text: Option<&String>) -> &str {
    text.map_or("", String::as_str)
}

/// Shortest beginning of a container id that stands for the id, as in docker.
const SHORTEST_ID: usize = 4;

impl Choice {
    /// Tells whether any process is chosen.
    pub fn is_any(&self) -> bool {
        *self == Self::default()
    }

    /// Tells whether only this user's processes are chosen, by name or number.
    pub(crate) fn is_of_user_alone(&self, uid: u32, name: Option<&str>) -> bool {
        let uid = uid.to_string();
        let is_own = |p: &String| *p == uid || name == Some(p.as_str());
        !self.user.is_empty() && self.user.iter().all(is_own)
    }

    /// Tells whether a process is chosen by all patterns except those for GPUs. (The GPUs of a process that may not be looked into are not
    /// known.)
    pub(crate) fn takes_beside_gpus(&self, who: &Identity) -> bool {
        let uid = who.uid.map(|u| u.to_string()).unwrap_or_default();
        let user = fits(&self.user, &[or_empty(who.user.as_ref()), &uid]);
        let container = match &who.container {
            Some(c) => {
                let begins = |p: &String| p.len() >= SHORTEST_ID && c.id.starts_with(p.as_str());
                fits(&self.container, &[or_empty(c.name.as_ref()), &c.id])
                    || self.container.iter().any(begins)
            }
            None => self.container.is_empty(),
        };
        let pod = match &who.pod {
            Some(p) => {
                let name = or_empty(p.name.as_ref());
                let whole = format!("{}/{name}", or_empty(p.namespace.as_ref()));
                fits(&self.pod, &[name, &whole, &p.uid])
            }
            None => self.pod.is_empty(),
        };
        user && container
            && pod
            && fits(&self.comm, &[&who.comm])
            && fits(&self.cgroup, &[or_empty(who.cgroup.as_ref())])
    }

    /// Tells whether a process is chosen by the GPUs that it uses.
    pub(crate) fn takes_gpus(&self, used: &[UsedGpu]) -> bool {
        let gpu = |g: &UsedGpu| {
            fits(
                &self.gpu,
                &[&g.minor.to_string(), or_empty(g.uuid.as_ref())],
            )
        };
        self.gpu.is_empty() || used.iter().any(gpu)
    }

    /// Tells whether a process is chosen.
    pub(crate) fn takes(&self, who: &Identity) -> bool {
        self.takes_gpus(&who.gpus) && self.takes_beside_gpus(who)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{Container, Pod};

    #[test]
    fn each_filter_chooses() {
        let who = Identity {
            comm: "python3".into(),
            uid: Some(1000),
            user: Some("ann".into()),
            cgroup: Some("/kubepods/pod1/abc".into()),
            container: Some(Container {
                id: "abcd1234".into(),
                runtime: None,
                name: Some("worker".into()),
            }),
            pod: Some(Pod {
                uid: "u-1".into(),
                name: Some("train-0".into()),
                namespace: Some("research".into()),
                qos: None,
            }),
            gpus: vec![UsedGpu {
                minor: 3,
                uuid: Some("GPU-12ab".into()),
            }],
            ..Identity::default()
        };
        let takes = |what: &str, patterns: &str| {
            let patterns: Vec<String> = patterns.split(' ').map(str::to_owned).collect();
            let mut choice = Choice::default();
            *match what {
                "user" => &mut choice.user,
                "cgroup" => &mut choice.cgroup,
                "comm" => &mut choice.comm,
                "gpu" => &mut choice.gpu,
                "container" => &mut choice.container,
                _ => &mut choice.pod,
            } = patterns;
            assert!(!choice.is_any());
            choice.takes(&who)
        };
        for (what, yes, no) in [
            ("user", "ann", "an"),
            ("user", "1000", "100"),
            ("user", "bob A*", "bob"),
            ("cgroup", "/kubepods/*", "kubepods"),
            ("comm", "PYTHON?", "python"),
            ("gpu", "3", "0"),
            ("gpu", "gpu-12*", "GPU-12"),
            ("container", "work*", "abc"),
            ("container", "abcd", "bcd1"),
            ("pod", "train-*", "worker"),
            ("pod", "research/*", "train/*"),
            ("pod", "u-1", "u"),
        ] {
            assert!(takes(what, yes), "{what} {yes}");
            assert!(!takes(what, no), "{what} {no}");
        }
        let none = Identity::default();
        assert!(Choice::default().is_any() && Choice::default().takes(&none));
        for what in [
            |c: &mut Choice| c.pod.push("*".into()),
            |c: &mut Choice| c.container.push("*".into()),
            |c: &mut Choice| c.gpu.push("*".into()),
        ] {
            let mut choice = Choice::default();
            what(&mut choice);
            assert!(!choice.takes(&none), "{choice:?}");
        }
        let of_users = |users: &[&str]| Choice {
            user: users.iter().map(|u| (*u).to_owned()).collect(),
            ..Choice::default()
        };
        for (users, alone) in [
            (&["ann"][..], true),
            (&["1000", "ann"], true),
            (&["ann", "bob"], false),
            (&["an*"], false),
            (&[], false),
        ] {
            let is_alone = of_users(users).is_of_user_alone(1000, Some("ann"));
            assert_eq!(is_alone, alone, "{users:?}");
        }
        let gpu = Choice {
            gpu: vec!["7".into()],
            ..Choice::default()
        };
        assert!(gpu.takes_beside_gpus(&who) && !gpu.takes(&who));
    }
}
