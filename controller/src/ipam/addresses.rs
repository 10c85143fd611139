use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::{Mac, mac, nth};
use crate::cluster::{WISHED_ADDRESSES, WISHED_MAC};

/// How long a freed address rests: for what may still be on its way to the pod that had it.
const REST: Duration = Duration::from_secs(30);

/// The places in a subnet that are not for pods: its own, its router's, its node's.
const RESERVED: u32 = 3;
/// The most places that are used of a subnet: more pods than any node runs.
const PLACES: u32 = 1 << 16;

/// Names a pod: namespace and name.
type PodName = (String, String);

/// What a pod has got: an address of each family of its node's subnets, with the prefix length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The addresses; at least one.
    pub addresses: Vec<IpNet>,
    /// The MAC address.
    pub mac: Mac,
}

/// What a pod had before this controller knew it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Had {
    /// The addresses.
    pub addresses: Vec<IpNet>,
    /// The MAC address.
    pub mac: Option<Mac>,
}

impl Had {
    /// Whether it is just this.
    pub fn is(&self, assigned: &Assigned) -> bool {
        self.addresses == assigned.addresses && self.mac == Some(assigned.mac)
    }
}

/// What a pod asks for by its annotations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    addresses: Vec<IpAddr>,
    mac: Option<Mac>,
}

/// An annotation is no [`Wish`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the annotation {annotation}: {problem}")]
pub struct WishError {
    annotation: &'static str,
    problem: String,
}

impl Wish {
    /// Reads the annotations; those that are not there ask for nothing.
    ///
    /// # Errors
    /// [`WishError`].
    pub fn parse(addresses: Option<&str>, mac: Option<&str>) -> Result<Self, WishError> {
        let refused = |annotation, problem| WishError {
            annotation,
            problem,
        };
        let mut wish = Self::default();
        for text in addresses.into_iter().flat_map(|list| list.split(',')) {
            let parsed: Result<IpAddr, _> = text.trim().parse();
            let address = parsed.map_err(|_| {
                let problem =
                    format!("{text:?} is no IP address; write 10.244.0.9 or 10.244.0.9,fd00::9");
                refused(WISHED_ADDRESSES, problem)
            })?;
            if let Some(other) = wish.of_family(address.is_ipv4()) {
                let problem =
                    format!("{other} and {address} are of one family, and a pod has one of each");
                return Err(refused(WISHED_ADDRESSES, problem));
            }
            wish.addresses.push(address);
        }
        if let Some(text) = mac {
            let parsed = text.parse();
            let own = parsed
                .map_err(|error: super::mac::MacError| refused(WISHED_MAC, error.to_string()))?;
            wish.mac = Some(own);
        }
        Ok(wish)
    }

    fn of_family(&self, is_ipv4: bool) -> Option<IpAddr> {
        let mut own = self.addresses.iter().copied();
        own.find(|address| address.is_ipv4() == is_ipv4)
    }
}

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
    /// It asks for an address that no pod of its node can have.
    #[error(
        "it asks for {address}, which no pod of node {node} can have: the node's subnets are \
         {subnets}, without their first three addresses and the last; ask for another address, or \
         place the pod on another node"
    )]
    Outside {
        /// The address.
        address: IpAddr,
        /// The node.
        node: String,
        /// The node's subnets.
        subnets: String,
    },
    /// It asks for what another pod has.
    #[error("it asks for {what}, which pod {holder} has: remove that pod, or ask for another")]
    Taken {
        /// The IP or MAC address.
        what: String,
        /// The other pod.
        holder: String,
    },
    /// It asks for a MAC address that goes with an IP address that is not its own.
    #[error(
        "it asks for the MAC address {0}: those that begin with 0a:58 go with the IP address of \
         their last four bytes; ask for another"
    )]
    Derived(Mac),
}

/// The addresses of all pods.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pools: BTreeMap<String, Vec<Pool>>,
    pods: HashMap<PodName, Claim>,
    /// Who has the MAC addresses that go with no IP address.
    macs: HashMap<Mac, PodName>,
}

#[derive(Clone, Debug)]
struct Claim {
    uid: String,
    node: String,
    assigned: Assigned,
}

