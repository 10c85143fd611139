//! The address pools of plain mode: which attachment holds which address of the node's subnets.
//!
//! Pure and in memory. The caller records every allocation (in the port's external_ids); after a
//! restart it claims what is recorded and restores the cursor. Nothing else needs to survive. An
//! attachment gets one address of each family that has a subnet. Several subnets of a family are
//! used in order: the next one only while every address of the earlier ones is held.
//!
//! A released address is not handed out again while another is free, because peers' neighbour
//! caches, conntrack entries and endpoint lists still contain it. The search continues where the
//! last one ended (next-fit); if no other address is free, the one released longest ago is used.
//! The last [`RESTING_MAX`] releases are remembered exactly; an older one counts as free again.
//!
//! Ranges limit what is handed out by the search. A claim (a static address, or a record read back)
//! may name any address of the subnet that is not reserved: outside the ranges, operators place the
//! addresses that they choose by hand.
//!
//! Every operation is logarithmic in the number of addresses in use and linear in the number of
//! subnets; the size of a subnet does not matter. Sharing between tasks is up to the caller.

mod error;
mod intervals;
mod subnet_pool;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::family::bits;
use super::subnet::{SpecError, SubnetSpec};
use super::{Family, Owner};
pub use error::PoolError;
use subnet_pool::SubnetPool;

/// Number of released addresses per subnet that are kept in order of release. Bounds memory (about
/// 300 KB) where a large IPv6 subnet never wraps, and covers every address of a /20.
pub const RESTING_MAX: usize = 4096;

/// How many of them a [`Cursor`] preserves across a restart: what a node deletes within a minute or
/// two, in about 1 KB of text.
pub const RESTING_KEPT: usize = 64;

/// The node's pools.
#[derive(Debug, Clone, Default)]
pub struct Pools {
    subnets: Vec<SubnetPool>,
    held: BTreeMap<Arc<Owner>, Vec<IpAddr>>,
}

/// An address that was given to an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocated {
    /// The address, with the prefix length of its subnet.
    pub address: IpNet,
    /// The subnet's gateway.
    pub gateway: IpAddr,
}

/// The usage of a subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// The subnet.
    pub subnet: IpNet,
    /// Its gateway.
    pub gateway: IpAddr,
    /// Number of addresses for pods in its ranges.
    pub capacity: u128,
    /// Number of those that are held.
    pub used: u128,
    /// Number of held addresses outside the ranges: static ones.
    pub claimed_beside_ranges: u128,
}

/// A subnet's search position and latest releases, which the caller preserves across a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cursor {
    /// The subnet.
    pub subnet: IpNet,
    /// The address at which the next search begins; absent before the first search and beyond the
    /// subnet's last address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<IpAddr>,
    /// The latest releases, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resting: Vec<IpAddr>,
}

impl Pools {
    /// Pools of these subnets, all free.
    ///
    /// # Errors
    /// [`SpecError::SubnetsOverlap`].
    pub fn new(subnets: Vec<SubnetSpec>) -> Result<Self, SpecError> {
        let mut sorted: Vec<IpNet> = subnets.iter().map(SubnetSpec::subnet).collect();
        sorted.sort_unstable_by_key(|net| (Family::of(net.addr()), bits(net.addr())));
        if let Some(pair) = sorted
            .windows(2)
            .find(|pair| pair[0].contains(&pair[1]) || pair[1].contains(&pair[0]))
        {
            return Err(SpecError::SubnetsOverlap {
                first: pair[0],
                second: pair[1],
            });
        }
        Ok(Self {
            subnets: subnets.into_iter().map(SubnetPool::new).collect(),
            held: BTreeMap::new(),
        })
    }

    /// The same holders and resting addresses in other subnets, as far as those contain them.
    pub fn with_subnets(&self, subnets: Vec<SubnetSpec>) -> Result<Self, SpecError> {
        let mut pools = Self::new(subnets)?;
        for (owner, addresses) in self.holders() {
            for address in addresses {
                // In no subnet, or no longer for pods: its owner keeps it nevertheless, and nobody
                // else gets it.
                let _ = pools.claim(*address, owner);
            }
        }
        pools.restore_cursor(&self.cursor());
        Ok(pools)
    }

    /// The families that have a subnet, IPv4 first.
    pub fn families(&self) -> Vec<Family> {
        [Family::V4, Family::V6]
            .into_iter()
            .filter(|family| self.of_family(*family).next().is_some())
            .collect()
    }

    /// Allocates one address of each family that has a subnet, or none.
    ///
    /// # Errors
    /// [`PoolError::NoSubnet`] and [`PoolError::Exhausted`].
    pub fn allocate(&mut self, owner: &Owner) -> Result<Vec<Allocated>, PoolError> {
        let families = self.families();
        if families.is_empty() {
            return Err(PoolError::NoSubnet {
                owner: owner.clone(),
            });
        }
        let candidates: Vec<_> = families
            .into_iter()
            .map(|family| self.candidate(family, owner))
            .collect::<Result<_, _>>()?;
        Ok(candidates
            .into_iter()
            .map(|candidate| self.hand_out(candidate, owner))
            .collect())
    }

