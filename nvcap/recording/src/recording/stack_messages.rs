//! Messages, at the end of a trace, about the stacks that were taken.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct StackSample {
    #[prost(uint32, tag = "1")]
    pub every: u32,
    #[prost(uint64, tag = "2")]
    pub passed: u64,
}

/// Data that stacks lack.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeftOutOfStacks {
    #[prost(string, tag = "1")]
    pub what: String,
    #[prost(uint64, tag = "2")]
    pub count: u64,
}
