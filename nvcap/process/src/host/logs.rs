//! Names of pods and containers, read from the host's folders of container logs, which kubelet makes:
//! `/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log` (links) and `/var/log/pods/NAMESPACE_POD_UID/CONTAINER` (folders).

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nvcap_decode::record::{Container, Pod};

/// The most names that are taken from a folder. kubelet runs 110 pods by default, and keeps logs of ended containers for a while.
const MOST: usize = 65_536;
/// Time for which a failed lookup is cached.
const AGAIN: Duration = Duration::from_secs(5);

/// Names of pods and containers, from the folders.
#[derive(Debug)]
pub(super) struct Logs {
    containers: PathBuf,
    pods: PathBuf,
    read_at: Option<Instant>,
    /// Pod, namespace and container by the container's id.
    by_id: HashMap<String, [String; 3]>,
    /// Pod and namespace by the pod's UID, and the containers' names.
    by_uid: HashMap<String, (String, String, Vec<String>)>,
}

impl Logs {
    /// Returns the logs of the host whose files are below `root`. Nothing is read yet.
    pub(super) fn of(root: &Path) -> Self {
        Self {
            containers: root.join("var/log/containers"),
            pods: root.join("var/log/pods"),
            read_at: None,
            by_id: HashMap::new(),
            by_uid: HashMap::new(),
        }
    }

    /// Adds the known names of a container and a pod.
    pub(super) fn add_names(
        &mut self,
        container: Option<&mut Container>,
        pod: Option<&mut Pod>,
        now: Instant,
    ) {
        let Some(pod) = pod else {
            // Without a pod, the container has no log of kubelet's.
            return;
        };
        let id = container.as_ref().map(|c| c.id.as_str());
        let known = id.is_some_and(|id| self.by_id.contains_key(id));
        let stale = self
            .read_at
            .is_none_or(|at| now.duration_since(at) >= AGAIN);
        if !known && stale {
            self.read();
            self.read_at = Some(now);
        }
        let by_id = id.and_then(|id| self.by_id.get(id));
        if let Some([name, namespace, its_own]) = by_id {
            pod.name = Some(name.clone());
            pod.namespace = Some(namespace.clone());
            if let Some(container) = container {
                container.name = Some(its_own.clone());
            }
            return;
        }
        if let Some((name, namespace, containers)) = self.by_uid.get(&pod.uid) {
            pod.name = Some(name.clone());
            pod.namespace = Some(namespace.clone());
            if let (Some(container), [only]) = (container, &containers[..]) {
                container.name = Some(only.clone());
            }
        }
    }

    fn read(&mut self) {
        self.by_id.clear();
        self.by_uid.clear();
        for name in names(&self.containers) {
            if let Some((id, names)) = of_link(&name) {
                self.by_id.insert(id, names);
            }
        }
        for folder in names(&self.pods) {
            if let Some((namespace, pod, uid)) = of_folder(&folder) {
                let mut containers: Vec<String> = names(&self.pods.join(&folder)).collect();
                containers.truncate(2);
                self.by_uid.insert(uid, (pod, namespace, containers));
            }
        }
    }
}

/// Returns the names in a folder, as far as they are text.
fn names(folder: &Path) -> impl Iterator<Item = String> {
    let all = fs::read_dir(folder).into_iter().flatten().flatten();
    all.take(MOST)
        .filter_map(|e| e.file_name().into_string().ok())
}

/// Splits `POD_NAMESPACE_CONTAINER-ID.log` into the id, and pod, namespace and container. None of the names contains an underscore.
fn of_link(name: &str) -> Option<(String, [String; 3])> {
    let (names, id) = name.strip_suffix(".log")?.rsplit_once('-')?;
    let mut names = names.split('_').map(str::to_owned);
    let three = [names.next()?, names.next()?, names.next()?];
    let whole = names.next().is_none() && three.iter().all(|n| !n.is_empty());
    (whole && !id.is_empty()).then(|| (id.to_owned(), three))
}

/// Splits `NAMESPACE_POD_UID` into namespace, pod and UID.
fn of_folder(name: &str) -> Option<(String, String, String)> {
    let mut parts = name.split('_').map(str::to_owned);
    let three = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some(three)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_logs() {
        let (id, names) = of_link("train-0_research_worker-main-abc123.log").unwrap();
        assert_eq!(
            (id.as_str(), names.join(" ").as_str()),
            ("abc123", "train-0 research worker-main")
        );
        for wrong in [
            "",
            ".log",
            "a_b_c.log",
            "a_b-1.log",
            "a_b_c_d-1.log",
            "a__c-1.log",
            "a_b_c-1",
            "a_b_c-.log",
        ] {
            assert_eq!(of_link(wrong), None, "{wrong}");
        }
        assert_eq!(
            of_folder("ns_pod_uid"),
            Some(("ns".into(), "pod".into(), "uid".into()))
        );
        assert!(of_folder("ns_pod").is_none() && of_folder("ns_pod_uid_x").is_none());
    }

    #[test]
    fn a_container_that_comes_later_is_found_after_a_while() {
        let root = std::env::temp_dir().join(format!("nvcap-logs-{}", std::process::id()));
        fs::create_dir_all(root.join("var/log/containers")).unwrap();
        fs::create_dir_all(root.join("var/log/pods/ns_other_u2/one")).unwrap();
        let mut logs = Logs::of(&root);
        let start = Instant::now();
        let mut ask = |id: &str, uid: &str, after: Duration| {
            let mut container = Container {
                id: id.into(),
                ..Container::default()
            };
            let mut pod = Pod {
                uid: uid.into(),
                ..Pod::default()
            };
            logs.add_names(Some(&mut container), Some(&mut pod), start + after);
            (pod.namespace, pod.name, container.name)
        };
        let names = |a: &str, b: &str, c: &str| (Some(a.into()), Some(b.into()), Some(c.into()));
        assert_eq!(ask("7", "u1", Duration::ZERO), (None, None, None));
        assert_eq!(
            ask("8", "u2", Duration::ZERO),
            names("ns", "other", "one"),
            "by its pod"
        );
        fs::write(root.join("var/log/containers/p_ns_c-7.log"), "").unwrap();
        assert_eq!(ask("7", "u1", AGAIN / 2), (None, None, None));
        assert_eq!(ask("7", "u1", AGAIN), names("ns", "p", "c"));
        // With a second container, the pod alone does not tell which one it is.
        fs::create_dir_all(root.join("var/log/pods/ns_other_u2/two")).unwrap();
        assert_eq!(
            ask("9", "u2", 3 * AGAIN),
            (Some("ns".into()), Some("other".into()), None)
        );
        fs::remove_dir_all(&root).unwrap();
    }
}
