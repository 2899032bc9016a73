//! Function of CUDA's interface that the program called, found on its stack.

use std::sync::Arc;

use nvcap_decode::record::Frame;

/// Returns the outermost function of the driver's interface (`cu...` of libcuda), or the function of the runtime (`cuda...`) that called
/// it, if its symbol is known. The runtime may be linked into the program; its functions' symbols are then the program's.
pub(super) fn called(frames: &[Frame]) -> Option<Arc<str>> {
    let driver = frames.iter().rposition(is_driver_call);
    // Frames inside libcuda are no calls of the program's. Without libcuda's name all frames count.
    let beyond = driver.map_or(0, |at| at + 1);
    let runtime = frames[beyond..].iter().rposition(is_runtime_call);
    let at = runtime.map(|at| beyond + at).or(driver)?;
    frames[at].symbol.clone()
}

fn is_driver_call(frame: &Frame) -> bool {
    file_name(&frame.module).starts_with("libcuda.so") && is_named(frame, "cu")
}

fn is_runtime_call(frame: &Frame) -> bool {
    is_named(frame, "cuda")
}

/// Tells whether a frame's symbol is the prefix followed by a capital letter: a function of C. Functions of C++, and of a library named
/// cu-something, have other names.
fn is_named(frame: &Frame, prefix: &str) -> bool {
    let rest = frame.symbol.as_deref().and_then(|s| s.strip_prefix(prefix));
    rest.is_some_and(|rest| {
        rest.starts_with(|c: char| c.is_ascii_uppercase())
            && rest.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

/// Returns the last part of a path.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(list: &[(&str, &str)]) -> Vec<Frame> {
        list.iter()
            .map(|(module, symbol)| Frame {
                module: (*module).into(),
                symbol: (!symbol.is_empty()).then(|| (*symbol).into()),
                ..Frame::default()
            })
            .collect()
    }

    #[test]
    fn the_outermost_call_of_the_interface() {
        let cuda = "/usr/lib/libcuda.so.580.1";
        for (list, api) in [
            (
                vec![(cuda, ""), (cuda, "cuLaunchKernel"), ("/a", "main")],
                Some("cuLaunchKernel"),
            ),
            (
                vec![
                    (cuda, "cuMemcpyAsync"),
                    (cuda, "cuMemcpyHtoDAsync_v2"),
                    ("/lib/libcudart.so.12", ""),
                    ("/lib/libcudart.so.12", "cudaMemcpyAsync"),
                    ("/a", "main"),
                ],
                Some("cudaMemcpyAsync"),
            ),
            (
                vec![(cuda, ""), ("/a", "cudaLaunchKernel"), ("/a", "main")],
                Some("cudaLaunchKernel"),
            ),
            (
                vec![
                    ("/lib/libcublas.so.12", "cublasSgemm_v2"),
                    ("/a", "cudaless"),
                ],
                None,
            ),
            (vec![(cuda, ""), ("/a", "cuPlan")], None),
        ] {
            assert_eq!(called(&frames(&list)).as_deref(), api, "{list:?}");
        }
    }
}
