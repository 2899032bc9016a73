//! Offsets of the fields of CPython's structures that are read.
//!
//! - 3.13 and 3.14 begin `_PyRuntime` with a table of their own offsets, `_Py_DebugOffsets` (`pycore_runtime.h` of 3.13,
//!   `pycore_debug_offsets.h` of 3.14), made for debuggers. It also covers builds without the global interpreter lock.
//! - 3.10, 3.11 and 3.12 have no such table. The offsets here are the results of `offsetof` for CPython's headers on x86-64, compiled with
//!   `Py_BUILD_CORE`, of releases 3.10.13, 3.11.7 and 3.12.1 (`pycore_runtime.h`, `pycore_interp.h`, `cpython/pystate.h`,
//!   `cpython/frameobject.h`, `pycore_frame.h`, `cpython/code.h`, `cpython/unicodeobject.h`). These structures keep their layout within a
//!   minor version. AArch64 has the same offsets, since both are LP64.

/// Marks a field that the version does not have.
pub(crate) const NONE: u32 = u32::MAX;

/// Offsets for a walk along the frames of a thread, as plain words, so that a BPF map can carry them. All are byte offsets; [`NONE`] if the
/// version has no such field.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkOffsets {
    /// In a thread state: the newest frame. If `cframe_frame` exists: a pointer to the `_PyCFrame` that has the newest frame.
    pub state_frame: u32,
    /// In `_PyCFrame` (3.11 and 3.12): the newest frame.
    pub cframe_frame: u32,
    /// In a frame: its caller's frame, 0 at the end.
    pub previous: u32,
    /// In a frame: the code object. The lowest 3 bits of the pointer are a tag and must be cleared.
    pub code: u32,
    /// In a frame: the instruction. It is a pointer; in 3.10 it is an `int`, counted in instructions.
    pub instruction: u32,
    /// Size of the instruction field: 8, or 4 in 3.10.
    pub instruction_bytes: u32,
    /// In a frame: the byte that names the frame's owner.
    pub owner: u32,
    /// First owner that means a frame of the interpreter itself, with no code of the program. Frames with this owner or a greater one must
    /// be left out.
    pub first_inner_owner: u32,
    /// In an object: the pointer to its type.
    pub object_type: u32,
}

/// Byte offsets of the structures' fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offsets {
    /// Offsets for a walk along frames.
    pub walk: WalkOffsets,
    /// `_PyRuntime`: the first interpreter.
    pub interpreters: u32,
    /// Interpreter: the next one.
    pub interpreter_next: u32,
    /// Interpreter: its first thread state.
    pub threads: u32,
    /// Thread state: the next one.
    pub state_next: u32,
    /// Thread state: its interpreter.
    pub state_interpreter: u32,
    /// Thread state: the thread as returned by pthread_self().
    pub pthread: u32,
    /// Thread state: the thread's id as returned by gettid(), in the process's own PID namespace; [`NONE`] in 3.10.
    pub native_thread: u32,
    /// Code: the file's name, a string.
    pub file: u32,
    /// Code: the function's name, a string; from 3.11 on the qualified name.
    pub function: u32,
    /// Code: the first line.
    pub first_line: u32,
    /// Code: the table of lines, bytes.
    pub line_table: u32,
    /// Code: its instructions; in 3.10 a pointer to the bytes object that has them.
    pub instructions: u32,
    /// Code: the copies of the instructions that belong to single threads (3.14 without the lock); [`NONE`] in other builds.
    pub thread_copies: u32,
    /// Objects of variable size: their size.
    pub var_size: u32,
    /// Bytes object: its contents.
    pub bytes_data: u32,
    /// String: its length in characters.
    pub string_length: u32,
    /// String: its state, a word of bit fields.
    pub string_state: u32,
    /// In the state word: the lowest bit of `kind` (3 bits); `compact` and `ascii` follow.
    pub string_kind_shift: u32,
    /// String of ASCII characters: its characters.
    pub ascii_data: u32,
    /// Other strings: their characters.
    pub compact_data: u32,
    /// Minor number of the version, which determines formats.
    pub minor: u8,
}

