//! Breakpoints on doorbells: set, given up, taken away. May not know what is captured.

use super::{
    super::{
        arm::Armed,
        error::{Error, Result, remedy_for_refusal},
        perf::Life,
    },
    Session,
};
use crate::record::At;

impl Session {
    pub(super) fn life(&self) -> Life {
        Life {
            children: self.options.follow,
            until_exec: true,
            from_exec: false,
        }
    }

    pub(super) fn arm(
        &mut self,
        pid: u32,
        address: u64,
        gpu: Option<u32>,
        life: Life,
    ) -> Result<()> {
        if !self.options.watch {
            return Ok(());
        }
        let list = self.armed.entry(pid).or_default();
        if list.iter().any(|a| a.address == address) {
            // Two events would trap twice.
            return Ok(());
        }
        let loaded = &self.loaded;
        let armed = Armed::new(
            pid,
            address,
            life,
            loaded.doorbell(),
            |tid| loaded.birth(tid),
            |tid| list.iter_mut().map(|a| a.release(tid)).filter(|&released| released).count() > 0,
        )
        .map_err(|e| {
            let what = format!("watching the doorbell {address:#x} of process {pid}");
            match e.raw_os_error() {
                Some(libc::ENOSPC) => Error::new(
                    what,
                    "no debug register is left in one of its threads (there are 4)",
                    "end the debugger or tracer that holds them, or trace fewer GPUs (CUDA_VISIBLE_DEVICES)",
                ),
                Some(libc::ENOENT | libc::ESRCH) => Error::new(what, "the process is gone", "check the process id"),
                _ => Error::new(what, &e, remedy_for_refusal(&e)),
            }
        })?;
        self.armed.entry(pid).or_default().push(armed);
        let Some(space) = self.loaded.proc(pid).map(|p| p.space) else {
            return Ok(());
        };
        let state = self.spaces.entry(space).or_default();
        let gpu = gpu.unwrap_or(0);
        if !state.doorbells.contains(&(address, gpu)) {
            state.doorbells.push((address, gpu));
        }
        for index in state.channels.clone() {
            self.publish_token(index)?;
            if life.until_exec {
                self.peek(index);
            }
        }
        Ok(())
    }

    /// A child has the breakpoints of the thread that forked it: others of its own would trap twice, and there may be no
    /// registers for them.
    pub(super) fn inherit(&mut self, at: At, child: u32) {
        let list = self.armed.get(&at.pid);
        let inherited: Vec<Armed> = list
            .into_iter()
            .flatten()
            .filter_map(|a| a.of_child(at.pid, at.tid, at.time_ns))
            .collect();
        if !inherited.is_empty() {
            self.armed.entry(child).or_default().extend(inherited);
        }
    }

    /// A process has executed something else, which ends its breakpoints. What was set after that, before this program heard
    /// of it, would hold registers of the new program for addresses of the old one.
    pub(super) fn exec_ends(&mut self, pid: u32) {
        let list = self.armed.get_mut(&pid).into_iter();
        let over = list.flat_map(|l| l.extract_if(.., |a| a.until_exec));
        let over: Vec<Armed> = over.collect();
        self.give_up(pid, over);
    }

    /// A process has ended.
    pub(super) fn close(&mut self, pid: u32) {
        let over = self.armed.remove(&pid).unwrap_or_default();
        self.give_up(pid, over);
    }

    /// Closes breakpoints of a process, but for those that children have of it.
    fn give_up(&mut self, pid: u32, over: Vec<Armed>) {
        for armed in over {
            let mut all = self.armed.values().flatten();
            if all.any(|a| a.of == Some(pid) && a.address == armed.address) {
                self.ended.push(armed);
            } else {
                self.closed_hits += armed.hits();
            }
        }
    }

    pub(super) fn disarm(&mut self, pid: u32, address: u64) {
        if let Some(list) = self.armed.get_mut(&pid) {
            self.closed_hits += list
                .iter()
                .filter(|a| a.address == address)
                .map(Armed::hits)
                .sum::<u64>();
            list.retain(|a| a.address != address);
        }
        // With them go those that children inherited.
        for list in self.armed.values_mut() {
            list.retain(|a| a.of != Some(pid) || a.address != address);
        }
    }

    /// Gives up the doorbell page of a GPU that is never rung, once the other has been.
    pub(super) fn drop_dead_page(&mut self, pid: u32, space: u32, rung: u64) {
        let Some(state) = self.spaces.get(&space) else {
            return;
        };
        let Some((_, gpu)) = state.doorbells.iter().find(|d| d.0 == rung) else {
            return;
        };
        let dead: Vec<u64> = state
            .doorbells
            .iter()
            .filter(|d| d.1 == *gpu && d.0 != rung && !self.hits.contains_key(&(space, d.0)))
            .map(|d| d.0)
            .collect();
        if self.options.given.is_empty() {
            for address in dead {
                self.disarm(pid, address);
            }
        }
    }
}
