use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use ipnet::IpNet;

use super::pool::Pool;
use super::{AddressError, Layout, Mac, Request, RequestError, former_mac, mac, nth};
use crate::key::Attachment;
use podwire_cluster::{Name, ObjectName};

/// A pod's addresses: one of each family of its node's subnets, with the prefix length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The addresses; at least one.
    pub addresses: Vec<IpNet>,
    /// The MAC address.
    pub mac: Mac,
}

impl Assigned {
    /// The addresses alone.
    pub fn ips(&self) -> Vec<IpAddr> {
        self.addresses.iter().map(IpNet::addr).collect()
    }
}

/// A pod's addresses as a row or an annotation has them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordedAddresses {
    /// The addresses.
    pub addresses: Vec<IpNet>,
    /// The MAC address.
    pub mac: Option<Mac>,
    /// The annotation's entry has this and nothing else.
    pub is_exact: bool,
    /// By its annotation, the pod's primary network is another.
    pub is_locked: bool,
}

impl RecordedAddresses {
    /// Whether the annotation is the one for these addresses.
    pub fn is(&self, assigned: &Assigned) -> bool {
        self.is_exact && self.addresses == assigned.addresses && self.mac == Some(assigned.mac)
    }
}

/// A pod's addresses from before this controller knew it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormerAddresses {
    /// The addresses.
    pub recorded: RecordedAddresses,
    /// Its row or its kubelet has them. Otherwise only its annotation does, which users can write.
    pub is_certain: bool,
}

/// The addresses of all pods on a network, and their MAC addresses. A pod may be attached to it
/// several times. Where nodes have subnets, each is a part of the network for itself; a network
/// that all nodes share is one part, with the network's name instead of a node's.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    layout: Layout,
    /// How long a freed address rests, for packets still on their way to its former pod.
    rest: Duration,
    /// Until then, addresses may rest that an earlier leader freed.
    unknown_until: Option<Instant>,
    pools: BTreeMap<String, Vec<Pool>>,
    /// The MAC addresses of nodes' management ports.
    management: BTreeMap<String, Mac>,
    pods: HashMap<Attachment, Claim>,
    /// The pods by node and MAC address.
    macs: HashMap<(Name, Mac), Attachment>,
}

#[derive(Clone, Debug)]
struct Claim {
    uid: Name,
    node: Name,
    assigned: Assigned,
}

impl Addresses {
    /// No node has a subnet yet.
    pub fn new(layout: Layout, rest: Duration) -> Self {
        Self {
            layout,
            rest,
            unknown_until: None,
            pools: BTreeMap::new(),
            management: BTreeMap::new(),
            pods: HashMap::new(),
            macs: HashMap::new(),
        }
    }

    /// Changes what is excluded; nobody loses an address.
    pub fn set_layout(&mut self, layout: Layout) {
        for pool in self.pools.values_mut().flatten() {
            pool.set_layout(&layout);
        }
        self.layout = layout;
    }

    /// Sets a node's subnets; none removes it. Returns whether they changed; pods lose addresses
    /// only of subnets that the node no longer has.
    pub fn set_node(&mut self, node: &str, subnets: &[IpNet]) -> bool {
        let mut known = self.pools.remove(node).unwrap_or_default();
        let before = known.iter().map(|pool| pool.subnet);
        let is_same = before.eq(subnets.iter().copied());
        let pools: Vec<_> = subnets
            .iter()
            .map(|subnet| {
                let at = known.iter().position(|pool| pool.subnet == *subnet);
                at.map_or_else(
                    || Pool::new(*subnet, &self.layout),
                    |at| known.swap_remove(at),
                )
            })
            .collect();
        let is_lost = |address: &IpNet| known.iter().any(|pool| pool.place(*address).is_some());
        let macs = &mut self.macs;
        if !known.is_empty() {
            self.pods.retain(
                |_,
                 Claim {
                     node: of, assigned, ..
                 }| {
                    let stays = of != node || !assigned.addresses.iter().any(is_lost);
                    if !stays {
                        macs.remove(&(of.clone(), assigned.mac));
                    }
                    stays
                },
            );
        }
        if !pools.is_empty() {
            self.pools.insert(node.to_owned(), pools);
        }
        !is_same
    }

