//! Choice of the live source: the trap where it is possible, else observing.

use std::time::Duration;

use super::{
    observe::session as observe,
    run::{Source, Target},
    trap::{live, load, precheck, session as trap},
};
use nvcap_decode::ledger::Observed;
use nvcap_decode::record::{ChannelId, CpuVa, Record};
use nvcap_decode::wire::GpuVa;
use nvcap_process::error::Result;

/// Value of `--how`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// The trap where it may be used, else observing.
    #[default]
    Auto,
    /// The trap alone.
    Trap,
    /// Observing alone.
    Observe,
}

/// Options of a live trace, for both sources.
#[derive(Clone, Debug)]
pub struct LiveOptions {
    /// Choice of the source.
    pub how: How,
    /// Options of the trap.
    pub trap: trap::TrapOptions,
    /// Options of observing.
    pub observe: observe::ObserveOptions,
}

/// A live source of either kind.
pub enum LiveSource {
    /// The trap: breakpoints and BPF programs.
    Trap(Box<live::Trap>),
    /// Observing: polling.
    Observe(Box<observe::Session>),
}

/// Report of a source at its end.
#[derive(Debug)]
pub enum End {
    /// Report of the trap.
    Trap(live::End),
    /// Report of observing.
    Observe(Observed),
}

/// Returns the reason why the trap cannot be used here, as far as it is known without trying; `None` where no reason is
/// known.
pub fn trap_refused() -> Option<String> {
    if load::OBJECT.is_empty() {
        return Some("this nvcap was built without its BPF programs".into());
    }
    precheck::rights().err().map(|e| e.reason().to_owned())
}

/// Returns the reason why [`How::Auto`] observes here; `None` where it takes the trap.
pub fn auto_observes() -> Option<String> {
    trap_refused().or_else(|| (!precheck::has_driver()).then(|| precheck::NO_DRIVER.to_owned()))
}

/// Looks for mistakes that would make a trace fail, and chooses the source to begin with. `Some`: the reason why it is
/// not the trap.
///
/// # Errors
/// The first mistake found, with its remedy.
pub fn choose(options: &LiveOptions, target: &Target) -> Result<(How, Option<String>)> {
    let refused = match options.how {
        How::Auto if options.trap.named.is_empty() => auto_observes(),
        How::Auto => trap_refused(),
        How::Trap | How::Observe => None,
    };
    if options.how == How::Observe || refused.is_some() {
        observe::check(target)?;
        options.observe.named.check_observed()?;
        return Ok((How::Observe, refused));
    }
    precheck::check(target, !options.trap.named.is_empty())?;
    Ok((options.how, None))
}

/// Makes the chosen source. With [`How::Auto`] the trap is tried; where it fails, observing is used, and `instead` gets
/// the reason.
///
/// # Errors
/// When the trap was asked for and cannot be used.
pub fn make(chosen: How, options: LiveOptions, instead: impl FnOnce(&str)) -> Result<LiveSource> {
    let observe =
        |o: observe::ObserveOptions| LiveSource::Observe(Box::new(observe::Session::new(o)));
    if chosen == How::Observe {
        return Ok(observe(options.observe));
    }
    match live::Trap::new(options.trap) {
        Ok(trap) => Ok(LiveSource::Trap(Box::new(trap))),
        Err(e) if chosen == How::Auto => {
            instead(&e.to_string());
            options.observe.named.check_observed()?;
            Ok(observe(options.observe))
        }
        Err(e) => Err(e),
    }
}

impl Source for LiveSource {
    type End = End;

    fn shown_by(&mut self, thread: i32) {
        match self {
            Self::Trap(s) => s.shown_by(thread),
            Self::Observe(s) => s.shown_by(thread),
        }
    }

    fn expect(&mut self, pid: u32) -> Result<()> {
        match self {
            Self::Trap(s) => s.expect(pid),
            Self::Observe(s) => s.expect(pid),
        }
    }

    fn attach(&mut self, pid: u32) -> Result<()> {
        match self {
            Self::Trap(s) => s.attach(pid),
            Self::Observe(s) => s.attach(pid),
        }
    }

    fn take_on(&mut self, pid: u32, was_there: bool) -> Result<()> {
        match self {
            Self::Trap(s) => s.take_on(pid, was_there),
            Self::Observe(s) => s.take_on(pid, was_there),
        }
    }

    fn step(&mut self, wait: Duration, to: &mut Vec<Record>) -> Result<()> {
        match self {
            Self::Trap(s) => s.step(wait, to),
            Self::Observe(s) => s.step(wait, to),
        }
    }

    fn locate(&self, channel: ChannelId, at: GpuVa) -> Option<CpuVa> {
        match self {
            Self::Trap(s) => s.locate(channel, at),
            Self::Observe(s) => s.locate(channel, at),
        }
    }

    fn batch_time(&self) -> Duration {
        match self {
            Self::Trap(s) => s.batch_time(),
            Self::Observe(s) => s.batch_time(),
        }
    }

    fn most_waiting(&self) -> usize {
        match self {
            Self::Trap(s) => s.most_waiting(),
            Self::Observe(s) => s.most_waiting(),
        }
    }

    fn longest_wait(&self) -> Duration {
        match self {
            Self::Trap(s) => s.longest_wait(),
            Self::Observe(s) => s.longest_wait(),
        }
    }

    fn is_pending(&self) -> bool {
        match self {
            Self::Trap(s) => s.is_pending(),
            Self::Observe(s) => s.is_pending(),
        }
    }

    fn is_alive(&self) -> bool {
        match self {
            Self::Trap(s) => s.is_alive(),
            Self::Observe(s) => s.is_alive(),
        }
    }

    fn is_ending(&self) -> bool {
        match self {
            Self::Trap(s) => s.is_ending(),
            Self::Observe(s) => s.is_ending(),
        }
    }

    fn let_end(&mut self) {
        match self {
            Self::Trap(s) => s.let_end(),
            Self::Observe(s) => s.let_end(),
        }
    }

    fn finish(self, to: &mut Vec<Record>) -> End {
        match self {
            Self::Trap(s) => End::Trap(s.finish(to)),
            Self::Observe(s) => End::Observe(s.finish(to)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::QUEUE;

    /// The choice answers as the chosen source itself does, also where that answer is unusual.
    #[test]
    fn what_may_wait_is_the_chosen_source_s_to_say() {
        for (cpu, most) in [(None, QUEUE), (Some(0.1), observe::WAITING_IN_BUDGET)] {
            let options = || observe::ObserveOptions {
                cpu,
                ..observe::ObserveOptions::default()
            };
            let itself = observe::Session::new(options());
            let chosen = LiveSource::Observe(Box::new(observe::Session::new(options())));
            assert_eq!(itself.most_waiting(), most);
            assert_eq!(chosen.most_waiting(), most);
            assert_eq!(chosen.batch_time(), itself.batch_time());
        }
    }
}