fn holder_of(pods: &HashMap<PodName, Claim>, address: IpAddr) -> String {
    let has = |claim: &Claim| {
        claim
            .assigned
            .addresses
            .iter()
            .any(|it| it.addr() == address)
    };
    let holder = pods.iter().find(|(_, claim)| has(claim));
    holder.map_or_else(
        || "of nobody".to_owned(),
        |((namespace, name), _)| format!("{namespace}/{name}"),
    )
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
        let macs = &mut self.macs;
        self.pods.retain(|_, claim| {
            let stays = claim.node != node;
            if !stays {
                macs.remove(&claim.assigned.mac);
            }
            stays
        });
        true
    }

    /// What a pod has: what it was given before, else what it `had` where nobody else has that, else
    /// what it asks for, else what is free. It never changes for a pod that has it.
    ///
    /// # Errors
    /// See [`AddressError`]; nothing is claimed then.
    pub fn claim(
        &mut self,
        pod: &PodName,
        (uid, node): (&str, &str),
        had: &Had,
        wish: &Wish,
        now: Instant,
    ) -> Result<&Assigned, AddressError> {
        let is_its = |claim: &Claim| claim.uid == uid && claim.node == node;
        if !self.pods.get(pod).is_some_and(is_its) {
            self.release(pod, now);
            let places = self.places(node, had, wish, now)?;
            let pools = self.pools.get_mut(node).into_iter().flatten();
            let pools: Vec<_> = pools.zip(places).collect();
            let addresses: Vec<_> = pools
                .iter()
                .map(|(pool, place)| nth(pool.subnet, *place))
                .collect();
            let Some(first) = addresses.first() else {
                return Err(AddressError::NoSubnet(node.to_owned()));
            };
            let own = mac(first.addr());
            let is_had = addresses.iter().any(|it| had.addresses.contains(it));
            let is_usable =
                |it: &Mac| *it == own || !it.is_derived() && !self.macs.contains_key(it);
            let mac = match (had.mac.filter(|_| is_had), wish.mac) {
                (Some(had), _) if is_usable(&had) => had,
                (None, Some(wish)) if is_usable(&wish) => wish,
                (None, Some(wish)) => return Err(self.unusable(wish)),
                _ => own,
            };
            for (pool, place) in pools {
                pool.take(place);
            }
            if mac != own {
                self.macs.insert(mac, pod.clone());
            }
            let claim = Claim {
                uid: uid.to_owned(),
                node: node.to_owned(),
                assigned: Assigned { addresses, mac },
            };
            self.pods.insert(pod.clone(), claim);
        }
        let claim = self.pods.get(pod);
        let assigned = claim.map(|claim| &claim.assigned);
        assigned.ok_or_else(|| AddressError::NoSubnet(node.to_owned()))
    }

    /// Whether a pod has something by now: it was given it before, or what it `had` is nobody
    /// else's.
    pub fn keep(&mut self, pod: &PodName, whose: (&str, &str), had: &Had, now: Instant) -> bool {
        let is_its = |claim: &Claim| (&*claim.uid, &*claim.node) == whose;
        if self.pods.get(pod).is_some_and(is_its) {
            return true;
        }
        let pools = self.pools.get(whose.1).into_iter().flatten();
        let mut kept = pools.filter_map(|pool| pool.free_of(had));
        kept.next().is_some() && self.claim(pod, whose, had, &Wish::default(), now).is_ok()
    }

    /// A place in each of the node's subnets.
    fn places(
        &mut self,
        node: &str,
        had: &Had,
        wish: &Wish,
        now: Instant,
    ) -> Result<Vec<u32>, AddressError> {
        let Some(pools) = self.pools.get_mut(node) else {
            return Err(AddressError::NoSubnet(node.to_owned()));
        };
        let subnets = || pools.iter().map(|pool| pool.subnet.to_string());
        let refused = |address| AddressError::Outside {
            address,
            node: node.to_owned(),
            subnets: subnets().collect::<Vec<_>>().join(", "),
        };
        for address in &wish.addresses {
            let mut own = pools.iter();
            if !own.any(|pool| pool.place((*address).into()).is_some()) {
                return Err(refused(*address));
            }
        }
        let mut places = Vec::with_capacity(pools.len());
        for pool in pools {
            let had = pool.free_of(had);
            let wish = wish.of_family(matches!(pool.subnet, IpNet::V4(_)));
            places.push(match (had, wish) {
                (Some(had), _) => had,
                (None, None) => pool.find(node, now)?,
                (None, Some(address)) => {
                    let place = pool.place(address.into());
                    let free = place.filter(|place| !pool.used.contains(place));
                    free.ok_or_else(|| AddressError::Taken {
                        what: address.to_string(),
                        holder: holder_of(&self.pods, address),
                    })?
                }
            });
        }
        Ok(places)
    }

    fn unusable(&self, mac: Mac) -> AddressError {
        match self.macs.get(&mac) {
            Some((namespace, name)) => AddressError::Taken {
                what: mac.to_string(),
                holder: format!("{namespace}/{name}"),
            },
            None => AddressError::Derived(mac),
        }
    }

    /// What a pod has, if it has anything.
    pub fn of(&self, pod: &PodName) -> Option<&Assigned> {
        self.pods.get(pod).map(|claim| &claim.assigned)
    }

    /// Frees a pod's addresses, to be given again after a rest of 30 s.
    pub fn release(&mut self, pod: &PodName, now: Instant) {
        let Some(claim) = self.pods.remove(pod) else {
            return;
        };
        let Assigned { addresses, mac } = claim.assigned;
        self.macs.remove(&mac);
        for pool in self.pools.get_mut(&claim.node).into_iter().flatten() {
            let place = addresses.iter().find_map(|it| pool.place(*it));
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

    /// The place that a pod had, unless another has it now.
    fn free_of(&self, had: &Had) -> Option<u32> {
        let had = had.addresses.iter().find_map(|it| self.place(*it));
        had.filter(|place| !self.used.contains(place))
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