    /// Sets the MAC address of a node's management port, which no pod can have.
    ///
    /// # Errors
    /// The node's pod that has it already.
    pub fn set_management(&mut self, node: &str, mac: Option<Mac>) -> Result<(), String> {
        self.management.remove(node);
        if let Some(mac) = mac {
            self.management.insert(node.to_owned(), mac);
        }
        let pod = mac.and_then(|mac| self.macs.get(&(node.into(), mac)));
        pod.map_or(Ok(()), |pod| Err(pod.to_string()))
    }

    /// Whether addresses have been assigned to this pod.
    pub fn has(&self, pod: &Attachment, (uid, node): (&Name, &Name)) -> bool {
        let claim = self.pods.get(pod);
        claim.is_some_and(|claim| claim.uid == *uid && claim.node == *node)
    }

    /// Assigns a pod its addresses: those assigned before; or its former ones, the first that its
    /// node's subnets contain; or those that it requests; or free ones. They never change as long
    /// as the pod exists.
    ///
    /// # Errors
    /// See [`AddressError`]; nothing is assigned then, and another pod of this name has lost its
    /// addresses.
    pub fn claim(
        &mut self,
        pod: &Attachment,
        (uid, node): (&Name, &Name),
        former: &[FormerAddresses],
        request: impl FnOnce() -> Result<Request, RequestError>,
        now: Instant,
    ) -> Result<&Assigned, AddressError> {
        if !self.has(pod, (uid, node)) {
            self.release(pod, now);
            let pools = self.pools_of(node)?;
            let is_placed = |former: &&FormerAddresses| {
                let mut own = pools.iter();
                own.any(|it| it.place_of(&former.recorded).is_some())
                    || (pools.is_empty() && former.recorded.mac.is_some())
            };
            let mut former = former.iter().filter(is_placed);
            let assigned = match former.next() {
                Some(FormerAddresses {
                    recorded,
                    is_certain: true,
                }) => self.proven(pod, node, recorded, request)?,
                claimed => {
                    let claimed = claimed.map(|former| &former.recorded);
                    self.chosen(pod, node, claimed, &request()?, now)?
                }
            };
            for pool in self.pools.get_mut(node.as_str()).into_iter().flatten() {
                let mut places = assigned.addresses.iter();
                if let Some(place) = places.find_map(|it| pool.place(*it)) {
                    pool.take(place);
                }
            }
            let (uid, node) = (uid.clone(), node.clone());
            self.macs.insert((node.clone(), assigned.mac), pod.clone());
            let claim = Claim {
                uid,
                node,
                assigned,
            };
            self.pods.insert(pod.clone(), claim);
        }
        let claim = self.pods.get(pod);
        let assigned = claim.map(|claim| &claim.assigned);
        assigned.ok_or_else(|| AddressError::NoSubnet(node.to_string()))
    }

    /// The subnets of a node; none only where a network needs none.
    fn pools_of(&self, node: &str) -> Result<&[Pool], AddressError> {
        let pools = self.pools.get(node).map(Vec::as_slice);
        match self.layout {
            Layout::Nodes => pools.ok_or_else(|| AddressError::NoSubnet(node.to_owned())),
            Layout::Shared { .. } => Ok(pools.unwrap_or_default()),
        }
    }

    /// The addresses with which a pod runs, and no others.
    fn proven(
        &self,
        pod: &Attachment,
        node: &str,
        recorded: &RecordedAddresses,
        request: impl FnOnce() -> Result<Request, RequestError>,
    ) -> Result<Assigned, AddressError> {
        let twice = |what: String, holder| AddressError::Twice { what, holder };
        let mut addresses = Vec::new();
        for pool in self.pools.get(node).into_iter().flatten() {
            let Some(place) = pool.place_of(recorded) else {
                continue;
            };
            let address = nth(pool.subnet, place);
            if !pool.is_free(place) {
                return Err(twice(
                    address.addr().to_string(),
                    self.holder(address.addr()),
                ));
            }
            addresses.push(address);
        }
        let [own, former] = self.own_macs(pod, node, &addresses);
        let is_usable = |mac: &Mac| self.has_mac(*mac, node, &[own]).is_none();
        let requested = || request().ok()?.mac.filter(is_usable);
        let mac = recorded.mac.or_else(requested).unwrap_or(own);
        match self.has_mac(mac, node, &[own, former]) {
            Some(holder) => Err(twice(mac.to_string(), holder)),
            None => Ok(Assigned { addresses, mac }),
        }
    }

