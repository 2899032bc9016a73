//! Parts of the message of a kernel: its parameters, and the variables of its image.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct KernelParam {
    #[prost(uint32, tag = "1")]
    pub offset: u32,
    #[prost(uint32, tag = "2")]
    pub size: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KernelParams {
    #[prost(message, repeated, tag = "1")]
    pub params: Vec<KernelParam>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Variable {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, tag = "2")]
    pub bytes: u64,
    #[prost(bool, tag = "3")]
    pub constant: bool,
}