/// CPython 3.10.
const V3_10: Offsets = Offsets {
    walk: WalkOffsets {
        state_frame: 24,
        cframe_frame: NONE,
        previous: 24,
        code: 32,
        instruction: 96,
        instruction_bytes: 4,
        owner: NONE,
        first_inner_owner: NONE,
        object_type: 8,
    },
    interpreters: 32,
    interpreter_next: 0,
    threads: 8,
    state_next: 8,
    state_interpreter: 16,
    pthread: 176,
    native_thread: NONE,
    file: 104,
    function: 112,
    first_line: 40,
    line_table: 120,
    instructions: 48,
    thread_copies: NONE,
    var_size: 16,
    bytes_data: 32,
    string_length: 16,
    string_state: 32,
    string_kind_shift: 2,
    ascii_data: 48,
    compact_data: 72,
    minor: 10,
};

/// CPython 3.11.
const V3_11: Offsets = Offsets {
    walk: WalkOffsets {
        state_frame: 56,
        cframe_frame: 8,
        previous: 48,
        code: 32,
        instruction: 56,
        instruction_bytes: 8,
        owner: 69,
        // FRAME_OWNED_BY_FRAME_OBJECT, 2, is the last one.
        first_inner_owner: 3,
        object_type: 8,
    },
    interpreters: 40,
    interpreter_next: 0,
    threads: 16,
    state_next: 8,
    state_interpreter: 16,
    pthread: 152,
    native_thread: 160,
    file: 112,
    function: 128,
    first_line: 72,
    line_table: 136,
    instructions: 184,
    thread_copies: NONE,
    var_size: 16,
    bytes_data: 32,
    string_length: 16,
    string_state: 32,
    string_kind_shift: 2,
    ascii_data: 48,
    compact_data: 72,
    minor: 11,
};

/// CPython 3.12.
const V3_12: Offsets = Offsets {
    walk: WalkOffsets {
        state_frame: 56,
        cframe_frame: 0,
        previous: 8,
        code: 0,
        instruction: 56,
        instruction_bytes: 8,
        owner: 70,
        // FRAME_OWNED_BY_CSTACK.
        first_inner_owner: 3,
        object_type: 8,
    },
    interpreters: 40,
    interpreter_next: 0,
    threads: 72,
    state_next: 8,
    state_interpreter: 16,
    pthread: 136,
    native_thread: 144,
    file: 112,
    function: 128,
    first_line: 68,
    line_table: 136,
    instructions: 192,
    thread_copies: NONE,
    var_size: 16,
    bytes_data: 32,
    string_length: 16,
    string_state: 32,
    string_kind_shift: 2,
    ascii_data: 40,
    compact_data: 56,
    minor: 12,
};

/// Bytes with which `_Py_DebugOffsets` begins.
pub(super) const COOKIE: &[u8; 8] = b"xdebugpy";

/// Number of bytes of `_Py_DebugOffsets` that are read: more than 3.14 has.
pub(super) const DEBUG_BYTES: usize = 1024;

/// Returns the built-in offsets of a version that has no table of them.
pub(super) fn built_in(minor: u8) -> Option<Offsets> {
    match minor {
        10 => Some(V3_10),
        11 => Some(V3_11),
        12 => Some(V3_12),
        _ => None,
    }
}

/// Positions of fields in `_Py_DebugOffsets`, in words of 8 bytes.
struct DebugLayout {
    interpreters: usize,
    interpreter_next: usize,
    threads: usize,
    state_next: usize,
    state_interpreter: usize,
    state_frame: usize,
    pthread: usize,
    native_thread: usize,
    previous: usize,
    code: usize,
    instruction: usize,
    owner: usize,
    file: usize,
    function: usize,
    line_table: usize,
    first_line: usize,
    instructions: usize,
    thread_copies: Option<usize>,
    object_type: usize,
    var_size: usize,
    bytes_data: usize,
    string_state: usize,
    string_length: usize,
    ascii_data: usize,
}

/// Layout of 3.13, by the header of 3.13.0: `runtime_state` begins at word 3, `interpreter_state` at 6, `thread_state` at 19,
/// `interpreter_frame` at 28, `code_object` at 34, `pyobject` at 44, `tuple_object` at 50, `bytes_object` at 64, `unicode_object` at 67.
const DEBUG_3_13: DebugLayout = DebugLayout {
    interpreters: 5,
    interpreter_next: 8,
    threads: 9,
    state_next: 21,
    state_interpreter: 22,
    state_frame: 23,
    pthread: 24,
    native_thread: 25,
    previous: 29,
    code: 30,
    instruction: 31,
    owner: 33,
    file: 35,
    function: 37,
    line_table: 38,
    first_line: 39,
    instructions: 43,
    thread_copies: None,
    object_type: 45,
    var_size: 52,
    bytes_data: 66,
    string_state: 68,
    string_length: 69,
    ascii_data: 70,
};

