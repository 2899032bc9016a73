//! A call of the driver through a file: an ioctl, and the status in its argument. Control calls name the client for which they are made.

use std::io;
use std::os::fd::BorrowedFd;

use super::{Error, Os, Structure};
use nvcap_decode::driver::Version;

/// NV_ESC_RM_CONTROL (nv_escape.h).
const CONTROL: u8 = 0x2a;

/// The type of the driver's ioctls (NV_IOCTL_MAGIC).
const MAGIC: u32 = b'F' as u32;

/// NV0000_CTRL_CMD_CLIENT_GET_HANDLE_INFO (ctrl0000client.h); its parameters have 16 bytes in all releases.
const GET_HANDLE_INFO: u32 = 0xd02;

/// Kind of question about an object: an index of GET_HANDLE_INFO.
#[derive(Clone, Copy, Debug)]
pub(super) enum About {
    Parent = 1,
    Class = 2,
}

/// NV01_ROOT, NV01_ROOT_NON_PRIV, NV01_ROOT_CLIENT: the classes of a client itself.
const ROOTS: [u32; 3] = [0, 1, 0x41];

/// Makes an ioctl of the driver's.
pub(super) fn call(
    what: &str,
    os: &dyn Os,
    file: BorrowedFd<'_>,
    number: u8,
    argument: &mut [u8],
) -> Result<(), Error> {
    // _IOWR('F', number, argument): both directions, 14 bits of size.
    let request = 3 << 30 | (argument.len() as u32) << 16 | MAGIC << 8 | u32::from(number);
    let result = os.ioctl(file, request, argument);
    result.map_err(|error| system(what, error))
}

/// Makes a control call of an object of a client, through a file.
pub(super) fn control(
    what: &str,
    os: &dyn Os,
    version: Option<Version>,
    file: BorrowedFd<'_>,
    (client, object): (u32, u32),
    (command, parameters): (u32, &mut [u8]),
) -> Result<(), Error> {
    let pointer = match parameters.is_empty() {
        true => 0,
        false => parameters.as_mut_ptr() as u64,
    };
    let fields = [
        ("hClient", client.into()),
        ("hObject", object.into()),
        ("cmd", command.into()),
        ("params", pointer),
        ("paramsSize", parameters.len() as u64),
    ];
    let mut argument = Structure::of("NVOS54_PARAMETERS", version, &fields)?;
    call(what, os, file, CONTROL, argument.bytes_mut())?;
    succeeded(what, &argument)
}

/// Returns the class or the parent of an object of a client; `None` if the driver refuses.
pub(super) fn info(
    os: &dyn Os,
    version: Option<Version>,
    file: BorrowedFd<'_>,
    (client, object): (u32, u32),
    about: About,
) -> Option<u32> {
    let mut parameters = [0; 16];
    parameters[..4].copy_from_slice(&object.to_le_bytes());
    parameters[4..8].copy_from_slice(&(about as u32).to_le_bytes());
    let command = (GET_HANDLE_INFO, &mut parameters[..]);
    let what = "ask what an object is";
    control(what, os, version, file, (client, client), command).ok()?;
    let [_, _, _, _, _, _, _, _, a, b, c, d, ..] = parameters;
    Some(u32::from_le_bytes([a, b, c, d]))
}

/// Tells whether the driver accepts calls on behalf of a client through a file.
pub(super) fn is_client(
    os: &dyn Os,
    version: Option<Version>,
    file: BorrowedFd<'_>,
    client: u32,
) -> bool {
    let class = info(os, version, file, (client, client), About::Class);
    class.is_some_and(|class| ROOTS.contains(&class))
}

pub(super) fn system(what: &str, error: io::Error) -> Error {
    Error::System {
        what: what.to_owned(),
        error,
    }
}

/// Checks the status that the driver left in a call's argument.
pub(super) fn succeeded(what: &str, call: &Structure) -> Result<(), Error> {
    match call.get("status")? as u32 {
        0 => Ok(()),
        status => Err(Error::Status {
            what: what.to_owned(),
            status,
        }),
    }
}
