//! The traced program: softgpu in its device mode; starts it, waits for it and checks its result.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, ensure};
use softgpu::layout::Channel;
use softgpu::plan::Plan;
use softgpu::stream::Shape;

/// Path of the program in the guest.
pub const SOFTGPU: &str = "/bin/softgpu";

/// The options of softgpu that determine the expected content.
#[derive(Clone, Debug)]
pub struct Want {
    /// Everything follows from it.
    pub seed: u64,
    /// GPUs.
    pub gpus: usize,
    /// Channels of all GPUs together.
    pub channels: usize,
    /// Submissions of all channels together.
    pub submissions: u64,
    /// Entries of a submission at most.
    pub burst: u32,
    /// One submission in this many is of 1 MiB; 0: none.
    pub big: u64,
    /// Options that do not change the content.
    pub how: Vec<String>,
}

impl Want {
    /// A run of `submissions` on `gpus` GPUs.
    pub fn new(gpus: usize, submissions: u64) -> Want {
        Want {
            seed: 1,
            gpus,
            channels: 6 * gpus,
            submissions,
            burst: 1,
            big: 0,
            how: Vec::new(),
        }
    }

    /// Adds options.
    pub fn how(mut self, options: &[&str]) -> Want {
        self.how.extend(options.iter().map(|o| o.to_string()));
        self
    }

    /// The arguments after the program's name.
    pub fn args(&self) -> Vec<String> {
        let mut args: Vec<String> = vec!["--device".into()];
        for (name, value) in [
            ("--seed", self.seed),
            ("--gpus", self.gpus as u64),
            ("--channels", self.channels as u64),
            ("--submissions", self.submissions),
            ("--burst", u64::from(self.burst)),
            ("--big", self.big),
        ] {
            args.push(name.into());
            args.push(value.to_string());
        }
        args.extend(self.how.iter().cloned());
        args
    }

    /// The submissions that image number `image` of the run must make.
    pub fn plan(&self, image: u32) -> Plan {
        Plan {
            shape: Shape {
                seed: self.seed,
                image,
                burst: self.burst,
                big_one_in: self.big,
                launches_only: false,
                kernels: false,
                module_every: 0,
                rounds: None,
                timed: None,
                code: false,
            },
            channels: Channel::first(self.channels, self.gpus),
            submissions: self.submissions,
        }
    }

    /// The command.
    pub fn command(&self) -> Command {
        let mut command = Command::new(SOFTGPU);
        command.args(self.args());
        command
    }
}

/// A running softgpu whose output is read line by line.
pub struct Target {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Target {
    /// Starts it and returns once it has mapped everything; with `--wait-file`, once it has made its first submissions and waits.
    pub fn start(want: &Want) -> Result<Target> {
        Target::start_as(&mut want.command(), want)
    }

    /// Starts it by a command that executes softgpu in the end.
    pub fn start_as(command: &mut Command, want: &Want) -> Result<Target> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting softgpu")?;
        let lines = BufReader::new(child.stdout.take().context("its output")?);
        let mut target = Target { child, lines };
        target.until("ready")?;
        if want.how.iter().any(|option| option == "--wait-file") {
            target.until("waiting")?;
        }
        Ok(target)
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads lines until one begins with `what`.
    pub fn until(&mut self, what: &str) -> Result<String> {
        loop {
            let mut line = String::new();
            ensure!(
                self.lines.read_line(&mut line)? > 0,
                "softgpu ended before it said {what:?}"
            );
            if line.starts_with(what) {
                return Ok(line.trim_end().into());
            }
        }
    }

    /// Waits for its end, which must be a success.
    pub fn end(mut self) -> Result<()> {
        let status = self.child.wait()?;
        ensure!(status.success(), "softgpu: {status}");
        Ok(())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes an empty file that a waiting softgpu looks for.
pub fn go(file: &str) -> Result<()> {
    fs::write(file, "").with_context(|| format!("writing {file}"))
}
