//! Identity of a process, from the kernel and the files of its host.

/// Identity of a process. Unknown parts are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Command name.
    pub comm: String,
    /// Process id in the innermost PID namespace of the process, if that is not the tracer's.
    pub inner_pid: Option<u32>,
    /// Number of the user as which the process runs.
    pub uid: Option<u32>,
    /// Name of that user.
    pub user: Option<String>,
    /// Path of the control group.
    pub cgroup: Option<String>,
    /// Container of the process.
    pub container: Option<Container>,
    /// Pod of the process.
    pub pod: Option<Pod>,
    /// GPUs whose device file the process has open or mapped, by minor number.
    pub gpus: Vec<UsedGpu>,
}

/// A container, from its control group and the host's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// Container id: 64 hexadecimal digits in most runtimes.
    pub id: String,
    /// Container runtime: docker, containerd, cri-o, podman.
    pub runtime: Option<String>,
    /// Name of the container in the pod.
    pub name: Option<String>,
}

/// A pod of Kubernetes, from its control group and the host's logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// UID of the pod.
    pub uid: String,
    /// Class of service: guaranteed, burstable or besteffort.
    pub qos: Option<String>,
    /// Name of the pod.
    pub name: Option<String>,
    /// Namespace of the pod.
    pub namespace: Option<String>,
}

/// A GPU that a process uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsedGpu {
    /// Number N of `/dev/nvidiaN`.
    pub minor: u32,
    /// UUID (`GPU-...`).
    pub uuid: Option<String>,
}