    /// Allocates this address: a static one, or a record read back after a restart. `owner` may
    /// already hold it.
    ///
    /// # Errors
    /// [`PoolError::Taken`], [`PoolError::OutsideSubnets`], [`PoolError::Reserved`].
    pub fn claim(&mut self, address: IpAddr, owner: &Owner) -> Result<Allocated, PoolError> {
        let Some(index) = self.subnet_of(address) else {
            let subnets = self.subnets.iter().map(|pool| pool.spec.subnet()).collect();
            return Err(PoolError::OutsideSubnets { address, subnets });
        };
        let pool = &mut self.subnets[index];
        let allocated = allocated(&pool.spec, address);
        if let Some(reserved) = pool.spec.reserved(address) {
            return Err(PoolError::Reserved {
                address,
                subnet: pool.spec.subnet(),
                reserved,
            });
        }
        match pool.holder(bits(address)) {
            Some(holder) if **holder == *owner => return Ok(allocated),
            Some(holder) => {
                return Err(PoolError::Taken {
                    address,
                    holder: Owner::clone(holder),
                });
            }
            None => {}
        }
        let owner = Arc::new(owner.clone());
        pool.hold(bits(address), Arc::clone(&owner));
        self.held.entry(owner).or_default().push(address);
        Ok(allocated)
    }

    /// Releases `address` of `owner`. False if nobody held it: a DEL may come twice.
    ///
    /// # Errors
    /// [`PoolError::Taken`]: another attachment holds it, and keeps it.
    pub fn release(&mut self, address: IpAddr, owner: &Owner) -> Result<bool, PoolError> {
        match self.owner_of(address) {
            None => Ok(false),
            Some(holder) if holder != owner => Err(PoolError::Taken {
                address,
                holder: holder.clone(),
            }),
            Some(_) => {
                if let Some(addresses) = self.held.get_mut(owner) {
                    addresses.retain(|held| *held != address);
                    if addresses.is_empty() {
                        self.held.remove(owner);
                    }
                }
                self.take_back(address);
                Ok(true)
            }
        }
    }

    /// Releases all addresses of `owner`, and returns them.
    pub fn release_all(&mut self, owner: &Owner) -> Vec<IpAddr> {
        let addresses = self.held.remove(owner).unwrap_or_default();
        for address in &addresses {
            self.take_back(*address);
        }
        addresses
    }

    /// The holder of `address`.
    pub fn owner_of(&self, address: IpAddr) -> Option<&Owner> {
        let pool = &self.subnets[self.subnet_of(address)?];
        pool.holder(bits(address)).map(Arc::as_ref)
    }

    /// The addresses of `owner`, in order of allocation.
    pub fn addresses_of(&self, owner: &Owner) -> &[IpAddr] {
        self.held.get(owner).map_or(&[], Vec::as_slice)
    }

    /// Every owner with its addresses.
    pub fn holders(&self) -> impl Iterator<Item = (&Owner, &[IpAddr])> {
        self.held
            .iter()
            .map(|(owner, addresses)| (owner.as_ref(), addresses.as_slice()))
    }

    /// The usage of each subnet, in the order given.
    pub fn usage(&self) -> Vec<Usage> {
        self.subnets.iter().map(SubnetPool::usage).collect()
    }

    /// What to preserve across a restart so that released addresses keep resting.
    pub fn cursor(&self) -> Vec<Cursor> {
        self.subnets.iter().map(SubnetPool::cursor).collect()
    }

    /// Continues from an earlier run's cursor, before or after its records are claimed. What no
    /// longer fits (a removed subnet, an address now held or excluded) is skipped: the cursor
    /// spares caches, and is no record.
    pub fn restore_cursor(&mut self, cursors: &[Cursor]) {
        for cursor in cursors {
            for pool in self
                .subnets
                .iter_mut()
                .filter(|pool| pool.spec.subnet() == cursor.subnet)
            {
                pool.restore(cursor);
            }
        }
    }

    fn candidate(&self, family: Family, owner: &Owner) -> Result<Candidate, PoolError> {
        let mut subnets = Vec::new();
        for (index, pool) in self.of_family(family) {
            if let Some(number) = pool.candidate() {
                return Ok(Candidate { index, number });
            }
            subnets.push(pool.usage());
        }
        Err(PoolError::Exhausted {
            family,
            owner: owner.clone(),
            subnets,
        })
    }

    fn hand_out(&mut self, candidate: Candidate, owner: &Owner) -> Allocated {
        let pool = &mut self.subnets[candidate.index];
        let owner = Arc::new(owner.clone());
        pool.hand_out(candidate.number, Arc::clone(&owner));
        let allocated = allocated(&pool.spec, pool.spec.family().address(candidate.number));
        self.held
            .entry(owner)
            .or_default()
            .push(allocated.address.addr());
        allocated
    }

    fn take_back(&mut self, address: IpAddr) {
        if let Some(index) = self.subnet_of(address) {
            self.subnets[index].take_back(bits(address));
        }
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = (usize, &SubnetPool)> {
        self.subnets
            .iter()
            .enumerate()
            .filter(move |(_, pool)| pool.spec.family() == family)
    }

    fn subnet_of(&self, address: IpAddr) -> Option<usize> {
        self.subnets
            .iter()
            .position(|pool| pool.spec.subnet().contains(&address))
    }
}

/// A free address: its subnet's index and its number.
struct Candidate {
    index: usize,
    number: u128,
}

fn allocated(spec: &SubnetSpec, address: IpAddr) -> Allocated {
    let address = IpNet::new(address, spec.subnet().prefix_len())
        .expect("the address is of the subnet's family, so the subnet's prefix length fits it");
    Allocated {
        address,
        gateway: spec.gateway(),
    }
}

/// `10.186.0.0/22: 1021 of 1021 in use`.
impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} of {} in use",
            self.subnet, self.used, self.capacity
        )
    }
}

#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;
