//! What crosses between the BPF programs and the user program.
#![no_std]
