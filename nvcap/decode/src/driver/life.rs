//! Life of processes: a fork shares the parent's mappings and objects; an exec or an exit releases them.

use super::{
    model::{Change, Model},
    object::{ObjectRef, Space},
    process::{CpuMap, Target},
};
use crate::record::{At, ChannelId, CpuVa, Life};

impl Model {
    pub(crate) fn life(&mut self, at: At, life: &Life) {
        match life {
            Life::Present { name } => {
                if let Some(process) = self.process(at.pid) {
                    process.name = Some(name.clone());
                }
            }
            Life::Identity(_) | Life::Thread { .. } | Life::Exit { process: false } => {}
            Life::Fork { child } => self.fork(at.pid, *child),
            Life::Exec { name } => {
                self.forget(at.pid);
                if let Some(process) = self.process(at.pid) {
                    process.name = Some(name.clone());
                }
            }
            Life::Exit { process: true } => self.forget(at.pid),
        }
    }

    /// Gives a child its parent's mappings and open files. (UVM does not follow a fork.)
    fn fork(&mut self, parent: u32, child: u32) {
        if parent == child {
            return;
        }
        // The process id belonged to another process, whose end was not seen.
        self.forget(child);
        let Some(from) = self.processes.get(&parent) else {
            return;
        };
        let (name, maps, clients) = (from.name.clone(), from.maps.clone(), from.clients.clone());
        for client in &clients {
            if let Some(client) = self.clients.get_mut(client) {
                client.holders.insert(child);
            }
        }
        let Some(process) = self.process(child) else {
            return;
        };
        process.name = name;
        process.clients = clients;
        for (start, map) in maps {
            self.put_map(child, start, CpuMap { rung: 0, ..map });
        }
        let shared: Vec<ChannelId> = self
            .channels
            .values()
            .filter(|c| c.pid == parent && c.announced.is_some())
            .map(|c| c.id)
            .collect();
        for channel in shared {
            self.changes.push(Change::ChannelShared {
                channel,
                pid: child,
            });
        }
    }

    /// Forgets the mappings and open files of a process that has ended or executed another program.
    fn forget(&mut self, pid: u32) {
        let Some(process) = self.processes.remove(&pid) else {
            return;
        };
        for (start, map) in process.maps {
            match map.target {
                Target::Doorbell { .. } => self.changes.push(Change::DoorbellGone {
                    pid,
                    cpu_va: CpuVa(start),
                    len: map.len,
                }),
                Target::Memory { id, .. } => {
                    if let Some(memory) = self.memory.get_mut(&id) {
                        memory.cpu.remove(&(pid, start));
                    }
                }
                Target::Channel { .. } | Target::Unknown => {}
            }
        }
        for handle in process.clients {
            let Some(client) = self.clients.get_mut(&handle) else {
                continue;
            };
            client.holders.remove(&pid);
            if client.holders.is_empty() {
                self.free(ObjectRef {
                    client: handle,
                    handle,
                });
            }
        }
        self.drop_space(Space::Uvm { pid });
        let rest: Vec<ChannelId> = self
            .channels
            .values()
            .filter(|c| c.pid == pid)
            .map(|c| c.id)
            .collect();
        for id in rest {
            // A client that a forked child still holds keeps its channels, which now belong to the child.
            let heir = self
                .channels
                .get(&id)
                .and_then(|c| c.object)
                .and_then(|o| self.clients.get(&o.client)?.holders.first().copied());
            match (heir, self.channels.get_mut(&id)) {
                (Some(heir), Some(channel)) => channel.pid = heir,
                _ => self.drop_channel(id),
            }
        }
    }
}
