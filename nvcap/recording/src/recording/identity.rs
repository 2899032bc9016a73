//! Conversion of a process's identity to a message, and back.

use super::messages as m;
use nvcap_decode::record as r;

impl From<&r::Identity> for m::Identity {
    fn from(i: &r::Identity) -> Self {
        let container = i.container.as_ref().map(|c| m::Container {
            id: c.id.clone(),
            runtime: c.runtime.clone(),
            name: c.name.clone(),
        });
        let pod = i.pod.as_ref().map(|p| m::Pod {
            uid: p.uid.clone(),
            qos: p.qos.clone(),
            name: p.name.clone(),
            namespace: p.namespace.clone(),
        });
        let gpu = |g: &r::UsedGpu| m::UsedGpu {
            minor: g.minor,
            uuid: g.uuid.clone(),
        };
        Self {
            comm: i.comm.clone(),
            inner_pid: i.inner_pid,
            uid: i.uid,
            user: i.user.clone(),
            cgroup: i.cgroup.clone(),
            container,
            pod,
            gpus: i.gpus.iter().map(gpu).collect(),
        }
    }
}

impl From<m::Identity> for r::Identity {
    fn from(i: m::Identity) -> Self {
        let gpu = |g: m::UsedGpu| r::UsedGpu {
            minor: g.minor,
            uuid: g.uuid,
        };
        Self {
            comm: i.comm,
            inner_pid: i.inner_pid,
            uid: i.uid,
            user: i.user,
            cgroup: i.cgroup,
            container: i.container.map(|c| r::Container {
                id: c.id,
                runtime: c.runtime,
                name: c.name,
            }),
            pod: i.pod.map(|p| r::Pod {
                uid: p.uid,
                qos: p.qos,
                name: p.name,
                namespace: p.namespace,
            }),
            gpus: i.gpus.into_iter().map(gpu).collect(),
        }
    }
}