/// Layout of 3.14, by the header of 3.14.10: `runtime_state` begins at word 3, `interpreter_state` at 6, `thread_state` at 22,
/// `interpreter_frame` at 31, `code_object` at 39, `pyobject` at 50, `tuple_object` at 56, `bytes_object` at 74, `unicode_object` at 77.
const DEBUG_3_14: DebugLayout = DebugLayout {
    interpreters: 5,
    interpreter_next: 8,
    threads: 9,
    state_next: 24,
    state_interpreter: 25,
    state_frame: 26,
    pthread: 27,
    native_thread: 28,
    previous: 32,
    code: 33,
    instruction: 34,
    owner: 36,
    file: 40,
    function: 42,
    line_table: 43,
    first_line: 44,
    instructions: 48,
    thread_copies: Some(49),
    object_type: 51,
    var_size: 58,
    bytes_data: 76,
    string_state: 78,
    string_length: 79,
    ascii_data: 80,
};

/// Head of `_Py_DebugOffsets`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DebugHead {
    /// PY_VERSION_HEX.
    pub version: u32,
    /// True if the interpreter was built without the global interpreter lock.
    pub free_threaded: bool,
}

/// Returns word `at` of `_Py_DebugOffsets`.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at * 8..at * 8 + 8)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// Reads the head; `None` if this is no `_Py_DebugOffsets`.
pub(super) fn debug_head(bytes: &[u8]) -> Option<DebugHead> {
    if bytes.get(..8)? != COOKIE {
        return None;
    }
    Some(DebugHead {
        version: u32::try_from(word(bytes, 1)?).ok()?,
        free_threaded: word(bytes, 2)? != 0,
    })
}

/// Reads the offsets in `_Py_DebugOffsets`; `None` for a version whose table has an unknown layout, and for a table with impossible values.
pub(super) fn from_debug(bytes: &[u8]) -> Option<Offsets> {
    let head = debug_head(bytes)?;
    let minor = (head.version >> 16) as u8;
    let layout = match (head.version >> 24, minor) {
        (3, 13) => DEBUG_3_13,
        (3, 14) => DEBUG_3_14,
        _ => return None,
    };
    // The largest structure is the interpreter's, of 500,000 bytes in 3.14.
    let field = |at: usize| word(bytes, at).filter(|o| *o < 1 << 22).map(|o| o as u32);
    let ascii_data = field(layout.ascii_data)?;
    Some(Offsets {
        walk: WalkOffsets {
            state_frame: field(layout.state_frame)?,
            cframe_frame: NONE,
            previous: field(layout.previous)?,
            code: field(layout.code)?,
            instruction: field(layout.instruction)?,
            instruction_bytes: 8,
            owner: field(layout.owner)?,
            // FRAME_OWNED_BY_CSTACK of 3.13, FRAME_OWNED_BY_INTERPRETER and FRAME_OWNED_BY_CSTACK of 3.14.
            first_inner_owner: 3,
            object_type: field(layout.object_type)?,
        },
        interpreters: field(layout.interpreters)?,
        interpreter_next: field(layout.interpreter_next)?,
        threads: field(layout.threads)?,
        state_next: field(layout.state_next)?,
        state_interpreter: field(layout.state_interpreter)?,
        pthread: field(layout.pthread)?,
        native_thread: field(layout.native_thread)?,
        file: field(layout.file)?,
        function: field(layout.function)?,
        first_line: field(layout.first_line)?,
        line_table: field(layout.line_table)?,
        instructions: field(layout.instructions)?,
        thread_copies: match layout.thread_copies {
            Some(at) if head.free_threaded => field(at)?,
            _ => NONE,
        },
        var_size: field(layout.var_size)?,
        bytes_data: field(layout.bytes_data)?,
        string_length: field(layout.string_length)?,
        string_state: field(layout.string_state)?,
        // 3.14 without the lock has a whole byte for `interned`, which elsewhere has 2 bits (cpython/unicodeobject.h).
        string_kind_shift: if head.free_threaded && minor >= 14 {
            8
        } else {
            2
        },
        ascii_data,
        // PyCompactUnicodeObject adds `utf8_length` and `utf8`.
        compact_data: ascii_data + 16,
        minor,
    })
}
