//! The processes of this host that use a GPU, and the identity of each: user, container, pod. All facts come from files of the kernel and of the
//! host: no API server and no daemon is asked.
//!
//! - [`uses`]: the GPUs that a process uses; [`mig`]: its instances of them.
//! - [`Host`]: the [`Identity`] of a process.
//! - [`choice`]: the processes that a command concerns.
//! - [`census`]: the chosen processes that use a GPU now, and those that begin to.
//! - `sight`: the processes that `/proc` hides.
//! - `mmap_events`: processes that the kernel reports; `fork_events`: their makers; `kernel_records`: the records in which both are
//!   reported.
//!
//! Anybody may write these files: nothing here panics at any contents, and the amount that is kept of them is bounded.

pub mod census;
pub mod choice;
pub mod fork_events;
pub mod mig;
pub mod mmap_events;
pub mod uses;

mod cgroup;
mod driver_users;
mod gpus;
mod kernel_records;
mod logs;
mod opens;
mod sight;
mod users;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    time::Instant,
};

use crate::procfs;
use choice::Choice;
use logs::Logs;
use nvcap_decode::record::{Identity, UsedGpu};
use users::Users;
pub use uses::Uses;

/// The host, known by its files.
#[derive(Debug)]
pub struct Host {
    proc: PathBuf,
    users: Users,
    logs: Logs,
    uuids: BTreeMap<u32, String>,
}

impl Host {
    /// Makes the host whose files are below `root`: `/`, or the folder where they are mounted in nvcap's container. `/proc` is nvcap's own.
    pub fn new(root: &Path) -> Self {
        Self::with_proc(root, Path::new("/proc"))
    }

    fn with_proc(root: &Path, proc: &Path) -> Self {
        Self {
            users: Users::of(root),
            logs: Logs::of(root),
            uuids: gpus::uuids([proc, &root.join("proc")]),
            proc: proc.to_owned(),
        }
    }

    /// Returns the identity of a process. `uses` names the GPUs that it uses.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn identity(&mut self, pid: u32, uses: &Uses) -> io::Result<Identity> {
        let now = Instant::now();
        let folder = self.proc.join(pid.to_string());
        let status = procfs::text(folder.join("status"))?;
        let comm = procfs::text(folder.join("comm"))?;
        let value = |name: &str| {
            status
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(":\t"))
        };
        let number = |text: &str| text.parse::<u32>().ok();
        let uid = value("Uid").and_then(|v| number(v.split_whitespace().next()?));
        let inner_pid = value("NSpid").and_then(|v| number(v.split_whitespace().next_back()?));
        // If /proc shows no control groups (a kernel without them), nothing is known of them.
        let cgroups = procfs::text(folder.join("cgroup")).unwrap_or_default();
        let mut place = cgroup::place(&cgroups);
        self.logs
            .add_names(place.container.as_mut(), place.pod.as_mut(), now);
        Ok(Identity {
            comm: comm.strip_suffix('\n').unwrap_or(&comm).to_owned(),
            inner_pid: inner_pid.filter(|inner| *inner != pid),
            uid,
            user: uid.and_then(|uid| self.users.name(uid, now)),
            cgroup: place.path,
            container: place.container,
            pod: place.pod,
            gpus: self.used(uses.gpus.iter().copied()),
        })
    }

    /// Returns the processes that `/proc` hides from nvcap's user.
    fn hidden(&mut self, choice: &Choice) -> sight::Hidden {
        let users = &mut self.users;
        sight::hidden(choice, &mut |uid| users.name(uid, Instant::now()))
    }

    /// Returns the name of a user.
    fn user(&mut self, uid: u32) -> Option<String> {
        self.users.name(uid, Instant::now())
    }

    /// Returns the GPUs with these minor numbers.
    fn used(&self, minors: impl IntoIterator<Item = u32>) -> Vec<UsedGpu> {
        gpus::used(minors, &self.uuids)
    }
}

/// The processes of this machine that use a GPU.
#[derive(Clone, Debug, Default)]
pub struct GpuProcesses {
    /// Processes that use a GPU, by id.
    pub all: Vec<(u32, Uses)>,
    /// Processes that may not be looked into, whether or not they use a GPU.
    pub hidden: Vec<u32>,
}

