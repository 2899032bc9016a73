//! The stand-in's escapes one by one, with the structures of its branch: valid ones are accepted, others refused.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result, bail, ensure};

use super::Outcome;
use crate::job::Job;

/// An open device file and a client on it.
struct Client {
    ctl: File,
    root: u32,
    branch: u32,
}

fn put(arg: &mut [u8], at: usize, value: u32) {
    arg[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(arg: &mut [u8], at: usize, value: u64) {
    arg[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(arg: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([arg[at], arg[at + 1], arg[at + 2], arg[at + 3]])
}

fn open(path: &str) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .with_context(|| path.to_string())
}

/// `_IOWR('F', nr, size)`; returns the error number if the call itself failed.
fn escape(file: &File, nr: u32, arg: &mut [u8]) -> Result<(), i32> {
    let request = 3 << 30 | (arg.len() as u32) << 16 | 0x4600 | nr;
    // SAFETY: the argument is as long as the request says.
    let rc = unsafe { libc::ioctl(file.as_raw_fd(), u64::from(request) as _, arg.as_mut_ptr()) };
    if rc == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl Client {
    fn new(branch: u32) -> Result<Client> {
        let ctl = open("/dev/nvidiactl")?;
        let mut arg = [0u8; 48];
        escape(&ctl, 0x2b, &mut arg)
            .map_err(|e| anyhow::anyhow!("allocating a client: errno {e}"))?;
        ensure!(
            get(&arg, 40) == 0,
            "allocating a client: status {:#x}",
            get(&arg, 40)
        );
        Ok(Client {
            ctl,
            root: get(&arg, 8),
            branch,
        })
    }

    /// Status of an allocation by NVOS64, or NVOS21 if `old`.
    fn alloc(
        &self,
        old: bool,
        parent: u32,
        new: u32,
        class: u32,
        params: &mut [u8],
    ) -> Result<u32> {
        let (len, status) = if old { (32, 28) } else { (48, 40) };
        let mut arg = vec![0u8; len];
        for (at, value) in [(0, self.root), (4, parent), (8, new), (12, class)] {
            put(&mut arg, at, value);
        }
        put64(&mut arg, 16, params.as_mut_ptr() as u64);
        escape(&self.ctl, 0x2b, &mut arg)
            .map_err(|e| anyhow::anyhow!("class {class:#x}: errno {e}"))?;
        Ok(get(&arg, status))
    }

    fn status(&self, nr: u32, arg: &mut [u8], at: usize) -> Result<u32> {
        escape(&self.ctl, nr, arg).map_err(|e| anyhow::anyhow!("escape {nr:#x}: errno {e}"))?;
        Ok(get(arg, at))
    }
}

/// All escapes.
pub fn escapes(job: &Job) -> Result<Outcome> {
    let c = Client::new(job.branch)?;
    let (device, subdevice, memory) = (0x5c00_0001, 0x5c00_0002, 0x5c00_0003);
    let mut params = [0u8; 56];
    ensure!(
        c.alloc(true, c.root, device, 0x80, &mut params)? == 0,
        "a device by NVOS21"
    );
    ensure!(
        c.alloc(false, device, subdevice, 0x2080, &mut [0; 4])? == 0,
        "a subdevice by NVOS64"
    );
    ensure!(
        c.alloc(false, device, subdevice, 0x2080, &mut [0; 4])? == 0x19,
        "a handle twice"
    );
    ensure!(
        c.alloc(false, 0x5c00_0099, 0x5c00_0098, 0x2080, &mut [0; 4])? == 0x36,
        "a parent that is not there"
    );
    ensure!(
        c.alloc(false, device, 0x5c00_0098, 0x1234, &mut [0; 4])? == 0x22,
        "a class that is not there"
    );
    let mut params = [0u8; 128];
    put64(&mut params, 64, 0x10000);
    ensure!(
        c.alloc(false, device, memory, 0x3e, &mut params)? == 0,
        "memory"
    );

    // Only this branch's own sizes are accepted.
    let dma = if c.branch >= 580 {
        (64, 48, 56)
    } else {
        (56, 40, 48)
    };
    let mut arg = vec![0u8; dma.0];
    for (at, value) in [(0, c.root), (4, device), (12, memory)] {
        put(&mut arg, at, value);
    }
    put64(&mut arg, 24, 0x10000);
    ensure!(
        c.status(0x57, &mut arg, dma.2)? == 0,
        "NV_ESC_RM_MAP_MEMORY_DMA"
    );
    ensure!(get(&arg, dma.1) != 0, "no GPU address at {}", dma.1);
    let mut other = vec![0u8; 120 - dma.0];
    ensure!(
        escape(&c.ctl, 0x57, &mut other) == Err(libc::EINVAL),
        "another branch's size was taken"
    );
    let len = if c.branch >= 550 { 48 } else { 40 };
    let mut unmap = vec![0u8; len];
    put(&mut unmap, 0, c.root);
    unmap[24..32].copy_from_slice(&arg[dma.1..dma.1 + 8]);
    ensure!(
        c.status(0x58, &mut unmap, len - 8)? == 0,
        "NV_ESC_RM_UNMAP_MEMORY_DMA"
    );

    duplicate(&c, device, memory)?;
    contexts(&c, device, memory)?;
    transfer(&c, device)?;
    let mut free = [0u8; 16];
    put(&mut free, 0, c.root);
    put(&mut free, 8, device);
    ensure!(c.status(0x29, &mut free, 12)? == 0, "NV_ESC_RM_FREE");
    ensure!(
        c.alloc(false, device, 0x5c00_0004, 0x2080, &mut [0; 4])? == 0x36,
        "the freed device is still there"
    );
    Ok(Outcome::Passed)
}

fn duplicate(c: &Client, device: u32, memory: u32) -> Result<()> {
    let mut arg = [0u8; 28];
    for (at, value) in [
        (0, c.root),
        (4, device),
        (8, 0x5c00_0010),
        (12, c.root),
        (16, memory),
    ] {
        put(&mut arg, at, value);
    }
    ensure!(c.status(0x34, &mut arg, 24)? == 0, "NV_ESC_RM_DUP_OBJECT");
    ensure!(
        c.status(0x34, &mut arg, 24)? == 0x19,
        "a duplicate's handle twice"
    );
    Ok(())
}

/// A mapping context waits on the file where it was left, one at a time, until mmap takes it.
fn contexts(c: &Client, device: u32, memory: u32) -> Result<()> {
    let file = open("/dev/nvidiactl")?;
    let map = |len: i64| {
        // SAFETY: a new mapping of no fixed address, given back at once below.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len as usize,
                libc::PROT_READ,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if at == libc::MAP_FAILED {
            return false;
        }
        // SAFETY: the mapping just made.
        unsafe { libc::munmap(at, len as usize) };
        true
    };
    ensure!(!map(0x1000), "a mapping without a context");
    let mut arg = [0u8; 56];
    for (at, value) in [
        (0, c.root),
        (4, device),
        (8, memory),
        (48, file.as_raw_fd() as u32),
    ] {
        put(&mut arg, at, value);
    }
    put64(&mut arg, 24, 0x10000);
    ensure!(c.status(0x4e, &mut arg, 40)? == 0, "NV_ESC_RM_MAP_MEMORY");
    ensure!(
        get(&arg, 32) != 0 || get(&arg, 36) != 0,
        "no physical address"
    );
    ensure!(
        c.status(0x4e, &mut arg, 40)? == 0x63,
        "a second context on one file"
    );
    ensure!(map(0x10000), "a mapping with its context");
    ensure!(!map(0x10000), "a context was taken twice");
    let gpu = open("/dev/nvidia0")?;
    put(&mut arg, 48, gpu.as_raw_fd() as u32);
    ensure!(
        c.status(0x4e, &mut arg, 40)? == 0x1f,
        "system memory on a GPU's file"
    );
    let mut unmap = [0u8; 32];
    put(&mut unmap, 0, c.root);
    put(&mut unmap, 8, memory);
    ensure!(
        c.status(0x4f, &mut unmap, 24)? == 0,
        "NV_ESC_RM_UNMAP_MEMORY"
    );
    Ok(())
}

/// NV_ESC_IOCTL_XFER_CMD carries another escape by pointer.
fn transfer(c: &Client, device: u32) -> Result<()> {
    let mut inner = [0u8; 32];
    let mut list = vec![0u8; 804];
    for (at, value) in [
        (0, c.root),
        (4, device),
        (8, 0x80_0292),
        (24, list.len() as u32),
    ] {
        put(&mut inner, at, value);
    }
    put64(&mut inner, 16, list.as_mut_ptr() as u64);
    let mut arg = [0u8; 16];
    put(&mut arg, 0, 0x2a);
    put(&mut arg, 4, inner.len() as u32);
    put64(&mut arg, 8, inner.as_mut_ptr() as u64);
    if let Err(e) = escape(&c.ctl, 0xd3, &mut arg) {
        bail!("NV_ESC_IOCTL_XFER_CMD: errno {e}");
    }
    ensure!(
        get(&inner, 28) == 0,
        "the control inside: status {:#x}",
        get(&inner, 28)
    );
    let count = get(&list, 0) as usize;
    let classes: Vec<u32> = (0..count).map(|i| get(&list, 4 + 4 * i)).collect();
    ensure!(
        classes.contains(&0xc86f) && classes.contains(&0xcbc0),
        "classes {classes:x?}"
    );
    Ok(())
}
