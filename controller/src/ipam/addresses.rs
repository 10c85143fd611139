use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::nth;

/// How long a freed address rests: for what may still be on its way to the pod that had it.
const REST: Duration = Duration::from_secs(30);

/// The places in a subnet that are not for pods: its own, its router's, its node's.
const RESERVED: u32 = 3;
/// The most places that are used of a subnet: more pods than any node runs.
const PLACES: u32 = 1 << 16;

/// Names a pod: namespace and name.
type PodName = (String, String);

/// Why a pod has no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// Its node has no subnet yet.
    #[error("node {0} has no subnet yet")]
    NoSubnet(String),
    /// All are in use.
    #[error(
        "no address is left in {subnet}: remove pods from node {node}, or give nodes larger subnets"
    )]
    Full {
        /// The subnet.
        subnet: IpNet,
        /// The node.
        node: String,
    },
    /// All that are not in use were freed moments ago.
    #[error("all addresses of {subnet} that are free were another pod's until a moment ago")]
    Resting {
        /// The subnet.
        subnet: IpNet,
        /// When the first may be given again.
        until: Instant,
    },
}

/// The addresses of all pods.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pools: BTreeMap<String, Vec<Pool>>,
    pods: HashMap<PodName, Claim>,
}

#[derive(Clone, Debug)]
struct Claim {
    uid: String,
    node: String,
    addresses: Vec<IpNet>,
}

/// One subnet.
#[derive(Clone, Debug)]
struct Pool {
    subnet: IpNet,
    used: BTreeSet<u32>,
    /// In the order in which they may be given again.
    resting: VecDeque<(Instant, u32)>,
    /// Where the search begins: addresses are given in turn.
    next: u32,
}

impl Addresses {
    /// Sets a node's subnets; no subnet removes it. Where they change, which is then true, the
    /// node's pods have no address any more.
    pub fn set_node(&mut self, node: &str, subnets: &[IpNet]) -> bool {
        let known = self.pools.get(node).map(Vec::as_slice).unwrap_or_default();
        if known
            .iter()
            .map(|pool| pool.subnet)
            .eq(subnets.iter().copied())
        {
            return false;
        }
        self.pools.remove(node);
        if !subnets.is_empty() {
            let pools = subnets.iter().copied().map(Pool::new).collect();
            self.pools.insert(node.to_owned(), pools);
        }
        self.pods.retain(|_, claim| claim.node != node);
        true
    }

    /// A pod's addresses, one of each family of its node's subnets: those that it has, else those
    /// that it `had` where nobody else has them, else free ones.
    ///
    /// # Errors
    /// See [`AddressError`]; nothing is claimed then.
    pub fn claim(
        &mut self,
        pod: &PodName,
        (uid, node): (&str, &str),
        had: &[IpNet],
        now: Instant,
    ) -> Result<&[IpNet], AddressError> {
        let is_its = |claim: &Claim| claim.uid == uid && claim.node == node;
        if !self.pods.get(pod).is_some_and(is_its) {
            self.release(pod, now);
            let pools = self
                .pools
                .get_mut(node)
                .ok_or_else(|| AddressError::NoSubnet(node.to_owned()))?;
            let places = pools
                .iter_mut()
                .map(|pool| {
                    let had = had.iter().find_map(|address| pool.place(*address));
                    let had = had.filter(|place| !pool.used.contains(place));
                    had.map_or_else(|| pool.find(node, now), Ok)
                })
                .collect::<Result<Vec<_>, _>>()?;
            let addresses = pools.iter_mut().zip(places).map(|(pool, place)| {
                pool.take(place);
                nth(pool.subnet, place)
            });
            let claim = Claim {
                uid: uid.to_owned(),
                node: node.to_owned(),
                addresses: addresses.collect(),
            };
            self.pods.insert(pod.clone(), claim);
        }
        Ok(self.of(pod))
    }

    /// A pod's addresses; none when it has no claim.
    pub fn of(&self, pod: &PodName) -> &[IpNet] {
        self.pods.get(pod).map_or(&[], |claim| &claim.addresses)
    }

    /// Frees a pod's addresses, to be given again after a rest of 30 s.
    pub fn release(&mut self, pod: &PodName, now: Instant) {
        let Some(claim) = self.pods.remove(pod) else {
            return;
        };
        for pool in self.pools.get_mut(&claim.node).into_iter().flatten() {
            let place = claim.addresses.iter().find_map(|it| pool.place(*it));
            if let Some(place) = place.filter(|place| pool.used.remove(place)) {
                pool.resting.push_back((now + REST, place));
            }
        }
    }
}

impl Pool {
    fn new(subnet: IpNet) -> Self {
        Self {
            subnet,
            used: BTreeSet::new(),
            resting: VecDeque::new(),
            next: RESERVED,
        }
    }

    /// How many places there are, the broadcast address not counted.
    fn end(&self) -> u32 {
        let bits = self.subnet.max_prefix_len() - self.subnet.prefix_len();
        let all = 1_u32.checked_shl(bits.into()).unwrap_or(PLACES).min(PLACES);
        match self.subnet {
            IpNet::V4(_) => all - 1,
            IpNet::V6(_) => all,
        }
    }

    /// The place of an address that a pod of this subnet can have.
    fn place(&self, address: IpNet) -> Option<u32> {
        let place = match (self.subnet, address) {
            (IpNet::V4(subnet), IpNet::V4(address)) => {
                u32::from(address.addr()).checked_sub(subnet.network().into())?
            }
            (IpNet::V6(subnet), IpNet::V6(address)) => {
                let place = u128::from(address.addr()).checked_sub(subnet.network().into())?;
                place.try_into().ok()?
            }
            _ => return None,
        };
        (RESERVED..self.end()).contains(&place).then_some(place)
    }

    fn find(&mut self, node: &str, now: Instant) -> Result<u32, AddressError> {
        while let Some((_, _)) = self.resting.pop_front_if(|(until, _)| *until <= now) {}
        let resting: BTreeSet<u32> = self.resting.iter().map(|(_, place)| *place).collect();
        let is_free = |place: &u32| !self.used.contains(place) && !resting.contains(place);
        let found = (self.next..self.end())
            .chain(RESERVED..self.next)
            .find(is_free);
        found.ok_or_else(|| match self.resting.front() {
            Some(&(until, _)) => AddressError::Resting {
                subnet: self.subnet,
                until,
            },
            None => AddressError::Full {
                subnet: self.subnet,
                node: node.to_owned(),
            },
        })
    }

    fn take(&mut self, place: u32) {
        self.used.insert(place);
        self.resting.retain(|(_, resting)| *resting != place);
        self.next = place + 1;
    }
}
