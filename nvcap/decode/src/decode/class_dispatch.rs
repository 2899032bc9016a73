//! Dispatch of a class's methods, by which the decoder puts operations together: the methods that trigger operations, the places of the
//! operands, and the bit fields of data words. It is made once per class from the tables, by the names of the public headers, so that a
//! class with other addresses needs no change here.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::classes::{self, Class, Family, Method};
use super::pcas::PcasAction;

/// Action that a write to a method triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Action {
    /// No action: the method only stores the value.
    None,
    Bind,
    /// LAUNCH_DMA of a class that takes inline data.
    InlineLaunch,
    InlineData,
    /// CALL_MME_DATA.
    MacroData,
    /// Calls a macro, whose arguments follow.
    MacroCall,
    ConstantData,
    /// LAUNCH_DMA of a copy class, or of the memory-to-memory class.
    CopyLaunch,
    InlineQmd,
    Pcas,
    /// LAUNCH of Fermi.
    FermiLaunch,
    ReportSemaphore,
    ReportExecute,
    FalconSemaphore,
    HostSemaphore,
    OldHostSemaphore,
    MemOp,
    Barrier,
    HostOp,
    Draw,
    Video,
}

macro_rules! named {
    ($(#[$doc:meta])* $enum:ident, $names:ident: $($variant:ident = $name:expr;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(super) enum $enum { $($variant),* }
        const $names: &[&[&str]] = &[$(&$name),*];
    };
}

named! {
    /// An operand: a method that only stores a value. If a class has several of the listed names, the first is used.
    Reg, REGS:
    // Inline to memory, copies.
    OutUpper = ["OFFSET_OUT_UPPER"];
    Out = ["OFFSET_OUT_LOWER", "OFFSET_OUT"];
    InUpper = ["OFFSET_IN_UPPER"];
    In = ["OFFSET_IN_LOWER", "OFFSET_IN"];
    LineLength = ["LINE_LENGTH_IN"];
    LineCount = ["LINE_COUNT"];
    PitchIn = ["PITCH_IN"];
    PitchOut = ["PITCH_OUT"];
    DmaSemaphoreUpper = ["SET_I2M_SEMAPHORE_A", "SET_SEMAPHORE_A", "SEMAPHORE_A"];
    DmaSemaphore = ["SET_I2M_SEMAPHORE_B", "SET_SEMAPHORE_B", "SEMAPHORE_B"];
    DmaPayload = ["SET_I2M_SEMAPHORE_C", "SET_SEMAPHORE_PAYLOAD", "SET_SEMAPHORE_PAYLOAD_LOWER", "SET_SEMAPHORE_C"];
    FalconC = ["SEMAPHORE_C"];
    DmaPayloadUpper = ["SET_SEMAPHORE_PAYLOAD_UPPER"];
    RemapA = ["SET_REMAP_CONST_A"];
    RemapB = ["SET_REMAP_CONST_B"];
    RemapComponents = ["SET_REMAP_COMPONENTS"];
    SrcPhysical = ["SET_SRC_PHYS_MODE"];
    DstPhysical = ["SET_DST_PHYS_MODE"];
    SecureCopy = ["SET_SECURE_COPY_MODE"];
    Compression = ["SET_COMPRESSION_PARAMETERS"];
    // Launches.
    PcasA = ["SEND_PCAS_A"];
    QmdAddressA = ["SET_INLINE_QMD_ADDRESS_A"];
    QmdAddressB = ["SET_INLINE_QMD_ADDRESS_B"];
    ProgramRegionA = ["SET_PROGRAM_REGION_A"];
    ProgramRegionB = ["SET_PROGRAM_REGION_B"];
    CtaRasterA = ["SET_CTA_RASTER_SIZE_A"];
    CtaRasterB = ["SET_CTA_RASTER_SIZE_B"];
    CtaThreadA = ["SET_CTA_THREAD_DIMENSION_A"];
    CtaThreadB = ["SET_CTA_THREAD_DIMENSION_B"];
    CtaRegisters = ["SET_CTA_REGISTER_COUNT"];
    CtaBarriers = ["SET_CTA_BARRIER_COUNT"];
    CtaProgram = ["SET_CTA_PROGRAM_START"];
    SharedSize = ["SET_SHADER_SHARED_MEMORY_SIZE"];
    LocalSize = ["SET_SHADER_LOCAL_MEMORY_LOW_SIZE"];
    // Constant buffers written in place.
    ConstantUpper = ["SET_CONSTANT_BUFFER_SELECTOR_B"];
    ConstantLower = ["SET_CONSTANT_BUFFER_SELECTOR_C"];
    ConstantOffset = ["LOAD_CONSTANT_BUFFER_OFFSET"];
    // Semaphores of compute and 3D.
    ReportUpper = ["SET_REPORT_SEMAPHORE_A"];
    ReportLower = ["SET_REPORT_SEMAPHORE_B"];
    ReportPayload = ["SET_REPORT_SEMAPHORE_C"];
    ReportAddressUpper = ["SET_REPORT_SEMAPHORE_ADDRESS_UPPER"];
    ReportAddressLower = ["SET_REPORT_SEMAPHORE_ADDRESS_LOWER"];
    ReportPayloadLower = ["SET_REPORT_SEMAPHORE_PAYLOAD_LOWER"];
    ReportPayloadUpper = ["SET_REPORT_SEMAPHORE_PAYLOAD_UPPER"];
    // Host methods.
    SemLo = ["SEM_ADDR_LO"];
    SemHi = ["SEM_ADDR_HI"];
    SemPayloadLo = ["SEM_PAYLOAD_LO"];
    SemPayloadHi = ["SEM_PAYLOAD_HI"];
    SemaphoreA = ["SEMAPHOREA"];
    SemaphoreB = ["SEMAPHOREB"];
    SemaphoreC = ["SEMAPHOREC"];
    MemOpA = ["MEM_OP_A"];
    MemOpB = ["MEM_OP_B"];
    MemOpC = ["MEM_OP_C"];
}

named! {
    /// A field of a triggering method: the method's name, then the field's (`*`: LAUNCH_DMA of any class).
    Bits, BITS:
    DmaDstPitch = ["LAUNCH_DMA", "DST_MEMORY_LAYOUT"];
    DmaSrcPitch = ["LAUNCH_DMA", "SRC_MEMORY_LAYOUT"];
    DmaCompletion = ["LAUNCH_DMA", "COMPLETION_TYPE"];
    DmaStructSize = ["LAUNCH_DMA", "SEMAPHORE_STRUCT_SIZE"];
    DmaSrcInline = ["LAUNCH_DMA", "SRC_INLINE"];
    DmaTransfer = ["LAUNCH_DMA", "DATA_TRANSFER_TYPE"];
    DmaSemaphoreType = ["LAUNCH_DMA", "SEMAPHORE_TYPE"];
    DmaSemaphorePayloadSize = ["LAUNCH_DMA", "SEMAPHORE_PAYLOAD_SIZE"];
    DmaReductionEnable = ["LAUNCH_DMA", "SEMAPHORE_REDUCTION_ENABLE"];
    DmaReduction = ["LAUNCH_DMA", "SEMAPHORE_REDUCTION"];
    DmaMultiLine = ["LAUNCH_DMA", "MULTI_LINE_ENABLE"];
    DmaRemap = ["LAUNCH_DMA", "REMAP_ENABLE"];
    DmaSrcPhysical = ["LAUNCH_DMA", "SRC_TYPE"];
    DmaDstPhysical = ["LAUNCH_DMA", "DST_TYPE"];
    DmaCopyType = ["LAUNCH_DMA", "COPY_TYPE"];
    DmaScrub = ["LAUNCH_DMA", "MEMORY_SCRUB_ENABLE"];
    DmaCompress = ["LAUNCH_DMA", "COMPRESSION_ENABLE"];
    MemOpDOperation = ["MEM_OP_D", "OPERATION"];
    PcasAction = ["SEND_SIGNALING_PCAS2_B", "PCAS_ACTION"];
    PcasSchedule = ["SEND_SIGNALING_PCAS_B", "SCHEDULE"];
    QmdInlineSize = ["SET_INLINE_QMD_ADDRESS_A", "INLINE_SIZE"];
    ReportOperation = ["SET_REPORT_SEMAPHORE_D", "OPERATION"];
    ReportReduction = ["SET_REPORT_SEMAPHORE_D", "REDUCTION_ENABLE"];
    ReportReductionOp = ["SET_REPORT_SEMAPHORE_D", "REDUCTION_OP"];
    ReportStructSize = ["SET_REPORT_SEMAPHORE_D", "STRUCTURE_SIZE"];
    ReportComparison = ["SET_REPORT_SEMAPHORE_D", "COMPARISON"];
    ExecuteOperation = ["REPORT_SEMAPHORE_EXECUTE", "OPERATION"];
    ExecuteStructSize = ["REPORT_SEMAPHORE_EXECUTE", "STRUCTURE_SIZE"];
    ExecuteReduction = ["REPORT_SEMAPHORE_EXECUTE", "REDUCTION_ENABLE"];
    ExecuteReductionOp = ["REPORT_SEMAPHORE_EXECUTE", "REDUCTION_OP"];
    ExecutePayload64 = ["REPORT_SEMAPHORE_EXECUTE", "PAYLOAD_SIZE64"];
    FalconOperation = ["SEMAPHORE_D", "OPERATION"];
    FalconStructSize = ["SEMAPHORE_D", "STRUCTURE_SIZE"];
    FalconPayload64 = ["SEMAPHORE_D", "PAYLOAD_SIZE"];
    FalconTimestamp = ["SEMAPHORE_D", "TIMESTAMP"];
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    low: u8,
    mask: u32,
}

/// Methods of one class by which operations are put together, with the places of their operands.
#[derive(Debug)]
pub(super) struct ClassDispatch {
    /// Class number; 0 for an unknown class.
    pub class: u32,
    /// Family of the class.
    pub family: Family,
    actions: Box<[Action]>,
    /// Operation names by method address, for the methods that need one.
    names: Vec<(u16, &'static str)>,
    regs: [u16; REGS.len()],
    bits: [Place; BITS.len()],
    /// Address of element 0 of LOAD_INLINE_QMD_DATA.
    pub qmd_data: u16,
}

impl ClassDispatch {
    /// Returns the dispatch of a class: made once for each class of the tables, nearly empty for any other number.
    pub(super) fn of(class_number: u32) -> Arc<Self> {
        static PLANS: OnceLock<Mutex<HashMap<u32, Arc<ClassDispatch>>>> = OnceLock::new();
        if classes::class(class_number).is_none() {
            return Arc::new(Self::new(class_number));
        }
        let plans = PLANS.get_or_init(Mutex::default);
        let mut plans = plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plans.entry(class_number);
        plan.or_insert_with(|| Arc::new(Self::new(class_number)))
            .clone()
    }

    /// Tells whether the tables have the class.
    pub(super) fn is_known(&self) -> bool {
        self.family != Family::Unknown
    }

    fn new(class_number: u32) -> Self {
        let class = classes::class(class_number);
        let mut plan = Self {
            class: class_number,
            family: class.map_or(Family::Unknown, Class::family),
            actions: Box::default(),
            names: Vec::new(),
            regs: [u16::MAX; REGS.len()],
            bits: [Place::default(); BITS.len()],
            qmd_data: u16::MAX,
        };
        let Some(class) = class else { return plan };
        plan.actions = vec![Action::None; 0x1000].into_boxed_slice();
        // A host class handles the addresses below 0x100, every other class those from 0x100 on.
        let own = if plan.family == Family::Host {
            0..0x100u16
        } else {
            0x100..0x4000
        };
        let mut by_name: HashMap<&str, Method> = HashMap::new();
        for m in own.step_by(4).filter_map(|a| class.method(a)) {
            let (action, name) = action_of(plan.family, m);
            if let Some(slot) = plan.actions.get_mut(usize::from(m.address() >> 2)) {
                *slot = action;
            }
            if !name.is_empty() {
                plan.names.push((m.address(), name));
            }
            if m.address() == m.base() {
                by_name.entry(m.name()).or_insert(m);
            }
        }
        if let Some(m) = by_name.get("LOAD_INLINE_QMD_DATA") {
            plan.qmd_data = m.base();
        }
        for (slot, names) in plan.regs.iter_mut().zip(REGS) {
            let found = names.iter().find_map(|name| by_name.get(name));
            *slot = found.map_or(u16::MAX, |m| m.address());
        }
        for (slot, names) in plan.bits.iter_mut().zip(BITS) {
            let [method, field] = *names else { continue };
            if let Some(field) = by_name.get(method).and_then(|m| m.field(field)) {
                *slot = Place {
                    low: field.low(),
                    mask: field.value(u32::MAX),
                };
            }
        }
        plan
    }

    /// Returns the action that a write to `address` triggers.
    pub(super) fn action(&self, address: u16) -> Action {
        self.actions
            .get(usize::from(address >> 2))
            .copied()
            .unwrap_or(Action::None)
    }

    /// Returns the operation name of a method.
    pub(super) fn name(&self, address: u16) -> &'static str {
        self.names
            .iter()
            .find(|n| n.0 == address)
            .map_or("", |n| n.1)
    }

    /// Tells whether the class has this field.
    pub(super) fn has(&self, bits: Bits) -> bool {
        self.bits[bits as usize].mask != 0
    }

    /// Returns a field of the data word; 0 if the class does not have it.
    pub(super) fn bits(&self, bits: Bits, data: u32) -> u32 {
        let place = self.bits[bits as usize];
        data >> place.low & place.mask
    }

    /// Returns the address of an operand.
    pub(super) fn reg(&self, reg: Reg) -> u16 {
        self.regs[reg as usize]
    }

    /// Returns the effect of a signaling PCAS on the QMD.
    pub(super) fn pcas_action(&self, address: u16, data: u32) -> PcasAction {
        match self.name(address) {
            "pcas" if self.bits(Bits::PcasSchedule, data) != 0 => PcasAction::Schedule,
            "pcas" => PcasAction::Invalidate,
            _ => PcasAction::from_number(self.bits(Bits::PcasAction, data)),
        }
    }
}

/// Barriers and cache operations, each with its operation name.
const BARRIERS: [(&str, &str); 25] = [
    ("WAIT_FOR_IDLE", "wait_for_idle"),
    ("WAIT_FOR_IDLE_SCG_TYPE", "wait_for_idle_scg_type"),
    ("PM_TRIGGER_WFI", "pm_trigger_wfi"),
    ("SEND_GO_IDLE", "send_go_idle"),
    ("INVALIDATE_SHADER_CACHES", "invalidate_shader_caches"),
    (
        "INVALIDATE_SHADER_CACHES_NO_WFI",
        "invalidate_shader_caches_no_wfi",
    ),
    ("INVALIDATE_SKED_CACHES", "invalidate_sked_caches"),
    (
        "INVALIDATE_TEXTURE_HEADER_CACHE",
        "invalidate_texture_header_cache",
    ),
    (
        "INVALIDATE_TEXTURE_HEADER_CACHE_NO_WFI",
        "invalidate_texture_header_cache_no_wfi",
    ),
    (
        "INVALIDATE_TEXTURE_HEADER_CACHE_ALL",
        "invalidate_texture_header_cache_all",
    ),
    (
        "INVALIDATE_TEXTURE_DATA_CACHE",
        "invalidate_texture_data_cache",
    ),
    (
        "INVALIDATE_TEXTURE_DATA_CACHE_NO_WFI",
        "invalidate_texture_data_cache_no_wfi",
    ),
    ("INVALIDATE_SAMPLER_CACHE", "invalidate_sampler_cache"),
    (
        "INVALIDATE_SAMPLER_CACHE_NO_WFI",
        "invalidate_sampler_cache_no_wfi",
    ),
    (
        "INVALIDATE_SAMPLER_CACHE_ALL",
        "invalidate_sampler_cache_all",
    ),
    (
        "INVALIDATE_CONSTANT_BUFFER_CACHE",
        "invalidate_constant_buffer_cache",
    ),
    (
        "INVALIDATE_CONSTANT_BUFFER_CACHE_A",
        "invalidate_constant_buffer_cache",
    ),
    ("INVALIDATE_DA_DMA_CACHE", "invalidate_da_dma_cache"),
    (
        "INVALIDATE_RASTER_CACHE_NO_WFI",
        "invalidate_raster_cache_no_wfi",
    ),
    ("INVALIDATE_ZCULL", "invalidate_zcull"),
    (
        "FLUSH_AND_INVALIDATE_ROP_MINI_CACHE",
        "flush_and_invalidate_rop_mini_cache",
    ),
    ("FLUSH_PENDING_WRITES", "flush_pending_writes"),
    ("PIXEL_SHADER_BARRIER", "pixel_shader_barrier"),
    (
        "MME_DMA_WRITE_METHOD_BARRIER",
        "mme_dma_write_method_barrier",
    ),
    ("MME_DMA_SYSMEMBAR", "mme_dma_sysmembar"),
];

fn action_of(family: Family, method: Method) -> (Action, &'static str) {
    use Action::*;
    let name = method.name();
    match family {
        Family::Host => match name {
            "SET_OBJECT" => (Bind, ""),
            "SEM_EXECUTE" => (HostSemaphore, ""),
            "SEMAPHORED" => (OldHostSemaphore, ""),
            "MEM_OP_B" | "MEM_OP_D" => (MemOp, ""),
            "WFI" => (Barrier, "wfi"),
            "FB_FLUSH" => (Barrier, "fb_flush"),
            "YIELD" => (HostOp, "yield"),
            "NON_STALL_INTERRUPT" => (HostOp, "non_stall_interrupt"),
            "SET_REFERENCE" => (HostOp, "set_reference"),
            "CLEAR_FAULTED" => (HostOp, "clear_faulted"),
            "CRC_CHECK" => (HostOp, "crc_check"),
            "ILLEGAL" => (HostOp, "illegal"),
            _ => (None, ""),
        },
        Family::Copy | Family::MemoryToMemory => match name {
            "LAUNCH_DMA" => (CopyLaunch, ""),
            "LOAD_INLINE_DATA" => (InlineData, ""),
            _ => (None, ""),
        },
        Family::Nvdec | Family::Nvenc | Family::Nvjpg | Family::Ofa | Family::Sec2 => match name {
            "EXECUTE" => {
                let what = match family {
                    Family::Nvdec => "decode",
                    Family::Nvenc => "encode",
                    Family::Nvjpg => "jpeg",
                    Family::Ofa => "flow",
                    _ => "sec2",
                };
                (Video, what)
            }
            "SEMAPHORE_D" => (FalconSemaphore, ""),
            _ => (None, ""),
        },
        Family::Graphics2d => match name {
            "RENDER_SOLID_PRIM_POINT_Y" | "RENDER_SOLID_PRIM_POINT_X_Y" => (Draw, "solid"),
            "PIXELS_FROM_MEMORY_SRC_Y0_INT" => (Draw, "blit"),
            "SET_PIXELS_FROM_CPU_DST_Y0_INT" => (Draw, "pixels_from_cpu"),
            _ => barrier_of(name),
        },
        Family::Compute | Family::Graphics3d | Family::Inline => match name {
            "LAUNCH_DMA" => (InlineLaunch, ""),
            "LOAD_INLINE_DATA" => (InlineData, ""),
            "CALL_MME_MACRO" if family == Family::Compute => (MacroCall, ""),
            "CALL_MME_DATA" => (MacroData, ""),
            "LOAD_CONSTANT_BUFFER" => (ConstantData, ""),
            "LOAD_INLINE_QMD_DATA" => (InlineQmd, ""),
            "SEND_SIGNALING_PCAS_B" => (Pcas, "pcas"),
            "SEND_SIGNALING_PCAS2_B" => (Pcas, "pcas2"),
            "LAUNCH" => (FermiLaunch, ""),
            "SET_REPORT_SEMAPHORE_D" => (ReportSemaphore, ""),
            "REPORT_SEMAPHORE_EXECUTE" => (ReportExecute, ""),
            "CLEAR_SURFACE" => (Draw, "clear"),
            "CLEAR_ZCULL_REGION" => (Draw, "clear_zcull"),
            "CLEAR_CLIP_ID_SURFACE" => (Draw, "clear_clip_id"),
            "CLEAR_REPORT_VALUE" => (Draw, "clear_report"),
            "DRAW_AUTO" => (Draw, "draw_auto"),
            _ if name.starts_with("DRAW_") && method.field("COUNT").is_some() => (
                Draw,
                if name.contains("INDEX_BUFFER") {
                    "draw_indexed"
                } else {
                    "draw"
                },
            ),
            _ => barrier_of(name),
        },
        Family::Software | Family::Unknown => (None, ""),
    }
}

fn barrier_of(name: &str) -> (Action, &'static str) {
    match BARRIERS.iter().find(|b| b.0 == name) {
        Some(b) => (Action::Barrier, b.1),
        None => (Action::None, ""),
    }
}

/// Dispatch of a class, and the number of writes to each of its methods.
pub(super) struct Counted {
    pub plan: Arc<ClassDispatch>,
    pub writes: Box<[u64]>,
}

/// Dispatches of the classes seen so far.
#[derive(Default)]
pub(super) struct Plans {
    pub list: Vec<Counted>,
    by_class: HashMap<u32, usize>,
}

impl Plans {
    pub(super) fn of(&mut self, class: u32) -> (Arc<ClassDispatch>, usize) {
        let index = *self.by_class.entry(class).or_insert_with(|| {
            let plan = ClassDispatch::of(class);
            // A stream can bind any of 65,536 numbers: only classes in the tables get counters.
            let slots = if plan.is_known() { 0x1000 } else { 0 };
            let writes = vec![0; slots].into_boxed_slice();
            self.list.push(Counted { plan, writes });
            self.list.len() - 1
        });
        match self.list.get(index) {
            Some(counted) => (counted.plan.clone(), index),
            None => (ClassDispatch::of(0), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hopper() {
        let plan = ClassDispatch::of(0xcbc0);
        assert_eq!(plan.action(0x1b0), Action::InlineLaunch);
        assert_eq!(plan.action(0x2c0), Action::Pcas);
        assert_eq!(plan.action(0x320 + 95 * 4), Action::InlineQmd);
        assert_eq!(plan.reg(Reg::OutUpper), 0x188);
        assert_eq!(plan.bits(Bits::PcasAction, 0x10a), 0xa);
        assert_eq!(plan.name(0x1698), "invalidate_shader_caches_no_wfi");
        let copy = ClassDispatch::of(0xc8b5);
        assert_eq!(copy.action(0x300), Action::CopyLaunch);
        assert!(copy.has(Bits::DmaScrub) && !plan.has(Bits::DmaScrub));
        assert_eq!(ClassDispatch::of(0).action(0x300), Action::None);
    }

    #[test]
    fn every_engine_class_triggers_operations() {
        for class in classes::all().filter(|c| !matches!(c.family(), Family::Software)) {
            let plan = ClassDispatch::of(class.number());
            let any = (0..0x4000)
                .step_by(4)
                .any(|a| plan.action(a) != Action::None);
            assert!(any, "{class:?}");
        }
    }
}
