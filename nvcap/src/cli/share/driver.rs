//! Questions to the driver about the holders of the GPUs: how often they are asked, and what the answers lack.

use std::time::Duration;

use nvcap_decode::switches::Scope;
use nvcap_live::switches::Refusal;
use nvcap_monitor::share::has_host_pids;
use nvcap_show::output::message::tell;

/// Time between two readings. A process that ends in between may be unknown to the driver when it looks.
pub(in crate::cli) const POLL: Duration = Duration::from_millis(50);

/// Words for a record that can no longer be read.
pub(in crate::cli) const CANNOT_READ: &str = "cannot read the driver's record of context switches";

/// Returns the words of a refusal.
pub(in crate::cli) fn refused(refusal: &Refusal) -> String {
    let Refusal { gpu, why, remedy } = refusal;
    match *remedy {
        "" => format!("GPU {gpu} is not measured: {why}"),
        remedy => format!("GPU {gpu} is not measured: {why}; {remedy}"),
    }
}

/// Reports what the driver does not tell this user, or what cannot be known in this container.
pub(in crate::cli) fn tell_of_limits(gpus: &[(u32, Scope)]) {
    // SAFETY: reads an id.
    let root = unsafe { libc::geteuid() } == 0;
    if gpus.iter().any(|(_, scope)| *scope == Scope::OwnUser) {
        tell(
            "the driver tells of this user's processes alone; run as root (sudo nvcap share) to see all",
        );
    } else if !root {
        tell(
            "the driver does not name other users' processes, and their times are not exact: run as root (sudo nvcap share) to see them",
        );
    }
    if !has_host_pids() {
        tell(
            "nvcap runs in a container (a PID namespace): the driver tells process ids of the host, which have no names here; run nvcap on the host, or start the container with --pid=host",
        );
    }
}
