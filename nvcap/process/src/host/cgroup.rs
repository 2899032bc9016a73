//! Facts in the path of a control group: the container, its runtime, the pod and the pod's class of service.
//!
//! The known forms are those of Docker, containerd (also of nerdctl), CRI-O and Podman, with the cgroupfs driver and with
//! systemd's, and kubelet's forms for pods, in cgroup v1 and v2. A container in a container (kind, Docker in Docker) counts as the
//! inner one.

use nvcap_decode::record::{Container, Pod};

/// The most lines of `/proc/PID/cgroup` that are looked at. The file has one line for each hierarchy, of which there are some 15.
const MOST: usize = 256;

/// Container and pod of a process, by its control groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    /// Path that says most about container and pod.
    pub path: Option<String>,
    pub container: Option<Container>,
    pub pod: Option<Pod>,
}

/// Reads the text of `/proc/PID/cgroup`.
pub(super) fn place(text: &str) -> Place {
    let mut best = Place::default();
    let mut rank = None;
    for line in text.lines().take(MOST) {
        // hierarchy:controllers:path, and the path may have colons.
        let mut parts = line.splitn(3, ':');
        let (Some(hierarchy), Some(controllers), Some(path)) =
            (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let (container, pod) = of_path(path);
        // The hierarchy that names the container, else the unified one, else systemd's. The root says nothing.
        let how = (
            container.is_some(),
            pod.is_some(),
            path != "/",
            hierarchy == "0",
            controllers == "name=systemd",
        );
        if rank.is_none_or(|r| how > r) {
            rank = Some(how);
            best = Place {
                path: Some(path.to_owned()),
                container,
                pod,
            };
        }
    }
    best
}

/// Returns the container and the pod that a path names.
fn of_path(path: &str) -> (Option<Container>, Option<Pod>) {
    let (mut container, mut pod) = (None, None);
    let mut runtime = None;
    let mut above = "";
    for part in path.split('/') {
        // Older containerd with systemd's driver: kubepods-burstable-podUID.slice:cri-containerd:ID
        for piece in part
            .rsplit_once(".slice:")
            .map_or([part, ""], |(a, b)| [a, b])
        {
            if let Some(found) = pod_of(piece, above) {
                pod = Some(found);
            }
        }
        // A folder of the runtime's own: /docker/ID, /libpod_parent/libpod-ID, /default/ID.
        match part {
            "docker" | "actions_job" => runtime = Some("docker"),
            "containerd" | "default" | "k8s.io" | "moby" | "nerdctl" => {
                runtime = Some("containerd")
            }
            "libpod_parent" => runtime = Some("podman"),
            _ => {}
        }
        if let Some((id, by)) = container_of(part) {
            container = Some(Container {
                id: id.to_owned(),
                runtime: by.or(runtime.filter(|_| pod.is_none())).map(str::to_owned),
                name: None,
            });
        }
        above = part;
    }
    (container, pod)
}

/// Prefixes that the runtimes put before a container's id.
const PREFIXES: [(&str, &str); 7] = [
    ("docker-", "docker"),
    ("cri-containerd-", "containerd"),
    ("cri-containerd:", "containerd"),
    ("nerdctl-", "containerd"),
    ("containerd-", "containerd"),
    ("crio-", "cri-o"),
    ("libpod-", "podman"),
];

/// Returns the id that a part of a path names, and the container's runtime if the part names it.
fn container_of(part: &str) -> Option<(&str, Option<&'static str>)> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let part = part.rsplit_once(".slice:").map_or(part, |(_, last)| last);
    for (prefix, runtime) in PREFIXES {
        // The monitors of cri-o and podman (crio-conmon-ID, libpod-conmon-ID) are no containers: after the prefix comes no id.
        if let Some(id) = part.strip_prefix(prefix) {
            return is_id(id).then_some((id, Some(runtime)));
        }
    }
    is_id(part).then_some((part, None))
}

/// Tells whether a text is an id in the form of all these runtimes.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns the pod that a part of a path names: `podUID` of the cgroupfs driver, `kubepods-burstable-podUID.slice` of systemd's. In
/// systemd's form the UID has underscores. `above` is the folder that contains the part.
fn pod_of(part: &str, above: &str) -> Option<Pod> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let (before, uid) = match part.strip_prefix("pod") {
        Some(uid) => (above, uid),
        None => part
            .rsplit_once("-pod")
            .filter(|(before, _)| before.contains("kubepods"))?,
    };
    let uid = uid.replace('_', "-");
    // A UUID, or for a static pod the hash of its configuration.
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes = uid.bytes().filter(|b| *b == b'-').count();
    if digits != 32 || digits + dashes != uid.len() || !matches!(dashes, 0 | 4) {
        return None;
    }
    // kubelet names only the lower two classes.
    let qos = match before.rsplit('-').next() {
        Some(lower @ ("burstable" | "besteffort")) => Some(lower),
        Some("kubepods") => Some("guaranteed"),
        _ => None,
    };
    Some(Pod {
        uid,
        qos: qos.map(str::to_owned),
        ..Pod::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a";
    const OTHER: &str = "aa2a1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3fbb";
    const UID: &str = "0b6f6a1c-52bd-4b7e-8f6a-1c52bd4b7e8f";
    const HASH: &str = "0b6f6a1c52bd4b7e8f6a1c52bd4b7e8f";

    /// Container id, runtime, the pod's UID, class of service.
    type Told = (
        Option<String>,
        Option<String>,
        Option<String>,
        Option<String>,
    );

    fn told(text: &str) -> Told {
        let place = place(text);
        (
            place.container.as_ref().map(|c| c.id.clone()),
            place.container.and_then(|c| c.runtime),
            place.pod.as_ref().map(|p| p.uid.clone()),
            place.pod.and_then(|p| p.qos),
        )
    }

    /// Fills placeholders in a path: `{ID}`, `{UID}`, `{UID_}` (systemd's form) and others.
    fn filled(path: &str) -> String {
        path.replace("{ID}", ID)
            .replace("{OTHER}", OTHER)
            .replace("{UID}", UID)
            .replace("{UID_}", &UID.replace('-', "_"))
            .replace("{HASH}", HASH)
    }

    #[test]
    fn all_forms_of_paths() {
        let (d, c, o, p) = (
            Some("docker"),
            Some("containerd"),
            Some("cri-o"),
            Some("podman"),
        );
        let (burst, best, sure) = (Some("burstable"), Some("besteffort"), Some("guaranteed"));
        #[rustfmt::skip]
        let forms = [
            // path, runtime, UID, class of service
            ("/docker/{ID}", d, None, None),
            ("/system.slice/docker-{ID}.scope", d, None, None),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{ID}.scope", d, None, None),
            ("/default/{ID}", c, None, None),
            ("/system.slice/nerdctl-{ID}.scope", c, None, None),
            ("/machine.slice/libpod-{ID}.scope", p, None, None),
            ("/machine.slice/libpod-{ID}.scope/container", p, None, None),
            ("/libpod_parent/libpod-{ID}", p, None, None),
            ("/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope/container", p, None, None),
            ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container", p, None, None),
            ("/kubepods/burstable/pod{UID}/{ID}", None, Some(UID), burst),
            ("/kubepods/besteffort/pod{UID}/{ID}", None, Some(UID), best),
            ("/kubepods/pod{UID}/{ID}", None, Some(UID), sure),
            ("/kubepods/burstable/pod{UID}/crio-{ID}", o, Some(UID), burst),
            ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/cri-containerd-{ID}.scope", c, Some(UID), burst),
            ("/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{ID}.scope", o, Some(UID), best),
            ("/kubepods.slice/kubepods-pod{UID_}.slice/docker-{ID}.scope", d, Some(UID), sure),
            ("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{HASH}.slice/crio-{ID}.scope/container", o, Some(HASH), burst),
            ("/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}", c, Some(UID), burst),
            // A node of kind, and the container in it.
            ("/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope", c, Some(UID), sure),
            ("/docker/{OTHER}/kubelet/kubepods/besteffort/pod{UID}/{ID}", None, Some(UID), best),
            // nvcap in its own control group namespace.
            ("/../../kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/cri-containerd-{ID}.scope", c, Some(UID), best),
            ("/../{ID}", None, None, None),
            ("/ecs/0123/{ID}", None, None, None),
        ];
        let owned = |t: Option<&str>| t.map(str::to_owned);
        for (path, runtime, uid, qos) in forms {
            let path = filled(path);
            let is = (Some(ID.to_owned()), owned(runtime), owned(uid), owned(qos));
            assert_eq!(told(&format!("0::{path}\n")), is, "{path}");
            let v1 = format!("12:pids:{path}\n3:cpu,cpuacct:{path}\n1:name=systemd:{path}\n0::/\n");
            assert_eq!(told(&v1), is, "{path}");
            assert_eq!(place(&v1).path, Some(path));
        }
    }

    #[test]
    fn what_is_no_container() {
        for path in [
            "/",
            "/user.slice/user-1000.slice/session-3.scope",
            "/system.slice/nvidia-persistenced.service",
            "/machine.slice/libpod-conmon-{ID}.scope",
            "/kubepods.slice/crio-conmon-{ID}.scope",
            "/system.slice/docker.service",
            "/slurm/uid_1000/job_17/step_0",
            "/docker/3f2a",
            "/podracing-pod{UID}",
            "/docker/{ID}x",
            "/Docker/3F2A1b0c9d8e7f6a5b4c3d2e1f0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a",
        ] {
            let path = filled(path);
            assert_eq!(told(&format!("0::{path}\n")), Told::default(), "{path}");
        }
        let place = place("1:name=systemd:/a b:c/d (deleted)\n0::/\n");
        assert_eq!(place.path.as_deref(), Some("/a b:c/d"));
    }

    /// Test of the sandbox of a pod, and of a process beside the containers: only the pod is known.
    #[test]
    fn a_pod_without_a_container() {
        let pod = place(&filled("0::/kubepods/burstable/pod{UID}\n"))
            .pod
            .unwrap();
        assert_eq!(
            (pod.uid.as_str(), pod.qos.as_deref()),
            (UID, Some("burstable"))
        );
    }

    #[test]
    fn text_that_is_none() {
        let long = format!("0::/{}\n", "docker/".repeat(100_000));
        for text in [
            "",
            "\n",
            "::",
            "0",
            "0:",
            "0::",
            "a:b:c:d:e",
            "\u{fffd}::/\u{fffd}",
            "0::/pod",
            "0::/-pod-",
            &long,
        ] {
            let place = place(text);
            assert!(
                place.container.is_none() && place.pod.is_none(),
                "{text:.20}"
            );
        }
    }
}
