//! fentry and fexit on nvidia.ko's functions, loaded by bpf(2) directly: aya gives no attach_btf_obj_fd, so it cannot
//! name a module's functions.

use aya::Ebpf;

use super::{
    btf::Btf,
    error::{Error, Result},
};

/// Attaches to nvidia.ko's functions.
///
/// # Errors
/// When the module has no BTF or the kernel refuses.
pub fn attach(_bpf: &mut Ebpf) -> Result<()> {
    let _btf = Btf::module("nvidia")?;
    Err(Error::new(
        "using fentry",
        "not built yet",
        "use --discover kprobe or tracepoint",
    ))
}
