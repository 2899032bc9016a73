//! Kinds of collectives, by the names of their kernels.

use nvcap_decode::glob::like;

/// Prefixes of NCCL's kernels: `ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)`, before 2.19 `ncclKernel_AllReduce_RING_LL_Sum_float(...)`. Their
/// first argument is the address of the communicator's structure (nccl, src/include/device.h: `ncclDevKernelArgs::comm`).
const BY_ARGUMENT: [&str; 2] = ["ncclDevKernel_", "ncclKernel_"];
/// Prefixes of NCCL's kernels for symmetric memory (2.27): their arguments hold the communicator's structure itself.
const BY_VALUE: [&str; 2] = ["ncclSymDevKernel_", "ncclSymkDevKernel_"];

/// A kernel that is a collective.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Collective {
    /// Its kind: `AllReduce`; of a kernel that the user's pattern fits, its name.
    pub(crate) kind: String,
    /// True if the first argument is the address of the communicator.
    pub(crate) has_address: bool,
}

/// Returns a kernel's kind as a collective, if it is one: by its name, demangled and short, or by the user's patterns.
pub(crate) fn of(full: &str, short: &str, patterns: &[String]) -> Option<Collective> {
    let after = |prefixes: [&str; 2]| {
        let rest = prefixes.iter().find_map(|p| full.strip_prefix(p))?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric());
        let kind = &rest[..end.unwrap_or(rest.len())];
        (!kind.is_empty()).then(|| kind.to_owned())
    };
    let made = |kind, has_address| Collective { kind, has_address };
    if let Some(kind) = after(BY_ARGUMENT) {
        return Some(made(kind, true));
    }
    if let Some(kind) = after(BY_VALUE) {
        return Some(made(kind, false));
    }
    let has_one = patterns.iter().any(|pattern| fits(pattern, full, short));
    has_one.then(|| made(short.to_owned(), false))
}

/// Tells whether a user's pattern fits a kernel: its name, demangled or short.
pub(super) fn fits(pattern: &str, full: &str, short: &str) -> bool {
    let fits = |text: &str| like(pattern.as_bytes(), text.as_bytes());
    fits(full) || fits(short)
}

/// Tells whether a call of this kind ends in no rank before it has begun in all, because each needs what the others have. The root of a broadcast and
/// the senders of a reduction may be done before the last one comes.
pub(super) fn waits_for_all(kind: &str) -> bool {
    !matches!(kind, "Broadcast" | "Reduce" | "SendRecv" | "Generic")
}

/// Tells whether calls of this kind are between some of a communicator's ranks alone.
pub(super) fn is_between_some(kind: &str) -> bool {
    kind == "SendRecv"
}

/// Returns the kind in a sentence, for one call or for several.
pub(crate) fn words(kind: &str, many: bool) -> String {
    let known = match kind {
        "AllReduce" => "all-reduce",
        "AllGather" => "all-gather",
        "ReduceScatter" => "reduce-scatter",
        "Broadcast" => "broadcast",
        "Reduce" => "reduction",
        "SendRecv" => "send and receive",
        _ if many => return format!("calls of {kind}"),
        _ => return kind.to_owned(),
    };
    match (kind, many) {
        ("SendRecv", true) => "sends and receives".to_owned(),
        (_, true) => format!("{known}s"),
        (_, false) => known.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_from_names() {
        let of = |name: &str| of(name, name, &[]).map(|c| (c.kind, c.has_address));
        let known = |kind: &str, has| Some((kind.to_owned(), has));
        for (name, kind) in [
            (
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                known("AllReduce", true),
            ),
            (
                "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
                known("SendRecv", true),
            ),
            (
                "ncclKernel_ReduceScatter_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
                known("ReduceScatter", true),
            ),
            (
                "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
                known("Generic", true),
            ),
            (
                "ncclSymDevKernel_AllGather_ST(ncclSymDevArgs)",
                known("AllGather", false),
            ),
            ("my_ncclDevKernel_AllReduce", None),
            ("ncclDevKernel_", None),
            ("gemm", None),
            ("", None),
        ] {
            assert_eq!(of(name), kind, "{name}");
        }
    }

    #[test]
    fn a_pattern_names_others() {
        let patterns = ["nvshmemi_*barrier*".to_owned(), "*exchange*".to_owned()];
        let of = |full: &str, short: &str| of(full, short, &patterns).map(|c| c.kind);
        assert_eq!(
            of("void exchange<float>(float*)", "exchange"),
            Some("exchange".to_owned())
        );
        assert_eq!(
            of("nvshmemi_barrier_all(int)", "nvshmemi_barrier_all").as_deref(),
            Some("nvshmemi_barrier_all")
        );
        assert_eq!(of("gemm(float*)", "gemm"), None);
        // NCCL's own stay what they are.
        assert_eq!(
            of("ncclDevKernel_AllGather_exchange", "x").as_deref(),
            Some("AllGather")
        );
    }
}
