use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;

use super::pool::Pool;
use super::{Mac, Request, former_mac, mac, nth};
use crate::name::{Name, ObjectName};

/// A pod's addresses: one of each family of its node's subnets, with the prefix length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// The addresses; at least one.
    pub addresses: Vec<IpNet>,
    /// The MAC address.
    pub mac: Mac,
}

/// A pod's addresses from before this controller knew it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Had {
    /// The addresses.
    pub addresses: Vec<IpNet>,
    /// The MAC address.
    pub mac: Option<Mac>,
}

impl Had {
    /// Whether it equals this.
    pub fn is(&self, assigned: &Assigned) -> bool {
        self.addresses == assigned.addresses && self.mac == Some(assigned.mac)
    }
}

/// Why a pod gets no address.
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
    /// All unused ones were freed moments ago.
    #[error("all free addresses of {subnet} were released by other pods only a moment ago")]
    Resting {
        /// The subnet.
        subnet: IpNet,
        /// When the first one may be assigned again.
        until: Instant,
    },
    /// It requests an address that no pod on its node can have.
    #[error(
        "it requests {address}, which no pod of node {node} can have: the node's subnets are \
         {subnets}, without their first three addresses and the last; request another address, or \
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
    /// It requests what another pod has.
    #[error("it requests {what}, which pod {holder} has: remove that pod, or request another")]
    Taken {
        /// The IP or MAC address.
        what: String,
        /// The other pod.
        holder: String,
    },
    /// It requests a MAC address that belongs to an IP address other than its own.
    #[error(
        "it requests the MAC address {0}, but MAC addresses that begin with 0a:58 are derived from \
         IP addresses; request another"
    )]
    Derived(Mac),
}

/// The addresses of all pods.
#[derive(Clone, Debug, Default)]
pub struct Addresses {
    pools: BTreeMap<String, Vec<Pool>>,
    pods: HashMap<ObjectName, Claim>,
    /// The holders of MAC addresses that belong to no IP address.
    macs: HashMap<Mac, ObjectName>,
}

#[derive(Clone, Debug)]
struct Claim {
    uid: Name,
    node: Name,
    assigned: Assigned,
}

fn holder_of(pods: &HashMap<ObjectName, Claim>, address: IpAddr) -> String {
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

impl Addresses {
    /// Sets a node's subnets; none removes it. Returns whether they changed; the node's pods lose
    /// their addresses then.
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

    /// Assigns a pod its addresses: those assigned before; or those that it `had`, if nobody else
    /// has them; or those that it requests; or free ones. They never change as long as the pod has
    /// them.
    ///
    /// # Errors
    /// See [`AddressError`]; nothing is assigned then.
    pub fn claim(
        &mut self,
        pod: &ObjectName,
        (uid, node): (&Name, &Name),
        had: &Had,
        request: &Request,
        now: Instant,
    ) -> Result<&Assigned, AddressError> {
        let is_its = |claim: &Claim| claim.uid == *uid && claim.node == *node;
        if !self.pods.get(pod).is_some_and(is_its) {
            self.release(pod, now);
            let places = self.places(node, had, request, now)?;
            let pools = self.pools.get_mut(node.as_str()).into_iter().flatten();
            let pools: Vec<_> = pools.zip(places).collect();
            let addresses: Vec<_> = pools
                .iter()
                .map(|(pool, place)| nth(pool.subnet, *place))
                .collect();
            let Some(first) = addresses.first() else {
                return Err(AddressError::NoSubnet(node.to_string()));
            };
            let own = mac(first.addr());
            let is_had = addresses.iter().any(|it| had.addresses.contains(it));
            let is_usable =
                |it: &Mac| *it == own || !it.is_derived() && !self.macs.contains_key(it);
            let is_kept = |it: &Mac| is_usable(it) || *it == former_mac(first.addr());
            let mac = match (had.mac.filter(|_| is_had), request.mac) {
                (Some(had), _) if is_kept(&had) => had,
                (None, Some(request)) if is_usable(&request) => request,
                (None, Some(request)) => return Err(self.unusable(request)),
                _ => own,
            };
            for (pool, place) in pools {
                pool.take(place);
            }
            if mac != own {
                self.macs.insert(mac, pod.clone());
            }
            let claim = Claim {
                uid: uid.clone(),
                node: node.clone(),
                assigned: Assigned { addresses, mac },
            };
            self.pods.insert(pod.clone(), claim);
        }
        let claim = self.pods.get(pod);
        let assigned = claim.map(|claim| &claim.assigned);
        assigned.ok_or_else(|| AddressError::NoSubnet(node.to_string()))
    }

    /// Whether a pod has addresses now: they were assigned before, or nobody else has those that it
    /// `had`.
    pub fn keep(
        &mut self,
        pod: &ObjectName,
        whose: (&Name, &Name),
        had: &Had,
        now: Instant,
    ) -> bool {
        let is_its = |claim: &Claim| (&claim.uid, &claim.node) == whose;
        if self.pods.get(pod).is_some_and(is_its) {
            return true;
        }
        let pools = self.pools.get(whose.1.as_str()).into_iter().flatten();
        let mut kept = pools.filter_map(|pool| pool.free_of(had));
        kept.next().is_some()
            && self
                .claim(pod, whose, had, &Request::default(), now)
                .is_ok()
    }

    /// An index in each of the node's subnets.
    fn places(
        &mut self,
        node: &str,
        had: &Had,
        request: &Request,
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
        for address in &request.addresses {
            let mut own = pools.iter();
            if !own.any(|pool| pool.place((*address).into()).is_some()) {
                return Err(refused(*address));
            }
        }
        let mut places = Vec::with_capacity(pools.len());
        for pool in pools {
            let had = pool.free_of(had);
            let request = request.of_family(matches!(pool.subnet, IpNet::V4(_)));
            places.push(match (had, request) {
                (Some(had), _) => had,
                (None, None) => pool.find(node, now)?,
                (None, Some(address)) => {
                    let place = pool.place(address.into());
                    let free = place.filter(|place| pool.is_free(*place));
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

    /// A pod's addresses, if it has any.
    pub fn of(&self, pod: &ObjectName) -> Option<&Assigned> {
        self.pods.get(pod).map(|claim| &claim.assigned)
    }

    /// Frees a pod's addresses; they are assigned again after 30 s at the earliest.
    pub fn release(&mut self, pod: &ObjectName, now: Instant) {
        let Some(claim) = self.pods.remove(pod) else {
            return;
        };
        let Assigned { addresses, mac } = claim.assigned;
        self.macs.remove(&mac);
        for pool in self
            .pools
            .get_mut(claim.node.as_str())
            .into_iter()
            .flatten()
        {
            let place = addresses.iter().find_map(|it| pool.place(*it));
            if let Some(place) = place {
                pool.release(place, now);
            }
        }
    }
}
