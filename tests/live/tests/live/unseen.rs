//! Processes that `nvcap -a` cannot see, or that came and ended between two looks: it never says that the trace is complete then. Each test
//! has a PID namespace of its own, in which nothing else comes and goes.

use std::path::Path;

use anyhow::{Result, ensure};
use live::harness::not_run;
use live::programs::{Ended, Folder, Running, nvcap};

use crate::refusals::{NOBODY, copy_for_all};
use crate::setup::LIMIT;

/// Begins the trace of a namespace. Perf events are refused to this user, so that processes are looked for in `/proc`.
const TRACE: &str = "./nvcap -a --how observe";

/// Runs shell commands as nobody in a new PID namespace, after these of root's, in a folder with nvcap.
fn in_namespace(as_root: &str, then: &str) -> Result<Ended> {
    let folder = Folder::new()?;
    let program = copy_for_all(&folder, &nvcap()?, "nvcap")?;
    let folder_of = program.parent().unwrap_or(Path::new("/")).display();
    let user = format!("setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups");
    let script =
        format!("set -e; cd {folder_of}; {as_root} echo begun; exec {user} sh -c '{then}'");
    let args = ["--pid", "--fork", "--kill-child", "--mount", "--mount-proc"];
    let args = args.iter().copied().chain(["sh", "-c", &script]);
    let ended = Running::start(Path::new("unshare"), args)?.end(LIMIT)?;
    if !ended.stdout.starts_with("begun") {
        return not_run(format!(
            "no such namespace can be made: {}",
            ended.stderr.trim()
        ));
    }
    if !ended.stderr.contains("looked for in /proc") {
        return not_run("the kernel tells everybody of processes that map memory");
    }
    Ok(ended)
}

/// Processes that `/proc` with hidepid hides may use a GPU, and that is said; with the own processes alone meant, nothing is hidden.
pub fn hidden_by_proc() -> Result<()> {
    for hidepid in ["invisible", "noaccess", "ptraceable"] {
        let mount = format!("mount -t proc -o hidepid={hidepid} proc /proc;");
        let ended = in_namespace(&mount, &format!("exec {TRACE} --duration 1"))?;
        ended.expect_code(3)?;
        let said =
            format!("processes of others are hidden: /proc is mounted with hidepid={hidepid}");
        ensure!(ended.stdout.contains(&said), "{}", ended.stdout);
        let own = format!("exec {TRACE} --user {NOBODY} --duration 1");
        in_namespace(&mount, &own)?.expect_code(0)?;
    }
    Ok(())
}

/// Nothing is missing where nothing comes and goes.
pub fn quiet_host() -> Result<()> {
    let ended = in_namespace("", &format!("exec {TRACE} --duration 1"))?;
    ended.expect_code(0)?;
    ensure!(ended.stdout.contains("complete: "), "{}", ended.stdout);
    Ok(())
}

/// A process that ended at once is said to be unseen: it may have used a GPU.
pub fn short_process() -> Result<()> {
    if Path::new("/sys/module/nvidia/refcnt").exists() {
        return not_run("the driver counts its open files: that this process opened none is known");
    }
    let begun = "until grep -q \"waiting for those to come\" said; do sleep 0.1; done";
    // While it stands still: one that takes long to end would be seen by a look, and have used no GPU.
    let stands = "kill -STOP $!; until ! grep -hs ^State: /proc/$!/task/*/status | grep -qv T; do sleep 0.1; done";
    let trace = format!(
        "{TRACE} 2> said & {begun}; {stands}; /bin/true; kill -CONT $!; kill -TERM $!; wait $! || echo status $?; cat said >&2"
    );
    let ended = in_namespace("chmod 777 .;", &trace)?;
    let said = "came and ended between two looks at /proc";
    ensure!(
        ended.stdout.contains(said) && ended.stdout.contains("INCOMPLETE"),
        "{} {}",
        ended.stdout,
        ended.stderr
    );
    ensure!(ended.stdout.contains("status 3"), "{}", ended.stdout);
    Ok(())
}
