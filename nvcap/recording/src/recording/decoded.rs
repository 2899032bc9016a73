//! The decoder's account of a record, for readers of packets that have no decoder (Wireshark's dissector). It is the field `FIELD` of the
//! messages. Recordings do not contain it; `nvcap export wireshark` adds it, and nvcap itself skips it.

use prost::Message;
use prost::encoding::message;

/// Number of the field, the same in each message.
const FIELD: u32 = 100;

/// The decoder's account of a record, for readers that have no decoder.
#[derive(Clone, PartialEq, Message)]
pub struct Decoded {
    /// The serial number of the submission in the trace.
    #[prost(uint64, optional, tag = "1")]
    pub serial: Option<u64>,
    /// Description in one line.
    #[prost(string, tag = "2")]
    pub text: String,
    /// GPU by device file minor number, if known.
    #[prost(uint32, optional, tag = "3")]
    pub gpu: Option<u32>,
    /// Work-submit token of the channel, if known.
    #[prost(uint32, optional, tag = "4")]
    pub token: Option<u32>,
    /// Name of the engine that the channel feeds, if known.
    #[prost(string, optional, tag = "5")]
    pub engine: Option<String>,
    /// Name of the thread that submitted, if known.
    #[prost(string, optional, tag = "6")]
    pub thread: Option<String>,
    /// Function of CUDA's interface that was called.
    #[prost(string, optional, tag = "7")]
    pub api: Option<String>,
    /// Operations that the submission completes, in their order.
    #[prost(message, repeated, tag = "8")]
    pub operations: Vec<Operation>,
    /// Method writes of the submission's entries, in their order.
    #[prost(message, repeated, tag = "9")]
    pub methods: Vec<Method>,
    /// Places at which entries could not be read further.
    #[prost(message, repeated, tag = "10")]
    pub stops: Vec<Stop>,
    /// The names of the classes of the methods.
    #[prost(message, repeated, tag = "11")]
    pub classes: Vec<Class>,
}

/// A name with a value.
#[derive(Clone, PartialEq, Message)]
pub struct Value {
    /// Name of the value, such as `grid.x`.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Number, if the value is one; 0 or 1 for a truth value.
    #[prost(uint64, optional, tag = "2")]
    pub number: Option<u64>,
    /// Text, if the value is one; for a field of a method, the word for its number.
    #[prost(string, optional, tag = "3")]
    pub text: Option<String>,
}

/// An operation, whose values are named as in JSON.
#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    /// Name of the operation, as in JSON.
    #[prost(string, tag = "1")]
    pub op: String,
    /// Description of the operation in one line.
    #[prost(string, tag = "2")]
    pub text: String,
    /// Index, in the submission, of the entry with the method that completes the operation.
    #[prost(uint32, optional, tag = "3")]
    pub entry: Option<u32>,
    /// Byte offset, in the entry, of that method's data word (of the header, for immediate data).
    #[prost(uint32, optional, tag = "4")]
    pub offset: Option<u32>,
    /// Serial number of the submission, if it differs from the message's.
    #[prost(uint64, optional, tag = "5")]
    pub serial: Option<u64>,
    /// Known values of the operation.
    #[prost(message, repeated, tag = "6")]
    pub values: Vec<Value>,
}

/// A method write, or several consecutive ones.
#[derive(Clone, PartialEq, Message)]
pub struct Method {
    /// Index of the entry in the submission.
    #[prost(uint32, tag = "1")]
    pub entry: u32,
    /// Byte offset, in the entry, of the first data word (of the header, for immediate data).
    #[prost(uint32, tag = "2")]
    pub offset: u32,
    /// Number of the subchannel.
    #[prost(uint32, tag = "3")]
    pub subchannel: u32,
    /// Number of the class that interprets the method; 0 if the class is not known.
    #[prost(uint32, tag = "4")]
    pub class: u32,
    /// Byte address of the method.
    #[prost(uint32, tag = "5")]
    pub address: u32,
    /// Name of the method, if the class's table has it.
    #[prost(string, optional, tag = "6")]
    pub name: Option<String>,
    /// First data word.
    #[prost(uint32, tag = "7")]
    pub data: u32,
    /// True if the subdevice mask skips the method.
    #[prost(bool, tag = "8")]
    pub masked: bool,
    /// Number of data words.
    #[prost(uint32, tag = "9")]
    pub words: u32,
    /// Fields of the data word, by name.
    #[prost(message, repeated, tag = "10")]
    pub fields: Vec<Value>,
}

/// Place at which an entry could not be read further, and the reason.
#[derive(Clone, PartialEq, Message)]
pub struct Stop {
    /// Index of the entry in the submission.
    #[prost(uint32, tag = "1")]
    pub entry: u32,
    /// Byte offset of the place in the entry.
    #[prost(uint32, tag = "2")]
    pub offset: u32,
    /// Reason, in words.
    #[prost(string, tag = "3")]
    pub text: String,
}

/// A class by its name.
#[derive(Clone, PartialEq, Message)]
pub struct Class {
    /// Number of the class.
    #[prost(uint32, tag = "1")]
    pub class: u32,
    /// Name of the class.
    #[prost(string, tag = "2")]
    pub name: String,
}

impl Decoded {
    /// Returns the bytes of the field, which are to be appended to a message's bytes.
    pub fn field(&self) -> Vec<u8> {
        let mut to = Vec::new();
        message::encode(FIELD, self, &mut to);
        to
    }
}
