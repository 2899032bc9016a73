//! End-to-end tests on the running kernel: nvcap traces the software GPU, and the trace must be the plan.

mod attach;
mod capture;
mod death;
mod dump;
mod limits;
mod observe;
mod observe_rights;
mod refusals;
mod setup;

use std::process::ExitCode;

use live::harness::{Test, main as run};

fn main() -> ExitCode {
    macro_rules! tests {
        ($($group:ident: $($name:ident)*;)*) => {
            [$($(Test { name: concat!(stringify!($group), "::", stringify!($name)), run: $group::$name },)*)*]
        };
    }
    run(&tests! {
        setup: the_verifier_finds_faults stores_trap stores_trap_in_heirs the_plan_is_what_memory_held;
        capture: one_thread eight_threads ring_wrap big_entries bursts wide_bursts without_bpf_loop thread_churn shared_channels
            late_doorbells own_put own_put_stuck own_put_ahead both_pages fork_shared fork_own fork_and_exec exec exec_from_thread many_events lagging_get many_submissions operations;
        attach: waiting_process running_process first_submissions two_processes churning_process
            exec_afterwards fork_afterwards exits_meanwhile doorbell_flags;
        death: kill_nvcap_attached kill_nvcap_parent kill_target interrupt_nvcap terminate_nvcap child_status trap_signal;
        dump: whole_history last_thousand last_few bursts channels_and_tokens spinning_kernel lost_kernel orphaned_wait cycle
            slow_kernels running_process killed_meanwhile unmapped_meanwhile all_processes refusals;
        limits: max_submissions duration no_follow quiet text;
        refusals: not_root not_root_other_process process_gone no_debug_register doorbell_not_mapped
            bad_channels_file missing_channels_file no_driver no_target missing_command;
        observe: rates found_channels glances found_when_attached tokens_of_found_channels ring_wrap bursts big_entries lagging_get many_threads fork_shared fork_and_exec exec
            waiting_process first_submissions running_process kill_target kill_nvcap interrupt_nvcap limits
            laps_are_counted the_budget_is_kept;
        observe_rights: own_process_without_root other_process_without_root auto_without_root nothing_to_observe;
    })
}