/// Returns a text about the processes of the host that are hidden from nvcap's user; `None` if no hidden process can be a chosen one.
/// `root` is the folder of the host's files.
pub fn hidden_from_user(choice: &Choice, root: &Path) -> Option<String> {
    Host::new(root).hidden(choice).said
}

impl GpuProcesses {
    /// Returns the processes that have memory of a GPU mapped, and can therefore submit.
    pub fn mapped(&self) -> impl Iterator<Item = u32> {
        let mapped = self.all.iter().filter(|(_, uses)| uses.mapped);
        mapped.map(|(pid, _)| *pid)
    }

    /// Keeps only the chosen processes. `root` is the folder of the host's files.
    pub fn chosen(mut self, choice: &Choice, root: &Path) -> Self {
        if !choice.is_any() {
            let mut host = Host::new(root);
            let none = Uses::default();
            self.all.retain(|(pid, uses)| {
                let who = host.identity(*pid, uses);
                who.is_ok_and(|who| choice.takes(&who))
            });
            self.hidden.retain(|pid| {
                let who = host.identity(*pid, &none);
                who.is_ok_and(|who| choice.takes_beside_gpus(&who))
            });
        }
        self
    }
}

/// Finds processes by name: the process's own name, or the name of its program's file. If some of them use a GPU, or other processes that
/// use one execute a script of that name, only those are returned. nvcap itself is left out.
#[must_use]
pub fn called(name: &str) -> Vec<u32> {
    let others = procfs::processes().into_iter();
    let names = others.filter(|pid| *pid != std::process::id());
    let names = names.filter_map(|pid| Some((pid, procfs::name(pid, None)?)));
    let names = names.map(|(pid, comm)| (pid, comm, procfs::arguments(pid).unwrap_or_default()));
    let mut named = Vec::new();
    let mut of_scripts = Vec::new();
    for (pid, comm, arguments) in names {
        let is_called = |path: &String| Path::new(path).file_name().is_some_and(|n| n == name);
        let mut arguments = arguments.iter();
        let program = arguments.next();
        let script = arguments.find(|word| !word.starts_with('-'));
        if comm == name || program.is_some_and(is_called) {
            named.push(pid);
        } else if script.is_some_and(is_called) {
            of_scripts.push(pid);
        }
    }
    let uses_gpu = |pid: &&u32| uses::of_process(**pid).is_ok_and(|uses| uses.any());
    let both = named.iter().chain(&of_scripts);
    let mut meant = Vec::from_iter(both.filter(uses_gpu).copied());
    if meant.is_empty() {
        meant = named;
    }
    meant.sort_unstable();
    meant
}

