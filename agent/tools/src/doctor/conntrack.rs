//! The size of the kernel's connection tracking table.
//!
//! Whenever a pod comes or goes, ovn-controller has ovs-vswitchd flush a zone, and for that
//! ovs-vswitchd lists the whole table (`nl_ct_flush_zone`), whose buckets the kernel walks one by
//! one, used or not. docs/scale.md has the costs.

use std::fs;

use super::{Finding, Kind};

/// What the kernel chooses on a machine with more than 4 GB, for the buckets and for the
/// connections (nf_conntrack_init_start, Linux 5.15 and later). Another number has been chosen by
/// somebody, who may expect more connections than there are now.
const KERNELS_CHOICE: usize = 262_144;

/// Fewer buckets save nothing worth a note.
const FEWEST: usize = 16_384;
/// With more buckets too little is saved.
const MOST: usize = 65_536;

/// There may be so many times the present connections at a busier time. With this number the
/// average bucket of the smaller table has half an entry now: each connection has two.
const BUCKETS_PER_CONNECTION: usize = 4;

/// The kernel's table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Table {
    buckets: usize,
    /// The largest number of connections.
    limit: usize,
    /// The present number of connections.
    connections: usize,
}

impl Table {
    /// The table of this machine, or None where there is none that can be changed, as in a network
    /// namespace other than the machine's own.
    pub(super) fn read() -> Option<Self> {
        let file = |name: &str| format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
        let number = |name: &str| -> Option<usize> {
            let text = fs::read_to_string(file(name)).ok()?;
            text.trim().parse().ok()
        };
        // All other namespaces see it read-only.
        if fs::metadata(file("buckets")).ok()?.permissions().readonly() {
            return None;
        }
        Some(Self {
            buckets: number("buckets")?,
            limit: number("max")?,
            // nf_conntrack_count knows those of one network namespace only, and all share the
            // table.
            connections: in_use(&fs::read_to_string("/proc/slabinfo").ok()?, "nf_conntrack")?,
        })
    }

    /// A number of buckets that saves much and leaves room for more connections than there are.
    fn proposal(self) -> Option<usize> {
        let wanted = self.connections.saturating_mul(BUCKETS_PER_CONNECTION);
        let buckets = wanted.max(FEWEST).checked_next_power_of_two()?;
        let is_untouched = (self.buckets, self.limit) == (KERNELS_CHOICE, KERNELS_CHOICE);
        (is_untouched && buckets <= MOST).then_some(buckets)
    }

    /// Proposes a smaller table where that helps.
    pub(super) fn examine(self) -> Option<Finding> {
        let buckets = self.proposal()?;
        let what = format!(
            "the kernel's connection tracking table has {} buckets, for {} connections now. \
             Whenever a pod comes or goes, ovs-vswitchd goes through all of them. If there are \
             never many more connections, a smaller table makes ADDs faster (docs/scale.md)",
            self.buckets, self.connections
        );
        let command = format!("sysctl -w net.netfilter.nf_conntrack_buckets={buckets}");
        Some(Finding::note(Kind::ConntrackBuckets, what).fix(command))
    }
}

/// The number of objects of a cache that are in use (slabinfo(5)).
fn in_use(slabinfo: &str, cache: &str) -> Option<usize> {
    let mut lines = slabinfo.lines().map(str::split_whitespace);
    let mut line = lines.find_map(|mut it| (it.next()? == cache).then_some(it))?;
    line.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_proposed_that_is_large_enough_for_four_times_the_connections() {
        let proposal = |buckets, limit, connections| {
            let table = Table {
                buckets,
                limit,
                connections,
            };
            table.proposal()
        };
        let untouched = |connections| proposal(262_144, 262_144, connections);
        assert_eq!(untouched(0), Some(16_384));
        assert_eq!(untouched(4_096), Some(16_384));
        assert_eq!(untouched(4_097), Some(32_768));
        assert_eq!(untouched(16_384), Some(65_536));
        assert_eq!(untouched(16_385), None);
        assert_eq!(untouched(usize::MAX), None);
        // Somebody has chosen the buckets, or the number of connections.
        assert_eq!(proposal(524_288, 524_288, 0), None);
        assert_eq!(proposal(65_536, 65_536, 0), None);
        assert_eq!(proposal(262_144, 1_048_576, 0), None);
    }

    #[test]
    fn a_caches_objects_are_found_by_its_whole_name() {
        let slabinfo = "slabinfo - version: 2.1\n\
                        # name            <active_objs> <num_objs> <objsize>\n\
                        nf_conntrack_expect      5      7    208\n\
                        nf_conntrack         128    192    256   16    1 : tunables    0\n";
        assert_eq!(in_use(slabinfo, "nf_conntrack"), Some(128));
        assert_eq!(in_use(slabinfo, "nf"), None);
    }
}
