//! The columns of slices: times for which a context had a GPU.

use nvcap_decode::switches::Who;

use super::schema::{Column, column_list};

/// Slices.
pub(super) const SLICES: &[Column] = column_list!(Slice(s) {
    gpu: Int required "" Switches, "N of /dev/nvidiaN" => s.slice.gpu;
    mig_instance: Int optional "" Switches, "the GPU instance, where the GPU is in MIG mode" => s.slice.instance.map(|i| i.gpu);
    mig_compute_instance: Int optional "" Switches, "the compute instance in it" => s.slice.instance.and_then(|i| i.compute);
    holder: Text required "" Switches, "process; hidden: another user's, whom the driver does not name; driver: its own" => match s.slice.who {
        Who::Process(_) => "process",
        Who::Hidden => "hidden",
        Who::Driver => "driver",
    };
    pid: Int optional "" Switches, "the process" => match s.slice.who {
        Who::Process(pid) => Some(pid),
        Who::Hidden | Who::Driver => None,
    };
    process: Text optional "" Switches, "its name, where that was found" => s.name;
    context: Int required "" Switches, "the handle of the context's channel or channel group" => s.slice.context;
    begin_ns: Int optional "ns" Switches, "begin, CLOCK_MONOTONIC; none where it was not recorded" => s.slice.begin.map(|t| t.host_ns);
    end_ns: Int optional "ns" Switches, "end; none where it was not recorded, or had not come" => s.slice.end.map(|t| t.host_ns);
    duration_ns: Int optional "ns" Switches, "from begin to end, by the GPU's clock" => s.slice.begin.zip(s.slice.end).map(|(b, e)| e.gpu_ns.saturating_sub(b.gpu_ns));
    gpu_begin_ns: Int optional "ns" Switches, "begin, by the GPU's clock (PTIMER)" => s.slice.begin.map(|t| t.gpu_ns);
    gpu_end_ns: Int optional "ns" Switches, "end, by the GPU's clock" => s.slice.end.map(|t| t.gpu_ns);
});
