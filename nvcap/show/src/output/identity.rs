//! Identity of a process, in words and as JSON.

use serde_json::{Value, json};

use super::names::known_name;
use nvcap_decode::record::Identity;

/// Number of digits of a container's id that are shown, as docker and crictl do.
const SHORT_ID: usize = 12;

/// Returns the identity in words: `python3: user ann, pod research/train-0, container worker (containerd 3f2a1b0c9d8e), GPU 0`. It may have any
/// characters.
pub(super) fn words(who: &Identity) -> String {
    let mut all = Vec::new();
    match (&who.user, who.uid) {
        (Some(user), _) => all.push(format!("user {user}")),
        (None, Some(uid)) => all.push(format!("user {uid}")),
        (None, None) => {}
    }
    if let Some(pod) = &who.pod {
        all.push(match (&pod.namespace, &pod.name) {
            (Some(namespace), Some(name)) => format!("pod {namespace}/{name}"),
            _ => format!("pod {}", pod.uid),
        });
    }
    if let Some(container) = &who.container {
        let id: String = container.id.chars().take(SHORT_ID).collect();
        let by = container
            .runtime
            .as_ref()
            .map_or(id.clone(), |r| format!("{r} {id}"));
        all.push(match &container.name {
            Some(name) => format!("container {name} ({by})"),
            None => format!("container {by}"),
        });
    }
    if let Some(inner) = who.inner_pid {
        all.push(format!("there pid {inner}"));
    }
    let gpus: Vec<String> = who.gpus.iter().map(|g| g.minor.to_string()).collect();
    match gpus.len() {
        0 => {}
        1 => all.push(format!("GPU {}", gpus[0])),
        _ => all.push(format!("GPUs {}", gpus.join(" "))),
    }
    format!(
        "{}: {}",
        known_name(&who.comm).unwrap_or("?"),
        all.join(", ")
    )
}

/// The members of a process's JSON object. Members that are not known are left out, except `name` (null).
pub(super) fn members(who: &Identity) -> Vec<(&'static str, Value)> {
    let mut all = vec![("name", json!(known_name(&who.comm)))];
    let mut add = |name, value: Value| {
        if !value.is_null() {
            all.push((name, value));
        }
    };
    add("inner_pid", json!(who.inner_pid));
    add("uid", json!(who.uid));
    add("user", json!(who.user));
    add("cgroup", json!(who.cgroup));
    if let Some(c) = &who.container {
        add(
            "container",
            json!({"id": c.id, "runtime": c.runtime, "name": c.name}),
        );
    }
    if let Some(p) = &who.pod {
        add(
            "pod",
            json!({"uid": p.uid, "qos": p.qos, "name": p.name, "namespace": p.namespace}),
        );
    }
    let gpus = who.gpus.iter();
    let gpus: Vec<Value> = gpus
        .map(|g| json!({"gpu": g.minor, "uuid": g.uuid}))
        .collect();
    add("gpus", Value::from(gpus));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvcap_decode::record::{Container, Pod, UsedGpu};

    #[test]
    fn as_much_as_is_known() {
        assert_eq!(words(&Identity::default()), "?: ");
        let mut who = Identity {
            comm: "python3".into(),
            uid: Some(7),
            gpus: vec![UsedGpu {
                minor: 2,
                uuid: None,
            }],
            ..Identity::default()
        };
        assert_eq!(words(&who), "python3: user 7, GPU 2");
        who.user = Some("ann".into());
        who.inner_pid = Some(1);
        who.container = Some(Container {
            id: "0123456789abcdef".into(),
            ..Container::default()
        });
        who.pod = Some(Pod {
            uid: "u-1".into(),
            ..Pod::default()
        });
        assert_eq!(
            words(&who),
            "python3: user ann, pod u-1, container 0123456789ab, there pid 1, GPU 2"
        );
        who.gpus.push(UsedGpu {
            minor: 3,
            uuid: None,
        });
        who.container = who.container.map(|c| Container {
            runtime: Some("cri-o".into()),
            name: Some("w".into()),
            ..c
        });
        who.pod = who.pod.map(|p| Pod {
            name: Some("p".into()),
            namespace: Some("n".into()),
            ..p
        });
        assert_eq!(
            words(&who),
            "python3: user ann, pod n/p, container w (cri-o 0123456789ab), there pid 1, GPUs 2 3"
        );
    }
}