/// Looks once for the processes that use a GPU. The driver, if it answers, is asked about processes that may not be looked into.
#[must_use]
pub fn gpu_processes() -> GpuProcesses {
    let mut found = GpuProcesses::default();
    for pid in procfs::processes() {
        match uses::of_process(pid) {
            Ok(uses) if uses.any() => found.all.push((pid, uses)),
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => found.hidden.push(pid),
            // The process uses no GPU, or has ended meanwhile.
            Ok(_) | Err(_) => {}
        }
    }
    found.all.sort_unstable_by_key(|(pid, _)| *pid);
    if !found.hidden.is_empty()
        && let Some(users) = driver_users::ask()
    {
        found.hidden.retain(|pid| users.contains(pid));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const ID: &str = "3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a";
    const UID: &str = "0b6f6a1c-52bd-4b7e-8f6a-1c52bd4b7e8f";

    /// Test that processes are chosen by their name, and by that of their program's file; a process that executes a script of that name is
    /// not, unless it uses a GPU.
    #[test]
    fn processes_by_name() {
        use std::os::unix::process::CommandExt as _;
        use std::process::Command;

        let name = format!("called-{}", std::process::id());
        assert!(called(&name).is_empty());
        let start = |program: &str, script: &str| {
            let mut command = Command::new("tail");
            command.arg0(program).args(["-f", "/dev/null", script]);
            let null = std::process::Stdio::null;
            command.stdout(null()).stderr(null()).spawn().unwrap()
        };
        let mut child = start(&format!("/nowhere/{name}"), "x");
        let mut other = start("other", &name);
        // A process that was just executed gets its name and arguments a moment later.
        let begun = std::time::Instant::now();
        let is_shown = |pid| {
            let arguments = procfs::arguments(pid).is_some_and(|all| all.len() > 3);
            arguments && procfs::name(pid, None).is_some_and(|comm| comm == "tail")
        };
        while !(is_shown(child.id()) && is_shown(other.id())) {
            assert!(begun.elapsed().as_secs() < 60, "guard: it is not shown");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let found = called(&name);
        let by_comm = called("tail");
        for child in [&mut child, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(found, [child.id()]);
        assert!(by_comm.contains(&child.id()) && by_comm.contains(&other.id()));
    }

    /// Makes a host's files with one process, 4711, of a pod.
    fn made(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("nvcap-host-{name}-{}", std::process::id()));
        let write = |path: &str, text: &[u8]| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let cgroup = format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-{ID}.scope\n",
            UID.replace('-', "_")
        );
        write("proc/4711/cgroup", cgroup.as_bytes());
        write("proc/4711/comm", b"tr\\n \xff:\n");
        write(
            "proc/4711/status",
            b"Name:\tshown otherwise\nUid:\t1000\t1000\t1000\t1000\nNSpid:\t4711\t17\t1\n",
        );
        write(
            "proc/driver/nvidia/gpus/0000:c1:00.0/information",
            b"GPU UUID: \t GPU-12ab\nDevice Minor: \t 3\n",
        );
        write("etc/passwd", b"ann:x:1000:1000::/home/ann:/bin/sh\n");
        write(
            &format!("var/log/containers/train-0_research_worker-{ID}.log"),
            b"",
        );
        root
    }

    #[test]
    fn a_process_of_a_pod() {
        let root = made("pod");
        let mut host = Host::with_proc(&root, &root.join("proc"));
        let uses = Uses {
            gpus: [3, 4].into(),
            mapped: true,
        };
        let who = host.identity(4711, &uses).unwrap();
        assert_eq!(who.comm, "tr\\n \u{fffd}:");
        assert_eq!((who.inner_pid, who.uid), (Some(1), Some(1000)));
        assert_eq!(who.user.as_deref(), Some("ann"));
        let container = who.container.unwrap();
        assert_eq!(
            (container.id.as_str(), container.runtime.as_deref()),
            (ID, Some("containerd"))
        );
        assert_eq!(container.name.as_deref(), Some("worker"));
        let pod = who.pod.unwrap();
        assert_eq!(
            (pod.uid.as_str(), pod.qos.as_deref()),
            (UID, Some("burstable"))
        );
        assert_eq!(
            (pod.namespace.as_deref(), pod.name.as_deref()),
            (Some("research"), Some("train-0"))
        );
        let gpus: Vec<_> = who
            .gpus
            .iter()
            .map(|g| (g.minor, g.uuid.as_deref()))
            .collect();
        assert_eq!(gpus, [(3, Some("GPU-12ab")), (4, None)]);
        assert!(host.identity(4712, &uses).is_err());
        fs::remove_dir_all(&root).unwrap();
    }

    /// Test of other lines, other orders, and no lines: unknown facts are left out.
    #[test]
    fn files_that_say_nothing() {
        let root = made("nothing");
        for (file, text) in [
            ("status", &b"Uid:\tx\nNSpid:\t\nUid:\t1\n"[..]),
            ("cgroup", b"\xff\xff\n0::/docker/\xff"),
            ("comm", b""),
        ] {
            fs::write(root.join("proc/4711").join(file), text).unwrap();
        }
        let mut host = Host::with_proc(&root, &root.join("proc"));
        let who = host.identity(4711, &Uses::default()).unwrap();
        let cgroup = Some("/docker/\u{fffd}".to_owned());
        assert_eq!(
            who,
            Identity {
                cgroup,
                ..Identity::default()
            }
        );
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn this_process_uses_none() {
        let me = std::process::id();
        let mut host = Host::new(Path::new("/"));
        let uses = uses::of_process(me).unwrap();
        assert_eq!(uses, Uses::default());
        let who = host.identity(me, &uses).unwrap();
        // SAFETY: reads an id.
        assert_eq!(who.uid, Some(unsafe { libc::getuid() }));
        assert_eq!(Some(who.comm), procfs::name(me, None));
        let found = gpu_processes();
        assert!(found.all.iter().all(|(pid, _)| *pid != me));
    }
}
