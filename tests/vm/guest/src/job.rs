//! The cells of this boot: the file `/job` that the runner put beside the init, one `KEY VALUE` per line. What stands before the first
//! `cell NAME` is common to all cells; each cell's own lines follow it.

use anyhow::{Context, Result, bail};

/// One cell: a configuration of the machine, and the tests that run in it.
#[derive(Debug, Default, Clone)]
pub struct Job {
    /// The cell's name.
    pub cell: String,
    /// Way in which nvcap is to find mappings: kprobe, fentry, tracepoint (or auto).
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
    /// True if nvcap is in the guest.
    pub nvcap: bool,
    /// Seconds after which a test that has come to no end is ended: a guard against hanging.
    pub guard: u64,
    /// Tests, in order.
    pub tests: Vec<String>,
}

impl Job {
    /// Reads `/job`: all cells, in order.
    pub fn read() -> Result<Vec<Job>> {
        Job::parse(&std::fs::read_to_string("/job").context("cannot read /job")?)
    }

    /// The cell with this name.
    pub fn of(cell: &str) -> Result<Job> {
        let mut jobs = Job::read()?.into_iter();
        jobs.find(|job| job.cell == cell)
            .with_context(|| format!("/job has no cell {cell:?}"))
    }

    fn parse(text: &str) -> Result<Vec<Job>> {
        let mut common = Job {
            gpus: 1,
            branch: 580,
            guard: 600,
            ..Job::default()
        };
        let mut jobs: Vec<Job> = Vec::new();
        for line in text.lines() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            if key == "cell" {
                jobs.push(Job {
                    cell: value.into(),
                    ..common.clone()
                });
                continue;
            }
            let job = jobs.last_mut().unwrap_or(&mut common);
            match key {
                "way" => job.way = value.into(),
                "gpus" => job.gpus = value.parse()?,
                "branch" => job.branch = value.parse()?,
                "btf" => job.btf = value == "1",
                "lockdown" => job.lockdown = value.into(),
                "kptr" => job.kptr = value.parse()?,
                "user" => job.user = value == "1",
                "nvcap" => job.nvcap = value == "1",
                "guard" => job.guard = value.parse()?,
                "test" => job.tests.push(value.into()),
                _ => bail!("/job: unknown key {key:?}"),
            }
        }
        Ok(jobs)
    }

    /// The folder with the stand-in's modules for this cell.
    pub fn modules(&self) -> String {
        let kind = if self.btf { "btf" } else { "plain" };
        format!("/modules/{}-{kind}", self.branch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_have_what_is_common_and_what_is_their_own() {
        let text = "nvcap 1\nguard 7\ncell a\nway kprobe\nbtf 1\ntest one\ntest run:x y\ncell b\nbranch 535\n";
        let jobs = Job::parse(text).expect("a job");
        let [a, b] = &jobs[..] else {
            panic!("{jobs:?}")
        };
        assert!(a.nvcap && b.nvcap && a.guard == 7 && b.guard == 7);
        assert_eq!(a.tests, ["one", "run:x y"]);
        assert_eq!(a.modules(), "/modules/580-btf");
        assert_eq!(b.modules(), "/modules/535-plain");
        assert!(b.tests.is_empty() && b.way.is_empty());
    }
}