    /// Addresses for a pod that does not run yet.
    fn chosen(
        &mut self,
        pod: &Attachment,
        node: &str,
        claimed: Option<&RecordedAddresses>,
        request: &Request,
        now: Instant,
    ) -> Result<Assigned, AddressError> {
        for pool in self.pools.get_mut(node).into_iter().flatten() {
            pool.expire(now);
        }
        let pools = self.pools_of(node)?;
        let whose = || self.layout.whose(node);
        for &address in &request.addresses {
            let mut own = pools.iter();
            if !own.any(|pool| pool.place(address.into()).is_some()) {
                let subnets = pools.iter().map(|pool| pool.subnet.to_string());
                return Err(AddressError::Outside {
                    address,
                    whose: whose(),
                    subnets: subnets.collect::<Vec<_>>().join(", "),
                });
            }
        }
        let mut addresses = Vec::with_capacity(pools.len());
        let mut keeps = false;
        let unknown_until = self.unknown_until.filter(|until| *until > now);
        let rested = |pool: &Pool, place| {
            let until = match pool.rests(place, now) {
                Some((of, until)) => Some(until).filter(|_| of != pod),
                None => unknown_until,
            };
            let address = nth(pool.subnet, place).addr();
            until.map_or(Ok(place), |until| {
                Err(AddressError::Released { address, until })
            })
        };
        for pool in pools {
            // The MAC address is that of the first one.
            let is_first = addresses.is_empty();
            let is_usable = |place: &u128| {
                let own = || mac(nth(pool.subnet, *place).addr());
                pool.is_free(*place) && !(is_first && self.mac_holder(own(), node).is_some())
            };
            let claimed = claimed.and_then(|recorded| pool.place_of(recorded));
            // Users can write it; what is excluded may be a router.
            let may_have = |place: &u128| pool.excluding(nth(pool.subnet, *place).addr()).is_none();
            let claimed = claimed.filter(may_have).filter(is_usable);
            let requested = request.of_family(matches!(pool.subnet, IpNet::V4(_)));
            let place = match (claimed, requested) {
                (Some(place), _) => {
                    keeps = true;
                    rested(pool, place)?
                }
                (None, None) => pool.find(whose, is_usable)?,
                (None, Some(address)) => {
                    let place = pool.place(address.into());
                    if let Some(excluded) = pool.excluding(address) {
                        return Err(AddressError::Excluded { address, excluded });
                    }
                    let free = place.filter(|place| pool.is_free(*place));
                    let free = free.ok_or_else(|| AddressError::Taken {
                        what: address.to_string(),
                        holder: self.holder(address),
                    })?;
                    rested(pool, free)?
                }
            };
            addresses.push(nth(pool.subnet, place));
        }
        let [own, former] = self.own_macs(pod, node, &addresses);
        let recorded = claimed.filter(|_| keeps).and_then(|recorded| recorded.mac);
        let mac = match (recorded, request.mac) {
            (Some(recorded), _) if self.has_mac(recorded, node, &[own, former]).is_none() => {
                recorded
            }
            (None, Some(requested)) => requested,
            _ => own,
        };
        if let Some(holder) = self.mac_holder(mac, node) {
            let what = match addresses.first() {
                Some(address) if request.mac.is_none() => {
                    format!("{} and so {mac}", address.addr())
                }
                _ => mac.to_string(),
            };
            return Err(AddressError::Taken { what, holder });
        }
        match self.has_mac(mac, node, &[own, former]) {
            Some(_) => Err(AddressError::Derived(mac)),
            None => Ok(Assigned { addresses, mac }),
        }
    }

    /// The MAC address of a pod with these addresses, unless it has another: the derived one, and
    /// the one derived before. Without addresses, one that nobody has.
    fn own_macs(&self, pod: &Attachment, node: &str, addresses: &[IpNet]) -> [Mac; 2] {
        if let Some(first) = addresses.first().map(IpNet::addr) {
            return [mac(first), former_mac(first)];
        }
        let mut all = (0_u32..).map(|number| Mac::local(&format!("{pod} {} {number}", pod.entry)));
        let free = all.find(|mac| self.mac_holder(*mac, node).is_none());
        [free.unwrap_or(Mac::local("")); 2]
    }

