//! Meanings of the verdicts on a GPU's time, and advice on what to look at next.

/// Each verdict of `nvcap time` and `nvcap report`, with its meaning.
pub const VERDICTS: [(&str, &str); 10] = [
    (
        "GPU-bound",
        "work ran in 90 % of the time and more: a faster program has faster kernels, or fewer. The table names those that take the \
         time; nvcap sample shows their instructions.",
    ),
    (
        "GPU-bound by graph replays",
        "as GPU-bound, and replays of CUDA graphs took half of the work and more. Kernels within one replay have its time together: \
         nvcap sample tells them apart.",
    ),
    (
        "copy-bound",
        "in half of the time and more copies ran and no kernel. Copy less, from pinned memory, or beside kernels, on another stream; \
         nvcap stats shows each kind of copy and its speed.",
    ),
    (
        "launch-bound",
        "the GPU lacked work, and mostly because nothing was submitted: the host launches more slowly than the GPU works. Fewer and \
         larger kernels or CUDA graphs help; nvcap stacks shows where the launches come from.",
    ),
    (
        "waiting for the host",
        "the GPU lacked work behind work that had been submitted ahead: the program let it run dry, in a synchronization, its \
         input or other work of the processor. nvcap time lists the longest gaps, nvcap stacks what was called.",
    ),
    (
        "waiting for peers",
        "half of what the GPU lacked and more was a collective that waited for another rank of the job. nvcap ranks says for which \
         one, and what that one did instead.",
    ),
    (
        "bound by waits for semaphores",
        "half of the idle time and more lay before work that was submitted and waited for a semaphore: for other streams, copies or \
         processes. nvcap -e op=wait shows the waits.",
    ),
    (
        "bound by waits between submissions",
        "the GPU was idle for half of the time and more while work was submitted: it waited for what is not a semaphore that nvcap \
         sees, such as another process's time slice (nvcap share) or a large submission being fetched.",
    ),
    (
        "launch-bound, or bound by waits between submissions",
        "one of these two: when work was submitted is not known well enough to say which. Attached by the trap (--how trap) it is \
         known better.",
    ),
    (
        "waiting for the host, or bound by waits between submissions",
        "one of these two: the GPU lacked work behind work that had been submitted ahead, and when the next was submitted is not \
         known well enough to say which. Attached by the trap (--how trap) it is known better.",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::intervals::{Idle, Intervals};
    use super::super::sentence::{Parts, verdict};
    use super::VERDICTS;

    /// All verdicts that a grid of times brings about.
    fn given() -> BTreeSet<&'static str> {
        let parts = [0, 30, 60, 100];
        let mut all = BTreeSet::new();
        for (busy_ns, ns) in [(100, 0), (95, 5), (40, 60), (10, 90)] {
            for share in parts {
                for (least, most) in [(0, 0), (0, 10), (0, 100), (60, 80), (100, 100)] {
                    for (waited, dry) in [(0, 0), (100, 0), (0, 100)] {
                        let mut work = Intervals::default();
                        let of_idle = |percent: u64| ns * percent / 100;
                        work.busy_ns = busy_ns;
                        work.idle = Idle {
                            ns,
                            empty_ns: (of_idle(least), of_idle(most)),
                            waited_ns: of_idle(waited),
                            dry_ns: (of_idle(dry.min(least)), of_idle(dry.min(most))),
                        };
                        for (copies, replays, peers) in [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)]
                        {
                            let part = |of: u64| of * busy_ns * share / 100;
                            let parts = Parts {
                                copies_ns: part(copies),
                                replays_ns: part(replays),
                                peers_ns: part(peers),
                            };
                            all.extend(verdict(&work, parts, 1.0));
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn each_verdict_that_is_given_is_explained_and_no_other() {
        let explained: BTreeSet<&str> = VERDICTS.iter().map(|(word, _)| *word).collect();
        assert_eq!(given(), explained);
    }
}
