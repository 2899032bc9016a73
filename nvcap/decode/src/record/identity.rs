//! Identity of a process: what the kernel and the files of its host tell of it.

/// Identity of a process. What is not known is not there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Its command name.
    pub comm: String,
    /// Its id in the innermost PID namespace that it is in, where that is another than the tracer's.
    pub inner_pid: Option<u32>,
    /// The user that it runs as, by number.
    pub uid: Option<u32>,
    /// Name of that user.
    pub user: Option<String>,
    /// Path of its control group.
    pub cgroup: Option<String>,
    /// The container that it is in.
    pub container: Option<Container>,
    /// The pod that it is in.
    pub pod: Option<Pod>,
    /// The GPUs of which it has the device file open or mapped, by minor number.
    pub gpus: Vec<UsedGpu>,
}

/// A container, by its control group and the host's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Its id: 64 hexadecimal digits, for most runtimes.
    pub id: String,
    /// Container runtime: docker, containerd, cri-o, podman.
    pub runtime: Option<String>,
    /// Its name in the pod.
    pub name: Option<String>,
}

/// A pod of Kubernetes, by its control group and the host's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Its UID.
    pub uid: String,
    /// Its class of service: guaranteed, burstable or besteffort.
    pub qos: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// Its namespace.
    pub namespace: Option<String>,
}

/// A GPU that a process uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedGpu {
    /// Number N of `/dev/nvidiaN`.
    pub minor: u32,
    /// Its UUID (`GPU-...`).
    pub uuid: Option<String>,
}
