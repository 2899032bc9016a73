//! nvcap's tests from outside: the library as another project uses it, the program as a user runs it, and what the repository's own
//! pages and sources say. One program for all, because each is linked with the whole library; `cargo test --test all MODULE::` runs a
//! part.
#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "what only the program's tests use")
)]

mod common;
mod decode_common;
mod driver_common;

mod cli_code;
mod cli_driver;
mod cli_export;
mod cli_files;
mod cli_formats;
mod cli_loads;
mod cli_recording;
mod cli_recordings;
mod cli_report;
mod compatibility;
mod cubin;
mod decode_capture;
mod decode_forms;
mod decode_operations;
mod decode_orc;
mod decode_page;
mod decode_pushbuffer;
mod decode_roundtrip;
mod decode_semaphores;
mod decode_tables;
mod documents;
mod driver_fixture;
mod driver_h200_log;
mod driver_life;
mod driver_output;
mod driver_robust;
mod driver_streams;
mod driver_versions;
mod dump_look;
mod dump_merge;
mod dump_output;
mod fatbin;
mod files_robust;
mod hang;
mod meaning;
mod observe_cost;
mod output_cli;
mod output_filter;
mod output_ledger;
mod output_shared_time;
mod output_sinks;
mod output_stacks;
mod output_times;
mod pipeline;
mod progress;
mod rooms;
mod tables;
mod training;
mod wireshark;
