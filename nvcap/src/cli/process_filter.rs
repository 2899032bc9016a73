//! Choice of a host's processes (`-a`).

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::usage::bail_usage;
use super::values::WHOM;
use nvcap_monitor::counts::view::Refused;
use nvcap_process::host::choice::{Choice, Whom};
use nvcap_process::procfs::{mem::Memory, unfit};
use nvcap_show::output::filter::Filter;
use nvcap_show::output::message::tell;

/// Names of the filters of `-a` in clap.
pub(super) const IDS: [&str; 6] = ["cgroup", "comm", "gpu", "container", "pod", "host_root"];

/// Filters of `-a`. Each names its heading, because a heading of the whole group would extend to the following options, too.
#[derive(clap::Args, Debug, Clone, Default)]
#[group(skip)]
pub(super) struct Filters {
    /// Only processes whose control group's path fits PATTERN, such as '/system.slice/*'
    ///
    /// In all these patterns `*` stands for any text and `?` for one character; case does not matter. If an option is given several times,
    /// one of its patterns must match; different options must all match.
    #[arg(long, help_heading = WHOM, value_name = "PATTERN", requires = "all")]
    pub cgroup: Vec<String>,

    /// Only processes with this command name, such as 'python*'
    #[arg(long, help_heading = WHOM, value_name = "PATTERN", requires = "all")]
    pub comm: Vec<String>,

    /// Only processes that use this GPU, N of /dev/nvidiaN or its UUID
    #[arg(long, help_heading = WHOM, value_name = "PATTERN", requires = "all")]
    pub gpu: Vec<String>,

    /// Only processes in this container, by its name in the pod or the beginning of its id
    #[arg(long, help_heading = WHOM, value_name = "PATTERN", requires = "all")]
    pub container: Vec<String>,

    /// Only processes of this pod: its name, NAMESPACE/NAME or UID
    #[arg(long, help_heading = WHOM, value_name = "PATTERN", requires = "all")]
    pub pod: Vec<String>,

    /// Find the host's files below FOLDER. For nvcap in a container with the host's /proc (hostPID), /etc and /var/log mounted there
    #[arg(long, help_heading = WHOM, value_name = "FOLDER", default_value = "/", requires = "all")]
    pub host_root: PathBuf,
}

impl Filters {
    /// Checks that these filters, and fields of a process's identity in an expression, are given with `all` only. (clap lets an option pass
    /// without the one that it requires, where that one conflicts with another option.)
    ///
    /// # Errors
    /// When they were given without `all`.
    pub(super) fn check(&self, all: bool, filter: Option<&Filter>) -> anyhow::Result<()> {
        let none = self.choice(None).is_any()
            && [Path::new("/"), Path::new("")].contains(&self.host_root.as_path());
        if !all && !none {
            bail_usage!(
                "--cgroup, --comm, --gpu, --container, --pod and --host-root choose among all processes of a host: add -a, and leave \
                 out -p and COMMAND"
            );
        }
        if let (false, Some(field)) = (all, filter.and_then(Filter::of_identity)) {
            bail_usage!(
                "the filter asks for {}, which is told of the processes of a whole host alone: add -a (nvcap -a -e ...)",
                field.name()
            );
        }
        Ok(())
    }

    /// Returns the processes that a command concerns (`watch`, `counts`): those that `pids` names, or all that are chosen. `None` if the
    /// user named none, which is reported.
    ///
    /// # Errors
    /// When a process is not there, or filters were given without `all`.
    pub(super) fn whom(
        &self,
        command: &str,
        pids: &[u32],
        all: bool,
        users: impl Iterator<Item = String>,
    ) -> anyhow::Result<Option<Whom>> {
        self.check(all, None)?;
        let verb = command.trim_end_matches('s');
        if all {
            return Ok(Some(Whom::All(self.choice(users), self.host_root.clone())));
        }
        if pids.is_empty() {
            tell(format_args!(
                "nothing to {verb}: name a process (nvcap {command} -p PID), or all that use a GPU (nvcap {command} -a)"
            ));
            return Ok(None);
        }
        let unfit = |pid: &u32| Some((*pid, unfit::unfit(*pid)?));
        if let Some((pid, why)) = pids.iter().find_map(unfit) {
            bail!("cannot {verb} process {pid}: {why}");
        }
        Ok(Some(Whom::Named(pids.to_vec())))
    }

