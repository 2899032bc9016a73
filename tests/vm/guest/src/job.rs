//! The configuration and tests of this boot: the file `/job` that the runner put beside the init, one `KEY VALUE` per line.

use anyhow::{Context, Result, bail};

/// The file.
#[derive(Debug, Default, Clone)]
pub struct Job {
    /// How nvcap is to find mappings: kprobe, fentry, tracepoint (or auto).
    pub way: String,
    /// GPUs of the stand-in.
    pub gpus: usize,
    /// Driver branch of the stand-in.
    pub branch: u32,
    /// The modules carry BTF.
    pub btf: bool,
    /// `none` or `integrity`; raised once the (unsigned) modules are loaded.
    pub lockdown: String,
    /// /proc/sys/kernel/kptr_restrict.
    pub kptr: u32,
    /// nvcap runs as an ordinary user with the capabilities it needs.
    pub user: bool,
    /// Whether nvcap is in the guest.
    pub nvcap: bool,
    /// Time limit of a test, seconds.
    pub limit: u64,
    /// Tests, in order.
    pub tests: Vec<String>,
}

impl Job {
    /// Reads `/job`.
    pub fn read() -> Result<Job> {
        let text = std::fs::read_to_string("/job").context("cannot read /job")?;
        let mut job = Job {
            gpus: 1,
            branch: 580,
            limit: 60,
            ..Job::default()
        };
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "way" => job.way = value.into(),
                "gpus" => job.gpus = value.parse()?,
                "branch" => job.branch = value.parse()?,
                "btf" => job.btf = value == "1",
                "lockdown" => job.lockdown = value.into(),
                "kptr" => job.kptr = value.parse()?,
                "user" => job.user = value == "1",
                "nvcap" => job.nvcap = value == "1",
                "limit" => job.limit = value.parse()?,
                "test" => job.tests.push(value.into()),
                _ => bail!("/job: unknown key {key:?}"),
            }
        }
        Ok(job)
    }
}
