//! Processes that `/proc` hides from nvcap's user. A `/proc` that is mounted with `hidepid` does not list processes of other users, or does
//! not show their contents (proc(5)). A user from whom processes are hidden cannot conclude that none of them uses a GPU.

use std::fs::{self, File};

use super::choice::Choice;
use crate::procfs::{self, unfit::SYS_PTRACE};

/// Mount options of a `/proc` that hides processes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hiding {
    /// Value of `hidepid`, as the kernel writes it: a word, or a number before Linux 5.8.
    hidepid: String,
    /// Group that sees all processes: root's, unless the mount names another.
    gid: u32,
}

/// Rights of nvcap's user that matter here.
#[derive(Clone, Debug)]
struct Rights {
    /// Groups of the user.
    groups: Vec<u32>,
    /// True if the user has cap_sys_ptrace over the first process, too. The capability in the user's own user namespace does not cover
    /// processes outside it.
    ptrace: bool,
}

/// Returns the way in which `/proc` hides processes, by the topmost mount in a `mountinfo`; `None` if it hides none.
fn hiding(mountinfo: &str) -> Option<Hiding> {
    let of_proc = |line: &str| {
        let (mount, system) = line.split_once(" - ")?;
        let at = mount.split(' ').nth(4)?;
        let mut system = system.split(' ');
        (at == "/proc" && system.next()? == "proc").then_some(())?;
        Some(system.next_back().unwrap_or_default().to_owned())
    };
    let options = mountinfo.lines().rev().find_map(of_proc)?;
    let value = |name: &str| {
        let mut all = options.split(',');
        all.find_map(|o| o.strip_prefix(name)?.strip_prefix('='))
    };
    let hidepid = value("hidepid").filter(|v| !matches!(*v, "0" | "off"))?;
    let gid = value("gid").and_then(|v| v.parse().ok()).unwrap_or(0);
    Some(Hiding {
        hidepid: hidepid.to_owned(),
        gid,
    })
}

/// Tells whether `hiding` hides others' processes from a user with these rights.
fn is_hidden_from(hiding: &Hiding, rights: &Rights) -> bool {
    // If only processes that may be traced are listed, groups do not matter.
    let groups_count = !matches!(hiding.hidepid.as_str(), "4" | "ptraceable");
    !(rights.ptrace || groups_count && rights.groups.contains(&hiding.gid))
}

fn own_groups() -> Vec<u32> {
    // SAFETY: asks for their number, and for an id.
    let (count, own) = unsafe { (libc::getgroups(0, std::ptr::null_mut()), libc::getegid()) };
    let mut all = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for so many.
    let count = unsafe { libc::getgroups(count, all.as_mut_ptr()) };
    all.truncate(usize::try_from(count).unwrap_or(0));
    all.push(own);
    all
}

/// Processes that `/proc` hides from nvcap's user.
#[derive(Debug, Default)]
pub(crate) struct Hidden {
    /// True if `/proc` hides processes of other users.
    pub any: bool,
    /// Text about the hidden processes; `None` if no hidden process can be a chosen one.
    pub said: Option<String>,
}

/// Returns the processes that `/proc` hides from nvcap's user. `names` gives the name of a user.
pub(super) fn hidden(choice: &Choice, names: &mut dyn FnMut(u32) -> Option<String>) -> Hidden {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let Some(hiding) = hiding(&mounts) else {
        return Hidden::default();
    };
    let has = procfs::capabilities() & SYS_PTRACE != 0;
    let rights = Rights {
        groups: own_groups(),
        ptrace: has && File::open("/proc/1/stat").is_ok(),
    };
    // SAFETY: reads an id.
    let own = unsafe { libc::geteuid() };
    let any = is_hidden_from(&hiding, &rights);
    let meant = any && !choice.is_of_user_alone(own, names(own).as_deref());
    Hidden {
        any,
        said: meant.then(|| said(&hiding.hidepid)),
    }
}

fn said(hidepid: &str) -> String {
    format!(
        "processes of others are hidden: /proc is mounted with hidepid={hidepid}, so that it is not known who of them uses a GPU; {}",
        procfs::mem::remedy()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounted(options: &str) -> Option<Hiding> {
        hiding(&format!(
            "22 1 8:2 / / rw shared:1 - ext4 /dev/sda2 rw,hidepid=2\n\
             24 22 0:5 / /srv/proc rw - proc proc rw,hidepid=2\n\
             23 22 0:5 / /proc rw,relatime shared:3 master:2 - proc proc {options}\n\
             25 23 0:30 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw,hidepid=2\n"
        ))
    }

    #[test]
    fn mounts_that_hide() {
        for options in ["rw", "rw,gid=7", "rw,hidepid=0", "rw,hidepid=off,gid=7"] {
            assert_eq!(mounted(options), None, "{options}");
        }
        for (options, hidepid, gid) in [
            ("rw,hidepid=invisible", "invisible", 0),
            ("rw,gid=7,hidepid=noaccess,subset=pid", "noaccess", 7),
            ("rw,gid=7,hidepid=2", "2", 7),
        ] {
            let hidepid = hidepid.to_owned();
            assert_eq!(mounted(options), Some(Hiding { hidepid, gid }), "{options}");
        }
        assert_eq!(hiding(""), None);
        let over =
            "23 22 0:5 / /proc rw - proc proc rw,hidepid=2\n23 22 0:6 / /proc rw - proc proc rw\n";
        assert_eq!(hiding(over), None, "the mount on top is seen");
    }

    #[test]
    fn who_sees_all_the_same() {
        let hidden = |hidepid: &str, groups: &[u32], ptrace| {
            let hiding = mounted(&format!("rw,gid=7,hidepid={hidepid}")).unwrap();
            let groups = groups.to_vec();
            is_hidden_from(&hiding, &Rights { groups, ptrace })
        };
        for hidepid in ["invisible", "2", "noaccess", "1", "ptraceable", "4"] {
            assert!(hidden(hidepid, &[1, 6], false), "{hidepid}");
            assert!(!hidden(hidepid, &[], true), "{hidepid}");
            let group_serves = !["ptraceable", "4"].contains(&hidepid);
            assert_eq!(!hidden(hidepid, &[1, 7], false), group_serves, "{hidepid}");
        }
        assert!(said("invisible").contains("hidepid=invisible"));
    }
}
