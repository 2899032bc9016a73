//! The processes that use a GPU, as the driver reports them (NV2080_CTRL_CMD_GPU_GET_PIDS). The driver also knows processes that nvcap may
//! not look into.
//!
//! The driver gives process numbers in the asking process's namespace, or in another one. An answer that does not list nvcap under its own
//! number is discarded. GPUs that nvcap may not open (those of other containers) are not asked about.

use std::{collections::BTreeSet, io, rc::Rc};

use crate::rm::{self, Client, Device, Error, Kernel, Os};
use nvcap_decode::driver::Version;

/// NV2080_CTRL_CMD_GPU_GET_PIDS (ctrl2080gpu.h).
const GET_PIDS: u32 = 0x2080_018d;
/// The most numbers that fit into the parameters (NV2080_CTRL_GPU_GET_PIDS_MAX_COUNT). A full table may be incomplete.
const MOST: usize = 950;
/// Size of the parameters before the numbers, bytes: the kind of question, a class, and the count of numbers.
const HEAD: usize = 12;
/// NV2080_CTRL_GPU_GET_PIDS_ID_TYPE_CLASS: asks for the processes that have an object of a class.
const OF_CLASS: u32 = 0;
/// NV20_SUBDEVICE_0: every process with an object of a GPU has an object of this class.
const SUBDEVICE: u32 = 0x2080;

/// Returns the processes that use a GPU of this machine; `None` if the driver does not tell.
pub(crate) fn ask() -> Option<BTreeSet<u32>> {
    match of_driver(Rc::new(Kernel), rm::running_version(), std::process::id()) {
        Ok(users) => users,
        Err(e) => {
            log::debug!("the driver does not tell who uses a GPU: {e}");
            None
        }
    }
}

/// Does as [`ask`], with this driver, for process `own`.
fn of_driver(
    os: Rc<dyn Os>,
    version: Option<Version>,
    own: u32,
) -> Result<Option<BTreeSet<u32>>, Error> {
    let client = Client::new(os, version)?;
    let mut all = BTreeSet::new();
    for card in client.cards()? {
        let device = match Device::open(&client, card, &[]) {
            Ok(device) => device,
            Err(Error::Open { error, .. }) if is_others(&error) => continue,
            Err(e) => return Err(e),
        };
        let mut parameters = vec![0; HEAD + 4 * MOST];
        parameters[0..4].copy_from_slice(&OF_CLASS.to_le_bytes());
        parameters[4..8].copy_from_slice(&SUBDEVICE.to_le_bytes());
        let what = "ask who uses the GPU";
        client.control_bytes(what, device.subdevice, GET_PIDS, &mut parameters)?;
        let words = parameters.chunks_exact(4).map(|word| {
            let word = word.try_into().unwrap_or_default();
            u32::from_le_bytes(word)
        });
        let mut words = words.skip(2);
        let count = words.next().unwrap_or(0) as usize;
        let users: BTreeSet<u32> = words.take(count).collect();
        if count >= MOST || !users.contains(&own) {
            let of = card.minor;
            log::debug!(
                "the driver tells of {count} users of GPU {of}, not of all in nvcap's namespace"
            );
            return Ok(None);
        }
        all.extend(users);
    }
    // nvcap is in the answer if any GPU was asked about.
    Ok((!all.is_empty()).then_some(all))
}

/// Tells whether a device file belongs to another container.
fn is_others(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rm::{Access, Mapping};
    use nvcap_decode::driver::layout;
    use std::os::fd::{BorrowedFd, OwnedFd};

    /// A driver with two GPUs that lists these processes; the second GPU's file is refused with this error, if any.
    struct Lists(Vec<u32>, Option<io::ErrorKind>);

    impl Os for Lists {
        fn open(&self, path: &str) -> io::Result<OwnedFd> {
            match self.1 {
                Some(refused) if path.ends_with("nvidia1") => Err(refused.into()),
                _ => Ok(std::fs::File::open("/dev/null")?.into()),
            }
        }

        fn ioctl(&self, _: BorrowedFd<'_>, request: u32, argument: &mut [u8]) -> io::Result<()> {
            match request as u8 {
                // NV_ESC_CARD_INFO.
                0xc8 => {
                    let card = layout("nv_ioctl_card_info_t", None, None).unwrap();
                    let at = |name| card.field(name).unwrap().offset;
                    for i in 0..2 {
                        argument[i * card.size() + at("valid")] = 1;
                        argument[i * card.size() + at("minor_number")] = i as u8;
                    }
                }
                // NV_ESC_RM_CONTROL.
                0x2a => {
                    let call = layout("NVOS54_PARAMETERS", None, None).unwrap();
                    let get = |name| {
                        let field = call.field(name).unwrap();
                        let bytes = argument[field.offset..][..field.size].iter().rev();
                        bytes.fold(0u64, |value, byte| value << 8 | u64::from(*byte))
                    };
                    if get("cmd") == u64::from(GET_PIDS) {
                        assert_eq!(get("paramsSize"), 3812);
                        let words = get("params") as *mut u32;
                        // SAFETY: the parameters of the caller, which lives on, with room for 950 numbers from word 3 on.
                        unsafe {
                            assert_eq!([*words, *words.add(1)], [0, 0x2080]);
                            *words.add(2) = self.0.len() as u32;
                            for (i, pid) in self.0.iter().take(MOST).enumerate() {
                                *words.add(3 + i) = *pid;
                            }
                        }
                    }
                }
                _ => {}
            }
            Ok(())
        }

        fn map(&self, _: BorrowedFd<'_>, _: usize, _: Access) -> io::Result<Mapping> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn users(pids: Vec<u32>, refused: Option<io::ErrorKind>) -> Option<BTreeSet<u32>> {
        of_driver(Rc::new(Lists(pids, refused)), None, 7)
            .ok()
            .flatten()
    }

    #[test]
    fn an_answer_is_one_if_it_has_nvcap_itself() {
        assert_eq!(users(vec![7, 12, 9], None), Some([7, 9, 12].into()));
        assert_eq!(users(vec![12, 9], None), None);
        assert_eq!(users(vec![], None), None);
    }

    #[test]
    fn a_full_table_may_not_be_all() {
        assert!(users((1..=949).collect(), None).is_some());
        assert_eq!(users((1..=950).collect(), None), None);
    }

    #[test]
    fn other_containers_gpus_are_left_out() {
        for refused in [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied] {
            assert_eq!(users(vec![7, 9], Some(refused)), Some([7, 9].into()));
        }
        assert_eq!(users(vec![7, 9], Some(io::ErrorKind::Interrupted)), None);
    }
}
