//! The user stack of the thread that rang, copied as bytes. Code is compiled without frame pointers, so that the user program
//! finds the frames, with the unwind tables of the mapped files.
//!
//! Without `--stacks` the loader sets `STACK_BYTES` to 0, and the verifier removes the call.

use aya_ebpf::{Global, helpers::bpf_get_prandom_u32};
use nvcap_common::{Header, MOST_STACK, Stack, kind};

use crate::{
    maps::{NO_WAKEUP, STACKS, count, discard, reserve_in, submit},
    read::read_user,
    walk,
};

/// Number of bytes of the stack that are taken; 0 for none. Set by the loader: a multiple of 4096, up to [`MOST_STACK`].
#[unsafe(no_mangle)]
static STACK_BYTES: Global<u32> = Global::new(0);

/// Greatest random number at which a doorbell's stack is taken. With the greatest possible number all stacks are taken. Set by
/// the loader.
#[unsafe(no_mangle)]
static STACK_UNTIL: Global<u32> = Global::new(u32::MAX);

const PAGE: u64 = 4096;
/// The most pages in which a stack lies.
const PAGES: u32 = MOST_STACK / PAGE as u32 + 1;

/// Tells whether stacks are taken.
#[inline(always)]
pub fn wanted() -> bool {
    STACK_BYTES.load() != 0
}

/// Tells whether the stack of this doorbell is taken. Chance decides which of so many doorbells it is: if they were counted off,
/// a program that submits in a fixed rhythm would show the same doorbells each time.
#[inline(always)]
pub fn is_drawn() -> bool {
    let until = STACK_UNTIL.load();
    // SAFETY: a helper without arguments.
    if until == u32::MAX || unsafe { bpf_get_prandom_u32() } <= until {
        return true;
    }
    count(|s| s.stacks_passed += 1);
    false
}

/// Takes the stack of the current thread, whose registers are in this processor's walk. It is a global function, so that the
/// verifier checks it once, separately.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn nvcap_stack() -> u32 {
    let bytes = STACK_BYTES.load();
    let Some(w) = walk::walk() else { return 0 };
    if bytes == 0 || bytes > MOST_STACK {
        return 0;
    }
    // One page more than is read into: the verifier does not see that place and length together stay within `bytes`.
    let p = reserve_in(&STACKS, size_of::<Stack>() + bytes as usize + PAGE as usize);
    if p.is_null() {
        count(|s| s.stacks_lost += 1);
        return 0;
    }
    // SAFETY: the stack's bytes follow the fixed part.
    let to = unsafe { p.add(size_of::<Stack>()) };
    let len = if read_user(to, bytes, w.sp) {
        bytes
    } else {
        by_page(to, bytes, w.sp)
    };
    if len == 0 {
        discard(p);
        return 0;
    }
    // SAFETY: p has room for a Stack.
    unsafe {
        p.cast::<Stack>().write(Stack {
            header: Header {
                kind: kind::STACK,
                flags: 0,
                len,
                ..w.header
            },
            ip: w.ip,
            sp: w.sp,
            fp: w.fp,
            lr: w.lr,
            space: w.space,
            wanted: bytes,
        });
    }
    submit(p, NO_WAKEUP);
    1
}

/// Reads up to the first page that cannot be read. Returns the number of bytes read.
#[inline(always)]
fn by_page(to: *mut u8, bytes: u32, from: u64) -> u32 {
    let bytes = u64::from(bytes);
    let mut done = 0u64;
    for _ in 0..PAGES {
        // Hidden from the compiler, which knows the bounds and would drop the checks that the verifier needs.
        let at = core::hint::black_box(done);
        if at >= bytes {
            break;
        }
        let address = from + at;
        let (room, left) = (PAGE - (address & (PAGE - 1)), bytes - at);
        let len = core::hint::black_box(if room < left { room } else { left });
        if len > PAGE {
            break;
        }
        // SAFETY: at < bytes, and a page more than `bytes` was reserved.
        if !read_user(unsafe { to.add(at as usize) }, len as u32, address) {
            return at as u32;
        }
        done = at + len;
    }
    done as u32
}
