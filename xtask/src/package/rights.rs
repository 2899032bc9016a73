//! The rights of the service are enough to look into another user's process, and each of them is needed.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Stdio},
};

use anyhow::{Context, Result, ensure};

use super::contents::put;
use crate::{install, paths, report::Report, shell::Cmd};

/// `nvcap dump` has found work that is not done.
const BUSY: i32 = 11;
/// Exit status of `nvcap dump` that may not look.
const REFUSED: i32 = 1;

/// Runs nvcap as nobody, with the capabilities that `nvcap.service` gives it, against the software GPU of root.
pub fn check(report: &mut Report, program: &Path) {
    const NAME: &str = "rights of nvcap.service";
    if install::root() != install::Root::Already || paths::on_path("setpriv").is_none() {
        report.skip(NAME, "only root may give rights, by setpriv (util-linux)");
        return;
    }
    report.check(NAME, enough(program));
}

fn enough(program: &Path) -> Result<()> {
    let unit = fs::read_to_string(paths::root().join("packaging/systemd/nvcap.service"))?;
    let given = unit
        .lines()
        .find_map(|line| line.strip_prefix("AmbientCapabilities="))
        .context("nvcap.service gives no capability")?;
    let given = given.to_lowercase().replace("cap_", "");
    let given: Vec<&str> = given.split_whitespace().collect();
    // Where nobody may start it, whatever the modes of the folders of this checkout.
    let folder = env::temp_dir().join(format!("nvcap-rights-{}", std::process::id()));
    let nvcap = folder.join("nvcap");
    put(&nvcap, &fs::read(program)?, 0o755)?;
    let mut softgpu = hung(&program.with_file_name("softgpu"))?;
    let pid = softgpu.id();
    let done = (|| {
        ensure!(
            dump(&nvcap, pid, &given)? == BUSY,
            "with {given:?} nvcap cannot look into a process of root"
        );
        for one in &given {
            let others: Vec<&str> = given.iter().copied().filter(|c| c != one).collect();
            ensure!(
                dump(&nvcap, pid, &others)? == REFUSED,
                "nvcap.service gives {one}, which is not needed: {others:?} are enough"
            );
        }
        Ok(())
    })();
    let _ = softgpu.kill();
    let _ = softgpu.wait();
    fs::remove_dir_all(&folder)?;
    done
}

/// A process that uses the software GPU, and has work that waits for ever.
fn hung(softgpu: &Path) -> Result<Child> {
    let cmd = Cmd::new(softgpu).args(["--files", "--hang", "wait", "--linger-ms", "3600000"]);
    let mut child = cmd
        .command()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("failed: {}", cmd.line()))?;
    let out = child.stdout.take().context("it has an output")?;
    let mut lines = BufReader::new(out).lines();
    let is_hung = lines.any(|line| line.is_ok_and(|line| line.starts_with("hung")));
    if !is_hung {
        let _ = child.kill();
        let _ = child.wait();
    }
    ensure!(is_hung, "the software GPU ended: {}", cmd.line());
    Ok(child)
}

/// The status of `nvcap dump` by a user without rights but `capabilities`.
fn dump(nvcap: &Path, pid: u32, capabilities: &[&str]) -> Result<i32> {
    let set: String = capabilities.iter().map(|c| format!(",+{c}")).collect();
    let set = format!("-all{set}");
    let cmd = Cmd::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["--no-new-privs", "--inh-caps", &set])
        .args(["--ambient-caps", &set, "--bounding-set", &set])
        .arg(nvcap)
        .args(["dump", "-p", &pid.to_string()])
        .env("NVCAP_DEVICES_BY_NAME", "1");
    let out = cmd.command().output()?;
    out.status
        .code()
        .with_context(|| format!("{} from: {}", out.status, cmd.line()))
}
