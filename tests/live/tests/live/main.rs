//! End-to-end tests on the running kernel: nvcap traces the software GPU, and the trace must be the plan.

mod attach;
mod bench;
mod capture;
mod channels;
mod chaos;
mod counts;
mod death;
mod dump;
mod edges;
mod exported;
mod fast_lines;
mod faults;
mod full_disk;
mod gpu_sums;
mod header;
mod hosts;
mod life;
mod limits;
mod modes;
mod names;
mod observe;
mod observe_ends;
mod observe_readers;
mod observe_rights;
mod observe_sleep;
mod perfetto;
mod preempted;
mod ranks;
mod ranks_job;
mod recordings;
mod refusals;
mod registers;
mod sampled;
mod samples;
mod setup;
mod stacks;
mod stray_traps;
mod tables;
mod time_from_stamps;
mod times;
mod top;
mod unseen;
mod users;
mod watch;
mod wireshark;

use std::process::ExitCode;

use live::harness::{Test, main as run};

/// Groups and tests that run while no other does, and why.
const ALONE: [(&str, &str); 2] = [
    (
        "hosts::",
        "nvcap -a says that it missed programs of other tests that end before their names are known: no filter leaves those out",
    ),
    (
        "ranks_job::",
        "eight programs in step wait for each other: beside others they wait for longer than nvcap waits for times",
    ),
];

/// Tests that take longest: they begin first.
const LONG: [&str; 8] = [
    "chaos::seeded",
    "life::attached_again_and_again",
    "time_from_stamps::queued_ahead",
    "dump::statuses",
    "dump::recorded",
    "life::processes_come_and_go",
    "life::single_stepped",
    "dump::running_process",
];

fn main() -> ExitCode {
    macro_rules! tests {
        ($($group:ident: $($name:ident)*;)*) => {
            [$($(Test::new(concat!(stringify!($group), "::", stringify!($name)), $group::$name),)*)*]
        };
    }
    let mut tests = Vec::from(tests! {
        setup: the_verifier_finds_faults stores_trap stores_trap_in_heirs the_plan_is_what_memory_held programs_are_verified_soon
            no_operations_on_maps;
        capture: one_thread gpu_not_named eight_threads ring_wrap big_entries bursts wide_bursts without_bpf_loop thread_churn shared_channels
            late_doorbells cached_put cached_put_stuck cached_put_ahead both_pages fork_shared fork_own fork_and_exec exec exec_from_thread many_execs many_events lagging_get many_submissions operations;
        bench: byte_for_byte on_the_device;
        attach: operations operations_observed waiting_process first_thread_ended running_process first_submissions two_processes churning_process
            exec_afterwards fork_afterwards exits_meanwhile doorbell_flags racing_threads racing_threads_of_two_gpus;
        death: kill_nvcap_attached kill_nvcap_parent kill_target interrupt_nvcap terminate_nvcap child_status commands_that_go_on;
        dump: whole_history last_thousand last_few bursts channels_and_tokens spinning_kernel times_of_a_hang in_the_overview lost_kernel orphaned_wait cycle of_one_moment interrupted
            recorded slow_kernels running_process killed_meanwhile unmapped_meanwhile all_processes statuses refusals stacks;
        fast_lines: attached of_a_command;
        header: of_a_command not_in_pipes of_a_process_without_a_gpu;
        faults: from_the_start of_two_kernels attached none served;
        life: fourth_trace_blind four_traces_at_once threads_by_the_thousand root_given_up stopped_by_ptrace stopped_for_a_while single_stepped debugger_with_registers checkpointed attached_again_and_again processes_come_and_go;
        hosts: named_by_option come_and_go came_while_stopped trapped whole_node whole_node_started short_lives short_lives_observed not_looked_into contained;
        unseen: hidden_by_proc quiet_host short_process;
        watch: a_fault_is_dumped faults_at_once a_hang_is_dumped a_hang_seals nothing_to_dump refused;
        counts: as_the_trap_counts first_thread_ended without_a_gpu until_a_duration_has_passed forks_are_counted_once served refused of_another_user;
        sampled: one_process code in_turns planted held killed of_a_command;
        samples: a_fleet served;
        ranks: two_that_run;
        ranks_job: extra_kernels_observed sleeping_host_trapped slow_kernel_recorded nobody_recorded a_rank_that_does_not_come a_peer_dies;
        top: processes_and_channels suspects faults kernels a_recording terminated terminal_gone no_terminal;
        limits: max_submissions duration no_follow quiet text output_apart reader_gone;
        chaos: seeded;
        edges: end_not_told command_s_end_not_told lag_is_told output_not_read output_is_full more_channels_than_room;
        channels: numbers_after_exec numbers_when_attached remains_are_none the_last_remains_are_none remains_taken_by_number wrong_doorbell_rung wrong_doorbell_not_mapped
            wrong_doorbell_short never_there rings_named_too_small memory_is_bounded
            tokens_as_in_a_dump;
        refusals: not_root not_root_other_process process_gone no_debug_register doorbell_not_mapped
            bad_channels_file missing_channels_file no_driver no_target missing_command no_program_that_runs;
        modes: batch batch_of_idle_channels batch_attached count duty excluded;
        stray_traps: measured own_trap ended ended_child ended_attached handled observing observed_command;
        registers: precommit precommit_attached two_gpus eight_gpus eight_gpus_attached thread_without_one known_store known_store_that_rings_nothing;
        observe: rates proc_of_processes_alone another_child_of_its_parent any_name found_channels peeks found_when_attached tokens_of_found_channels ring_wrap bursts big_entries lagging_get many_threads fork_shared fork_and_exec exec
            waiting_process waiting_child first_thread_ended first_submissions running_process kill_target kill_nvcap interrupt_nvcap limits
            laps_are_counted children_without_gpu memory_is_bounded;
        observe_ends: short_commands short_commands_that_unmap never_stopped used_late killed_commands signals_pass children nvcap_killed attached ended_as_it_is_killed
            ended_as_a_thread_without_registers_is_killed ended_before_it_looked channels_that_are_none;
        observe_readers: rates ring_wrap many_threads fork_shared fork_and_exec exec;
        observe_sleep: wakes_up naps killed_in_its_sleep;
        names: short_command short_children attached modules_that_keep_coming code_by_address mapped_file none_unasked;
        stacks: known_functions deleted_program without_bpf_loop cut none_unasked folded sampled filtered leaf_kernels python;
        recordings: kept looks_are_no_doorbells without_a_gpu as_live as_live_attached as_live_observed killed full rotated_and_sealed redacted no_recording;
        full_disk: room_comes_back room_comes_back_compressed no_room_comes_back a_full_device rotating no_room_for_another_file;
        users: of_sudo named traced thread_id rights_given_up;
        time_from_stamps: queued_ahead one_at_a_time ends_that_nothing_tells another_clock a_part_of_a_processor;
        gpu_sums: pauses;
        preempted: by_turns;
        perfetto: live_trace;
        tables: live_trace;
        wireshark: live_capture;
        times: eight_threads small_buffer observed;
        observe_rights: own_process_without_root other_process_without_root auto_without_root nothing_to_observe;
    });
    let rank = |test: &Test| LONG.iter().position(|name| *name == test.name());
    tests.sort_by_key(|test| rank(test).unwrap_or(LONG.len()));
    let is_alone = |name: &str| ALONE.iter().any(|(alone, _)| name.starts_with(alone));
    let tests: Vec<Test> = tests
        .into_iter()
        .map(|test| match is_alone(test.name()) {
            true => test.alone(),
            false => test,
        })
        .collect();
    run(&tests, live::needs::environment)
}
