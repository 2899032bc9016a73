//! Words of a pushbuffer and entries of a GPFIFO ring, as a Hopper host class (c86f) reads them.
//!
//! Layouts: method headers and ring entries as in the headers of classes 906f..c86f; the QMD as version 4.0 of
//! compute class cbc0. Knows nothing of rings, channels or plans.

/// A GPFIFO entry that points to `len` bytes at GPU address `address`. libcuda marks its segments as subroutines.
pub fn segment_entry(address: u64, len: u32) -> u64 {
    const LEVEL_SUBROUTINE: u64 = 1 << 41;
    debug_assert!(
        len.is_multiple_of(4)
            && len > 0
            && len / 4 < 1 << 21
            && address < 1 << 40
            && address & 3 == 0
    );
    address | LEVEL_SUBROUTINE | (u64::from(len / 4) << 42)
}

/// A control entry (LENGTH = 0) with this opcode and operand.
pub fn control_entry(opcode: u8, operand: u32) -> u64 {
    u64::from(operand) | u64::from(opcode) << 32
}

/// Opcode of a control entry that does nothing.
pub const CONTROL_NOP: u8 = 0;
/// Opcode of the control entry that sets bits 56:40 of the addresses of the entries after it.
pub const CONTROL_EXTENDED_BASE: u8 = 4;

/// A pushbuffer under construction.
#[derive(Clone, Debug, Default)]
pub struct Pushbuffer {
    words: Vec<u32>,
}

impl Pushbuffer {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    fn header(&mut self, op: u32, count: usize, subchannel: u32, method: u32) {
        debug_assert!(count < 1 << 13 && method & 3 == 0 && method < 1 << 14);
        self.words
            .push(op << 29 | (count as u32) << 16 | subchannel << 13 | method >> 2);
    }

    /// INC_METHOD: `data` to `method`, `method` + 4, ...
    pub fn inc(&mut self, subchannel: u32, method: u32, data: &[u32]) {
        self.header(1, data.len(), subchannel, method);
        self.words.extend_from_slice(data);
    }

    /// NON_INC_METHOD: all of `data` to `method`.
    pub fn non_inc(&mut self, subchannel: u32, method: u32, data: &[u32]) {
        self.header(3, data.len(), subchannel, method);
        self.words.extend_from_slice(data);
    }

    /// ONE_INC: the first word to `method`, all others to `method` + 4.
    pub fn one_inc(&mut self, subchannel: u32, method: u32, data: &[u32]) {
        self.header(5, data.len(), subchannel, method);
        self.words.extend_from_slice(data);
    }

    /// IMMD_DATA_METHOD: 13 bits of data in the header itself.
    pub fn immediate(&mut self, subchannel: u32, method: u32, data: u32) {
        self.header(4, (data & 0x1fff) as usize, subchannel, method);
    }

    /// A word that is neither header nor data of one: 0 is a NOP.
    pub fn nop(&mut self) {
        self.words.push(0);
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.words.len() * 4
    }

    /// True when nothing was written.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The words as the GPU reads them.
    pub fn into_bytes(self) -> Vec<u8> {
        self.words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// An inline write of `data` to `dst`, split where a method's COUNT cannot hold it, as libcuda forms it:
    /// address, length, LAUNCH_DMA (pitch, SYSMEMBAR_DISABLE), then the data by LOAD_INLINE_DATA.
    pub fn inline_write(&mut self, subchannel: u32, dst: u64, data: &[u8]) {
        const MAX_WORDS: usize = 0x1f00;
        self.inc(subchannel, 0x0188, &[(dst >> 32) as u32, dst as u32]);
        self.inc(subchannel, 0x0180, &[data.len() as u32, 1]);
        self.inc(subchannel, 0x01b0, &[0x41]);
        let words: Vec<u32> = data
            .chunks(4)
            .map(|c| {
                let mut word = [0; 4];
                word[..c.len()].copy_from_slice(c);
                u32::from_le_bytes(word)
            })
            .collect();
        for part in words.chunks(MAX_WORDS) {
            self.non_inc(subchannel, 0x01b4, part);
        }
    }
}

/// What a launch's QMD says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Qmd {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y, z.
    pub block: [u32; 3],
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory of a block, bytes.
    pub shared: u32,
    /// Barriers of a block.
    pub barriers: u32,
    /// GPU address of the program.
    pub program: u64,
    /// GPU address of constant bank 0, 64-byte aligned.
    pub constants: u64,
    /// Size of constant bank 0 in bytes.
    pub constants_size: u32,
}

impl Qmd {
    /// The 384 bytes of version 4.0 that cover these fields.
    pub fn to_words(self) -> [u32; 96] {
        let mut q = [0u32; 96];
        let mut set = |hi: usize, lo: usize, value: u64| {
            for bit in lo..=hi {
                if value >> (bit - lo) & 1 == 1 {
                    q[bit / 32] |= 1 << (bit % 32);
                }
            }
        };
        set(25, 23, 2); // QMD_TYPE = GRID_CTA
        set(416, 416, 1); // CONSTANT_BUFFER_VALID(0)
        set(419, 419, 1); // CONSTANT_BUFFER_INVALIDATE(0)
        set(543, 536, 0x90); // SASS_VERSION
        set(568, 568, 1); // API_VISIBLE_CALL_LIMIT = NO_CHECK
        set(579, 576, 0); // QMD_MINOR_VERSION
        set(583, 580, 4); // QMD_MAJOR_VERSION
        set(601, 584, u64::from(self.shared)); // SHARED_MEMORY_SIZE, in bytes
        for i in 0..3 {
            let width = [32, 16, 16][i];
            set(
                1024 + 32 * i + width - 1,
                1024 + 32 * i,
                u64::from(self.grid[i]),
            );
            set(1152 + 16 * i + 15, 1152 + 16 * i, u64::from(self.block[i]));
        }
        set(1208, 1200, u64::from(self.registers));
        set(1215, 1211, u64::from(self.barriers));
        set(1272, 1216, self.program);
        set(1586, 1536, self.constants >> 6);
        set(1599, 1587, u64::from(self.constants_size) >> 4);
        q
    }
}
