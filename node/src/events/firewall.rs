//! Notifications of nftables.

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use podwire_netns::{Message, attributes, messages};

use super::Notices;
use crate::{firewall, nft};

/// linux/netfilter/nfnetlink.h: NFNLGRP_NFTABLES.
const NFTABLES_GROUP: u32 = 7;
/// linux/netfilter/nfnetlink.h: NFNL_SUBSYS_NFTABLES.
const NFTABLES: u8 = 10;
/// linux/netfilter/nf_tables.h: NFT_MSG_NEWTABLE, NFT_MSG_NEWCHAIN, NFT_MSG_NEWRULE: what a comment
/// does not tell.
const WRITES_RULES: [u8; 3] = [0, 3, 6];
/// NFT_MSG_NEWGEN, NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME.
const NEW_GENERATION: u8 = 15;
const GENERATION_PID: u16 = 2;
const GENERATION_NAME: u16 = 3;
/// linux/netfilter/nfnetlink.h: `struct nfgenmsg`, before the attributes.
const NFGENMSG: usize = 4;
/// The attribute in which every object names its table.
const OBJECTS_TABLE: u16 = 1;

/// Notifications of changes to podwire's tables.
pub(super) struct FirewallNotices {
    notices: Notices,
    /// The netlink port of whoever has changed podwire's table since the last generation: in its
    /// process' PID namespace, its process id.
    port: Option<u32>,
    /// Whether a rule or a chain of the services' table was written.
    rules: bool,
}

impl FirewallNotices {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            notices: Notices::listen(NETLINK_NETFILTER, &[NFTABLES_GROUP])?,
            port: None,
            rules: false,
        })
    }

    /// Waits until somebody else's transaction has changed a table of podwire's, and returns whose
    /// it was, and whether it has written rules of services.
    pub(super) async fn next(&mut self) -> io::Result<(String, bool)> {
        loop {
            let Some(bytes) = self.notices.next().await? else {
                return Ok(("somebody".to_owned(), false));
            };
            if let Some(by) = self.read(&bytes) {
                return Ok(by);
            }
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Option<(String, bool)> {
        let mut by: Option<String> = None;
        let mut written = false;
        for message in messages(bytes) {
            let Message {
                kind, port, body, ..
            } = message;
            let [message_type, subsystem] = kind.to_le_bytes();
            if subsystem != NFTABLES {
                continue;
            }
            let attributes = || attributes(body.get(NFGENMSG..).unwrap_or_default());
            let text = |wanted: u16| {
                let value = attributes().find(|(kind, _)| *kind == wanted)?.1;
                let value = value.strip_suffix(&[0]).unwrap_or(value);
                Some(String::from_utf8_lossy(value).into_owned())
            };
            if message_type != NEW_GENERATION {
                let table = text(OBJECTS_TABLE).unwrap_or_default();
                if firewall::NAMES.iter().any(|it| is_named(&table, it)) {
                    self.port = Some(port);
                } else if is_named(&table, nft::SERVICES) {
                    self.port = Some(port);
                    self.rules |= WRITES_RULES.contains(&message_type);
                }
            } else if let Some(port) = self.port.take() {
                let rules = std::mem::take(&mut self.rules);
                if nft::was_ours(port) {
                    continue;
                }
                written |= rules;
                let pid = attributes().find(|(kind, _)| *kind == GENERATION_PID);
                let pid = pid.and_then(|(_, value)| value.try_into().ok());
                let pid = pid.map(u32::from_be_bytes);
                let name = text(GENERATION_NAME).unwrap_or_else(|| "somebody".to_owned());
                by = match pid {
                    Some(pid) => Some(format!("{name} (process {pid})")),
                    None => Some(name),
                };
            }
        }
        by.map(|by| (by, written))
    }
}

/// Whether a table has the name in this one's family and name.
fn is_named(table: &str, name: &str) -> bool {
    name.split_once(' ').is_some_and(|(_, name)| name == table)
}
