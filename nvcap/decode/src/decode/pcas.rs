//! The effect of a SEND_SIGNALING_PCAS on the QMD that SEND_PCAS_A names. Most actions run nothing by themselves.

use std::fmt;

/// PCAS_ACTION of SEND_SIGNALING_PCAS2_B, spelled as the class headers spell it. SEND_SIGNALING_PCAS_B of older classes
/// has two bits, which are read as `Schedule` and `Invalidate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize),
    serde(rename_all = "snake_case")
)]
pub enum PcasAction {
    /// NOP.
    Nop,
    /// INVALIDATE.
    Invalidate,
    /// SCHEDULE.
    Schedule,
    /// INVALIDATE_COPY_SCHEDULE.
    InvalidateCopySchedule,
    /// INCREMENT_PUT.
    IncrementPut,
    /// DECREMENT_DEPENDENCE.
    DecrementDependence,
    /// PREFETCH.
    Prefetch,
    /// PREFETCH_SCHEDULE.
    PrefetchSchedule,
    /// INVALIDATE_PREFETCH_COPY_SCHEDULE.
    InvalidatePrefetchCopySchedule,
    /// INVALIDATE_PREFETCH_COPY_FORCE_REQUIRE_SCHEDULING.
    InvalidatePrefetchCopyForceRequireScheduling,
    /// INCREMENT_DEPENDENCE.
    IncrementDependence,
    /// INCREMENT_CWD_REF_COUNTER.
    IncrementCwdRefCounter,
    /// A number that no header names.
    Other(u8),
}

/// The effect of an action on the grids that run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The QMD runs. If it waits for another one (REQUIRE_SCHEDULING_PCAS, DEPENDENCE_COUNTER), it is only made ready.
    Schedules,
    /// A waiting QMD is released.
    Releases,
    /// Nothing runs.
    None,
}

impl PcasAction {
    /// Returns the action with a number in PCAS_ACTION.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        match number {
            0x0 => Self::Nop,
            0x1 => Self::Invalidate,
            0x2 => Self::Schedule,
            0x3 => Self::InvalidateCopySchedule,
            0x6 => Self::IncrementPut,
            0x7 => Self::DecrementDependence,
            0x8 => Self::Prefetch,
            0x9 => Self::PrefetchSchedule,
            0xa => Self::InvalidatePrefetchCopySchedule,
            0xb => Self::InvalidatePrefetchCopyForceRequireScheduling,
            0xc => Self::IncrementDependence,
            0xd => Self::IncrementCwdRefCounter,
            other => Self::Other(other as u8),
        }
    }

    /// Returns the effect on the grids that run (measured: docs/decoding.md, "What runs").
    #[must_use]
    pub fn effect(self) -> Effect {
        match self {
            Self::Schedule
            | Self::InvalidateCopySchedule
            | Self::PrefetchSchedule
            | Self::InvalidatePrefetchCopySchedule
            | Self::InvalidatePrefetchCopyForceRequireScheduling => Effect::Schedules,
            Self::DecrementDependence => Effect::Releases,
            Self::Nop
            | Self::Invalidate
            | Self::IncrementPut
            | Self::Prefetch
            | Self::IncrementDependence
            | Self::IncrementCwdRefCounter
            | Self::Other(_) => Effect::None,
        }
    }

    /// Returns the operation name of an action that is no launch: `pcas_` and the action in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nop => "pcas_nop",
            Self::Invalidate => "pcas_invalidate",
            Self::Schedule => "pcas_schedule",
            Self::InvalidateCopySchedule => "pcas_invalidate_copy_schedule",
            Self::IncrementPut => "pcas_increment_put",
            Self::DecrementDependence => "pcas_decrement_dependence",
            Self::Prefetch => "pcas_prefetch",
            Self::PrefetchSchedule => "pcas_prefetch_schedule",
            Self::InvalidatePrefetchCopySchedule => "pcas_invalidate_prefetch_copy_schedule",
            Self::InvalidatePrefetchCopyForceRequireScheduling => {
                "pcas_invalidate_prefetch_copy_force_require_scheduling"
            }
            Self::IncrementDependence => "pcas_increment_dependence",
            Self::IncrementCwdRefCounter => "pcas_increment_cwd_ref_counter",
            Self::Other(_) => "pcas_other",
        }
    }
}

impl fmt::Display for PcasAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other(n) => write!(f, "action {n:#x}"),
            named => f.write_str(named.name().trim_start_matches("pcas_")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::classes;

    #[test]
    fn actions_are_spelled_as_the_header_spells_them() {
        let method = classes::method(0xcbc0, 0x2c0).expect("SEND_SIGNALING_PCAS2_B");
        let field = method.field("PCAS_ACTION").expect("its field");
        for number in 0..16 {
            let action = PcasAction::from_number(number);
            match field.names().name_of(number) {
                Some(name) => assert_eq!(action.to_string(), name.to_ascii_lowercase()),
                None => assert_eq!(action, PcasAction::Other(number as u8)),
            }
        }
    }
}
