//! The driver's modules while the trace goes on: loaded later, unloaded, loaded again. Says what may have gone unseen.

use std::{fs, path::Path};

use nvcap_common::Config;

use super::{
    super::{
        arm, discover,
        error::{Error, Result},
        kprobes::Change,
        load::majors,
    },
    Session,
};
use crate::record::At;

impl Session {
    pub(super) fn refresh_majors(&mut self) -> Result<()> {
        let (nvidia, uvm) = majors();
        // nvidia.ko's number is fixed; it may be loaded after us.
        let nvidia = if nvidia == 0 { 195 } else { nvidia };
        if (nvidia, uvm) != (self.nvidia_major, self.uvm_major) {
            (self.nvidia_major, self.uvm_major) = (nvidia, uvm);
            self.loaded.set_config(Config {
                uvm_major: uvm,
                nvidia_major: nvidia,
                secret: self.secret,
                gp_get: u32::from(self.options.gp_get),
                pad: 0,
            })?;
        }
        Ok(())
    }

    /// Follows the driver's modules. `since`: another one than before was not loaded earlier than this.
    ///
    /// # Errors
    /// When the machine's state can no longer be kept up (map updates refused).
    pub(super) fn modules(&mut self, since: u64) -> Result<()> {
        self.refresh_majors()?;
        let Some(way) = self.way else {
            return Ok(());
        };
        let changed = discover::refresh(&mut self.loaded, way);
        let now = arm::now();
        self.looked_at_modules = now;
        match changed {
            Ok(Change::None) => {}
            Ok(Change::Gone) => (self.options.notice)("the NVIDIA driver was unloaded"),
            Ok(Change::Attached) => {
                self.unwatched = Some((since, now));
                // The BPF programs know of children that this program has yet to hear of.
                for pid in all_processes() {
                    if self.loaded.proc(pid).is_none() || !uses_driver(pid) {
                        continue;
                    }
                    self.blind(pid, &unseen(pid));
                }
                (self.options.notice)(
                    "the NVIDIA driver was loaded again; its calls are followed again",
                );
            }
            Err(e) => self.blind(0, &e),
        }
        Ok(())
    }

    /// A process has ended: whether that was while nobody watched the driver.
    pub(super) fn unseen_end(&mut self, at: At) {
        if self
            .unwatched
            .is_some_and(|(from, to)| (from..to).contains(&at.time_ns))
        {
            self.blind(at.pid, &unseen(at.pid));
        }
    }
}

fn unseen(pid: u32) -> Error {
    Error::new(
        format!("following process {pid}"),
        "the NVIDIA driver was loaded again, and what the process did with it before nvcap had attached to it is unknown",
        "start the process later, or use --discover fentry or tracepoint",
    )
}

fn all_processes() -> Vec<u32> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders
        .filter_map(|f| f.file_name().to_str()?.parse().ok())
        .collect()
}

/// The process has one of the driver's device files open.
fn uses_driver(pid: u32) -> bool {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return false;
    };
    let is_driver = |target: &Path| {
        target
            .to_str()
            .is_some_and(|t| t.starts_with("/dev/nvidia"))
    };
    files
        .flatten()
        .any(|f| fs::read_link(f.path()).is_ok_and(|target| is_driver(&target)))
}
