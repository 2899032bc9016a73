//! Semaphore operations that are waits.

use nvcap_decode::decode::event::SemaphoreAction;

/// Tells whether a semaphore operation makes its channel wait.
pub(crate) fn is_wait(action: SemaphoreAction) -> bool {
    match action {
        SemaphoreAction::AcquireEqual
        | SemaphoreAction::AcquireGreaterEqual
        | SemaphoreAction::AcquireAnd
        | SemaphoreAction::AcquireNor => true,
        SemaphoreAction::Release | SemaphoreAction::Reduction | SemaphoreAction::Other(_) => false,
    }
}