    /// Who has a MAC address that a pod of a node wants and whose `own` ones are these; `None` if
    /// it can have it.
    fn has_mac(&self, mac: Mac, node: &str, own: &[Mac]) -> Option<String> {
        let is_other = mac.is_derived() && !own.contains(&mac);
        let other = is_other.then(|| "the pod with its IP address".to_owned());
        self.mac_holder(mac, node).or(other)
    }

    /// Who has a MAC address on a node's switch.
    fn mac_holder(&self, wanted: Mac, node: &str) -> Option<String> {
        let is_of = |place| {
            let mut pools = self.pools.get(node).into_iter().flatten();
            self.layout == Layout::Nodes
                && pools.any(|pool| mac(nth(pool.subnet, place).addr()) == wanted)
        };
        if is_of(1) {
            return Some(format!("the router of node {node}"));
        }
        if self.management.get(node) == Some(&wanted) || is_of(2) {
            return Some(format!("the management port of node {node}"));
        }
        let pod = self.macs.get(&(node.into(), wanted));
        pod.map(ToString::to_string)
    }

    fn holder(&self, address: IpAddr) -> String {
        let mut pods = self.pods.iter();
        let holder = pods.find(|(_, claim)| {
            let mut own = claim.assigned.addresses.iter();
            own.any(|it| it.addr() == address)
        });
        holder.map_or_else(|| "nobody".to_owned(), |(pod, _)| pod.to_string())
    }

    /// A pod's addresses, if it has any.
    pub fn of(&self, pod: &Attachment) -> Option<&Assigned> {
        self.pods.get(pod).map(|claim| &claim.assigned)
    }

    /// The node that a pod's addresses are of.
    pub fn node_of(&self, pod: &Attachment) -> Option<&Name> {
        self.pods.get(pod).map(|claim| &claim.node)
    }

    /// Frees a pod's addresses; they rest before another pod gets them. Returns the pod's node, if
    /// it had any.
    pub fn release(&mut self, pod: &Attachment, now: Instant) -> Option<Name> {
        let Claim { node, assigned, .. } = self.pods.remove(pod)?;
        self.macs.remove(&(node.clone(), assigned.mac));
        for pool in self.pools.get_mut(node.as_str()).into_iter().flatten() {
            let place = assigned.addresses.iter().find_map(|it| pool.place(*it));
            if let Some(place) = place {
                pool.release(place);
                pool.rest(place, pod, now + self.rest);
            }
        }
        Some(node)
    }

    /// Whether no pod has one of these addresses, in the subnets of a node.
    pub fn is_free(&self, node: &str, former: &[FormerAddresses]) -> bool {
        let mut pools = self.pools.get(node).into_iter().flatten();
        pools.any(|pool| {
            let mut places = former.iter().filter_map(|it| pool.place_of(&it.recorded));
            places.any(|place| pool.is_free(place))
        })
    }

    /// Lets addresses rest that a pod had which is gone, unless another has them.
    pub fn rest(
        &mut self,
        pod: &Attachment,
        node: &str,
        recorded: &RecordedAddresses,
        now: Instant,
    ) {
        for pool in self.pools.get_mut(node).into_iter().flatten() {
            if let Some(place) = pool.place_of(recorded) {
                pool.rest(place, pod, now + self.rest);
            }
        }
    }

    /// Lets the addresses that a pod freed rest once more: its rows may still have them.
    pub fn rest_again(&mut self, pod: &ObjectName, now: Instant) {
        for pool in self.pools.values_mut().flatten() {
            pool.rest_again(pod, now + self.rest);
        }
    }

    /// An earlier leader may have freed addresses just before.
    pub fn succeed(&mut self, now: Instant) {
        self.unknown_until = Some(now + self.rest);
        for pool in self.pools.values_mut().flatten() {
            pool.skip();
        }
    }

    /// When all addresses of a node may be assigned to any pod; `None` while a pod has one.
    pub fn unused_from(&self, node: &str, now: Instant) -> Option<Instant> {
        let mut pools = self.pools.get(node).into_iter().flatten();
        pools.try_fold(now, |latest, pool| Some(pool.unused_from(now)?.max(latest)))
    }
}
