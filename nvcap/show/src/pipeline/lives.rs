//! Names of processes and threads, and identities of processes, from the records of their lives.

use std::sync::Arc;

use nvcap_decode::record::{Identity, Life, Process};
use nvcap_decode::wire::hash::NumberMap;

/// Names and identities of those that live.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// Names by thread or process id.
    names: NumberMap<u32, Arc<str>>,
    identities: NumberMap<u32, Arc<Identity>>,
}

impl Lives {
    pub(super) fn note(&mut self, p: &Process) {
        match &p.life {
            Life::Present { name } | Life::Exec { name } => {
                let id = if p.at.tid != 0 { p.at.tid } else { p.at.pid };
                self.names.insert(id, name.as_str().into());
                self.names
                    .entry(p.at.pid)
                    .or_insert_with(|| name.as_str().into());
            }
            Life::Identity(who) => {
                self.identities
                    .insert(p.at.pid, Arc::new(Identity::clone(who)));
            }
            // A child has its parent's name until a record gives another.
            Life::Fork { child } | Life::Thread { child } => {
                if let Some(name) = self.name(p.at.tid, p.at.pid) {
                    self.names.insert(*child, name);
                }
                // It is in its parent's container.
                if let (Life::Fork { .. }, Some(who)) = (&p.life, self.identity(p.at.pid)) {
                    self.identities.entry(*child).or_insert(who);
                }
            }
            Life::Exit { process } => {
                self.names.remove(&p.at.tid);
                if *process {
                    self.names.remove(&p.at.pid);
                    self.identities.remove(&p.at.pid);
                }
            }
        }
    }

    /// The name of a thread, else that of its process.
    pub(super) fn name(&self, tid: u32, pid: u32) -> Option<Arc<str>> {
        let name = self.names.get(&tid).or_else(|| self.names.get(&pid));
        name.cloned()
    }

    /// Returns the identity of a process, where that was told.
    pub(super) fn identity(&self, pid: u32) -> Option<Arc<Identity>> {
        self.identities.get(&pid).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::At;

    #[test]
    fn a_child_is_in_its_parent_s_container() {
        let mut lives = Lives::default();
        let mut note = |pid, life| {
            let at = At {
                pid,
                tid: pid,
                time_ns: 1,
            };
            lives.note(&Process { at, life });
            [10, 20].map(|pid| lives.identity(pid).map(|w| w.comm.clone()))
        };
        let who = |comm: &str| {
            Life::Identity(Box::new(Identity {
                comm: comm.into(),
                ..Identity::default()
            }))
        };
        note(10, who("a"));
        let both = note(10, Life::Fork { child: 20 });
        assert_eq!(both, [Some("a".into()), Some("a".into())]);
        assert_eq!(note(20, who("b"))[1], Some("b".into()));
        assert_eq!(
            note(10, Life::Exit { process: true }),
            [None, Some("b".into())]
        );
    }
}