    /// Returns the chosen processes of this host.
    pub(super) fn everyone(&self, user: Option<String>) -> nvcap_live::arrivals::Everyone {
        nvcap_live::arrivals::Everyone {
            choice: self.choice(user),
            host_root: self.host_root.clone(),
            notice: None,
        }
    }

    /// Returns the choice of processes by these filters and by `users`.
    pub(super) fn choice(&self, users: impl IntoIterator<Item = String>) -> Choice {
        Choice {
            user: users.into_iter().flat_map(names_of).collect(),
            cgroup: self.cgroup.clone(),
            comm: self.comm.clone(),
            gpu: self.gpu.clone(),
            container: self.container.clone(),
            pod: self.pod.clone(),
        }
    }
}

/// Makes the error for a process that was named and whose counts were refused.
pub(super) fn cannot_look(pid: u32, refused: &Refused) -> anyhow::Error {
    let why = match Memory::open(pid) {
        Err(e) => unfit::because_of(pid, &e).to_string(),
        Ok(_) => format!("{}; {}", refused.why, nvcap_process::procfs::mem::remedy()),
    };
    anyhow::anyhow!("cannot look into process {pid}: {why}")
}

/// Filters of a command that is always for all processes of a host (`serve`).
#[cfg(feature = "serve")]
#[derive(clap::Args, Debug, Clone, Default)]
#[group(skip)]
pub(super) struct HostFilters {
    /// Only processes of USER, a name, a number or a pattern
    ///
    /// In all these patterns `*` stands for any text and `?` for one character; case does not matter. If an option is given several times,
    /// one of its patterns must match; different options must all match.
    #[arg(long, help_heading = WHOM, value_name = "USER")]
    user: Vec<String>,

    /// Only processes whose control group's path fits PATTERN, such as '/system.slice/*'
    #[arg(long, help_heading = WHOM, value_name = "PATTERN")]
    cgroup: Vec<String>,

    /// Only processes with this command name, such as 'python*'
    #[arg(long, help_heading = WHOM, value_name = "PATTERN")]
    comm: Vec<String>,

    /// Only processes that use this GPU, N of /dev/nvidiaN or its UUID. All that they submit is counted, to other GPUs too
    #[arg(long, help_heading = WHOM, value_name = "PATTERN")]
    gpu: Vec<String>,

    /// Only processes in this container, by its name in the pod or the beginning of its id
    #[arg(long, help_heading = WHOM, value_name = "PATTERN")]
    container: Vec<String>,

    /// Only processes of this pod: its name, NAMESPACE/NAME or UID
    #[arg(long, help_heading = WHOM, value_name = "PATTERN")]
    pod: Vec<String>,
}

#[cfg(feature = "serve")]
impl HostFilters {
    /// Returns the choice of processes by these filters.
    pub(super) fn choice(&self) -> Choice {
        Choice {
            user: self.user.iter().cloned().flat_map(names_of).collect(),
            cgroup: self.cgroup.clone(),
            comm: self.comm.clone(),
            gpu: self.gpu.clone(),
            container: self.container.clone(),
            pod: self.pod.clone(),
        }
    }
}

#[cfg(test)]
impl Filters {
    fn of(comm: &str) -> Self {
        Self {
            comm: vec![comm.to_owned()],
            ..Self::default()
        }
    }
}

/// Returns the patterns for a user: the name and, if this machine knows it, the number. A user of a directory service has no name in
/// /etc/passwd.
fn names_of(user: String) -> Vec<String> {
    if !user.contains(['*', '?'])
        && user.parse::<u32>().is_err()
        && let Ok(account) = nvcap_process::user::User::find(&user)
    {
        return vec![account.uid.to_string(), user];
    }
    vec![user]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_go_with_all() {
        let filter = Filter::parse("pod~a* && op=launch").unwrap();
        let other = Filter::parse("pid=7").unwrap();
        let (none, some) = (Filters::default(), Filters::of("x"));
        assert!(none.check(false, Some(&other)).is_ok() && some.check(true, Some(&filter)).is_ok());
        assert!(some.check(false, None).is_err() && none.check(false, Some(&filter)).is_err());
    }

    #[test]
    fn a_user_is_known_by_number_too() {
        let choice = Filters::default().choice(["no such user".into(), "7".into(), "a*".into()]);
        assert_eq!(choice.user, ["no such user", "7", "a*"]);
        assert_eq!(Filters::default().choice(None), Choice::default());
        let root = Filters::default().choice(["root".into()]);
        assert!(root.user.contains(&"root".to_owned()), "{root:?}");
    }
}
