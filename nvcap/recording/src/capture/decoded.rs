//! Decoder's account of a record, for readers of packets that have no decoder (Wireshark's dissector): the field [`FIELD`] of the
//! messages. Recordings have none; `nvcap export wireshark` adds it, and nvcap itself passes over it.

use prost::Message;
use prost::encoding::message;

/// The number of the field, the same in each message.
const FIELD: u32 = 100;

/// See the module.
#[derive(Clone, PartialEq, Message)]
pub struct Decoded {
    /// The serial number of the submission in the trace.
    #[prost(uint64, optional, tag = "1")]
    pub serial: Option<u64>,
    /// One line.
    #[prost(string, tag = "2")]
    pub text: String,
    #[prost(uint32, optional, tag = "3")]
    pub gpu: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub token: Option<u32>,
    #[prost(string, optional, tag = "5")]
    pub engine: Option<String>,
    #[prost(string, optional, tag = "6")]
    pub thread: Option<String>,
    /// The function of CUDA's interface that was called.
    #[prost(string, optional, tag = "7")]
    pub api: Option<String>,
    #[prost(message, repeated, tag = "8")]
    pub operations: Vec<Operation>,
    #[prost(message, repeated, tag = "9")]
    pub methods: Vec<Method>,
    #[prost(message, repeated, tag = "10")]
    pub stops: Vec<Stop>,
    /// The names of the classes of the methods.
    #[prost(message, repeated, tag = "11")]
    pub classes: Vec<Class>,
}

/// A name with a value.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(uint64, optional, tag = "2")]
    pub number: Option<u64>,
    #[prost(string, optional, tag = "3")]
    pub text: Option<String>,
}

/// An operation; its values are named as in JSON.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, tag = "1")]
    pub op: String,
    #[prost(string, tag = "2")]
    pub text: String,
    /// The entry, and the byte in it, of the method that completes it.
    #[prost(uint32, optional, tag = "3")]
    pub entry: Option<u32>,
    #[prost(uint32, optional, tag = "4")]
    pub offset: Option<u32>,
    /// The submission, where it is another one than that of the message.
    #[prost(uint64, optional, tag = "5")]
    pub serial: Option<u64>,
    #[prost(message, repeated, tag = "6")]
    pub values: Vec<Value>,
}

/// A method write, or several of data words that follow one another.
#[derive(Clone, PartialEq, Message)]
pub struct Method {
    #[prost(uint32, tag = "1")]
    pub entry: u32,
    #[prost(uint32, tag = "2")]
    pub offset: u32,
    #[prost(uint32, tag = "3")]
    pub subchannel: u32,
    #[prost(uint32, tag = "4")]
    pub class: u32,
    #[prost(uint32, tag = "5")]
    pub address: u32,
    #[prost(string, optional, tag = "6")]
    pub name: Option<String>,
    #[prost(uint32, tag = "7")]
    pub data: u32,
    #[prost(bool, tag = "8")]
    pub masked: bool,
    /// How many words.
    #[prost(uint32, tag = "9")]
    pub words: u32,
    #[prost(message, repeated, tag = "10")]
    pub fields: Vec<Value>,
}

/// Place at which an entry could not be read on, and the reason.
#[derive(Clone, PartialEq, Message)]
pub struct Stop {
    #[prost(uint32, tag = "1")]
    pub entry: u32,
    #[prost(uint32, tag = "2")]
    pub offset: u32,
    #[prost(string, tag = "3")]
    pub text: String,
}

/// A class by its name.
#[derive(Clone, PartialEq, Message)]
pub struct Class {
    #[prost(uint32, tag = "1")]
    pub class: u32,
    #[prost(string, tag = "2")]
    pub name: String,
}

impl Decoded {
    /// The bytes of the field, to be appended to those of a message.
    pub fn field(&self) -> Vec<u8> {
        let mut to = Vec::new();
        message::encode(FIELD, self, &mut to);
        to
    }
}
