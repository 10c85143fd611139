//! Generic netlink, only to find out whether the kernel has a family.

use netlink_sys::protocols::NETLINK_GENERIC;
use nix::errno::Errno;
use nix::libc;

use super::socket::Netlink;
use super::wire::{Batch, put};
use super::{Error, Refusal};

/// Whether a generic netlink family exists. The request loads the module that provides it, if there
/// is one (`ctrl_getfamily`, request_module "net-pf-16-proto-16-family-…").
pub(super) fn has_family(name: &str) -> Result<bool, Error> {
    // struct genlmsghdr: command, version, two reserved bytes.
    let mut body = vec![libc::CTRL_CMD_GETFAMILY as u8, 1, 0, 0];
    put(
        &mut body,
        libc::CTRL_ATTR_FAMILY_NAME as u16,
        format!("{name}\0").as_bytes(),
    );
    let mut batch = Batch::default();
    batch.push_raw(libc::GENL_ID_CTRL as u16, 0, &body);
    let outcome = Netlink::open(NETLINK_GENERIC)
        .map_err(Refusal::from)
        .and_then(|mut socket| socket.apply(&mut batch).into_iter().collect());
    match outcome {
        Ok(()) => Ok(true),
        Err(refusal) if refusal.errno == Errno::ENOENT => Ok(false),
        Err(refusal) => Err(Error::Read {
            what: format!("generic netlink family {name}"),
            refusal,
        }),
    }
}
