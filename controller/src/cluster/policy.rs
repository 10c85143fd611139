//! NetworkPolicies, reduced to whom they select and what they allow. Whatever can't be read allows
//! nothing: a policy with a mistake isolates, and says so.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use podwire_apiserver::object::Metadata;
use podwire_cluster::api::{self, IntOrString, Part};
use podwire_cluster::service::Protocol;
use podwire_cluster::{Labels, Name, Selector};

/// One rule has fewer networks than this.
const PIECES: usize = 4096;
/// A policy has no more networks than this: with all protocols, a row for each rule, they still fit
/// into a transaction of 4 MiB.
const ALL_PIECES: usize = 4 * PIECES;
/// A policy names no more different sets of pods than this: each pod that is in all of them costs
/// as many operations.
const SETS: usize = 200;

/// What a policy does whose selector can't be read.
const CLOSED: &str = "it isolates all pods of the namespace that meet the other requirements, and \
                      allows nothing";

/// To pods, or from pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[expect(missing_docs, reason = "the API's names")]
pub enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::Ingress, Self::Egress];
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A port that containers name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedPort {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its name.
    pub name: Name,
}

/// A policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Distinguishes several policies with this name over time.
    pub uid: Name,
    /// The pods of its namespace that it isolates.
    pub selector: Selector,
    /// What may reach them; `None` if they are not isolated in this direction.
    pub ingress: Option<Vec<Rule>>,
    /// What they may reach; `None` if they are not isolated in this direction.
    pub egress: Option<Vec<Rule>>,
    /// Its mistakes.
    pub problems: Vec<String>,
}

/// A rule: who, and by which ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// `None` for everybody.
    pub peers: Option<BTreeSet<Peer>>,
    /// `None` for all ports of all protocols.
    pub ports: Option<BTreeSet<Ports>>,
}

/// Some peers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// Pods.
    Pods {
        /// Their namespaces.
        namespaces: Namespaces,
        /// Their labels.
        pods: Selector,
    },
    /// Addresses: of a network, without some.
    Block(IpNet, BTreeSet<IpNet>),
}

impl Peer {
    /// Whether an address is in it; `None` if it is not by address.
    pub fn contains(&self, address: IpAddr) -> Option<bool> {
        match self {
            Self::Block(net, except) => {
                let is_excepted = || except.iter().any(|it| it.contains(&address));
                Some(net.contains(&address) && !is_excepted())
            }
            Self::Pods { .. } => None,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pods { namespaces, pods } => match namespaces {
                Namespaces::Own(name) => write!(f, "pods {pods} of namespace {name}"),
                Namespaces::Matching(labels) => write!(f, "pods {pods} of namespaces {labels}"),
            },
            Self::Block(net, except) if except.is_empty() => write!(f, "{net}"),
            Self::Block(net, except) => {
                let except: Vec<_> = except.iter().map(ToString::to_string).collect();
                write!(f, "{net} except {}", except.join(", "))
            }
        }
    }
}

/// Some namespaces.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespaces {
    /// The policy's own.
    Own(Name),
    /// Those with these labels.
    Matching(Selector),
}

/// Some ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Ports {
    /// All of them.
    All(Protocol),
    /// From the first to the last.
    Range(Protocol, u16, u16),
    /// The number that the receiving pod's container gives this name.
    Named(NamedPort),
}

/// `80/TCP`, `80-90/TCP`, `all/TCP`, `"web"/TCP`.
impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(protocol) => write!(f, "all/{}", protocol.api_name()),
            Self::Range(protocol, first, last) if first == last => {
                write!(f, "{first}/{}", protocol.api_name())
            }
            Self::Range(protocol, first, last) => {
                write!(f, "{first}-{last}/{}", protocol.api_name())
            }
            Self::Named(NamedPort { protocol, name }) => {
                write!(f, "{:?}/{}", name.as_str(), protocol.api_name())
            }
        }
    }
}

impl Policy {
    /// The relevant part of a policy.
    pub fn of(policy: &api::NetworkPolicy) -> Option<Self> {
        Some(Self::read(&policy.metadata, &policy.spec))
    }

    /// What a policy says.
    pub(super) fn read(metadata: &Metadata, spec: &Part<api::NetworkPolicySpec>) -> Self {
        let uid = metadata.uid.as_str().into();
        let spec = match spec {
            Part::Read(spec) => spec,
            Part::Unreadable(problem) => {
                return Self {
                    uid,
                    ingress: Some(Vec::new()),
                    egress: Some(Vec::new()),
                    problems: vec![format!("spec: {problem}; {CLOSED}")],
                    ..Self::default()
                };
            }
        };
        let parsed = match &spec.pod_selector {
            Part::Read(selector) => Selector::parse(selector)
                .map_err(|(selector, error)| (selector, format!("spec.podSelector.{error}"))),
            Part::Unreadable(problem) => {
                Err((Selector::default(), format!("spec.podSelector: {problem}")))
            }
        };
        let mut problems = Vec::new();
        let (selector, is_exact) = match parsed {
            Ok(selector) => (selector, true),
            Err((selector, problem)) => {
                problems.push(format!("{problem}; {CLOSED}"));
                (selector, false)
            }
        };
        let mut read = Reader {
            namespace: metadata.namespace.as_str().into(),
            problems,
            sets: BTreeSet::new(),
            pieces: 0,
            of_rule: 0,
        };
        let ingress = read.rules("spec.ingress", "from", &spec.ingress, |rule| {
            (&rule.from, &rule.ports)
        });
        let egress = read.rules("spec.egress", "to", &spec.egress, |rule| {
            (&rule.to, &rule.ports)
        });
        let (is_ingress, is_egress) = match &spec.policy_types {
            Part::Read(types) if types.is_empty() => {
                let has_rules = !matches!(&spec.egress, Part::Read(rules) if rules.is_empty());
                (true, has_rules)
            }
            Part::Read(types) => {
                let has = |name: &str| types.iter().any(|it| it == name);
                let known = |it: &String| it == "Ingress" || it == "Egress";
                if let Some(other) = types.iter().find(|it| !known(it)) {
                    let problem = format!(
                        "spec.policyTypes: {other:?} is neither of Ingress and \
                                           Egress; it isolates in both directions"
                    );
                    read.problems.push(problem);
                    (true, true)
                } else {
                    (has("Ingress"), has("Egress"))
                }
            }
            Part::Unreadable(problem) => {
                let problem =
                    format!("spec.policyTypes: {problem}; it isolates in both directions");
                read.problems.push(problem);
                (true, true)
            }
        };
        let rules = |isolates: bool, rules: Vec<Rule>| {
            isolates.then(|| if is_exact { rules } else { Vec::new() })
        };
        Self {
            uid,
            selector,
            ingress: rules(is_ingress, ingress),
            egress: rules(is_egress, egress),
            problems: read.problems,
        }
    }

    /// Its rules for a direction; `None` if it does not isolate in it.
    pub fn rules(&self, direction: Direction) -> Option<&[Rule]> {
        match direction {
            Direction::Ingress => self.ingress.as_deref(),
            Direction::Egress => self.egress.as_deref(),
        }
    }

    /// The ports that its rules name.
    pub fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let rules = Direction::BOTH
            .into_iter()
            .filter_map(|it| self.rules(it))
            .flatten();
        rules.flat_map(Rule::named_ports)
    }
}

impl Rule {
    /// The ports that it names.
    pub fn named_ports(&self) -> impl Iterator<Item = &NamedPort> {
        let ports = self.ports.iter().flatten();
        ports.filter_map(|ports| match ports {
            Ports::Named(named) => Some(named),
            _ => None,
        })
    }
}

/// Reads the rules of one policy.
struct Reader {
    namespace: Name,
    problems: Vec<String>,
    /// The sets of pods that its rules name.
    sets: BTreeSet<BTreeSet<Peer>>,
    /// The number of networks in all rules.
    pieces: usize,
    /// And in one rule.
    of_rule: usize,
}

impl Reader {
    fn rules<R>(
        &mut self,
        field: &str,
        peers_field: &str,
        rules: &Part<Vec<Part<R>>>,
        parts: impl Fn(&R) -> (&Vec<Part<api::Peer>>, &Vec<Part<api::PolicyPort>>),
    ) -> Vec<Rule> {
        let Some(rules) = self.read(field, rules) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut further = BTreeSet::new();
        for (number, rule) in rules.iter().enumerate() {
            let at = format!("{field}[{number}]");
            let Some(rule) = self.read(&at, rule) else {
                continue;
            };
            self.of_rule = 0;
            let (peers, ports) = parts(rule);
            let peers = self.all(&format!("{at}.{peers_field}"), peers, Self::peer);
            let ports = self.all(&format!("{at}.ports"), ports, Self::port);
            let pods = peers.iter().flatten();
            let pods = pods.filter(|it| matches!(it, Peer::Pods { .. }));
            let pods: BTreeSet<Peer> = pods.cloned().collect();
            if !pods.is_empty() && !self.sets.contains(&pods) {
                if self.sets.len() == SETS {
                    further.insert(pods);
                    continue;
                }
                self.sets.insert(pods);
            }
            found.push(Rule { peers, ports });
        }
        if !further.is_empty() {
            let all = SETS + further.len();
            self.problems.push(format!(
                "{field}: with it the rules name {all} different sets of pods, {SETS} at most; \
                 those with further ones allow nothing"
            ));
        }
        found
    }

    /// What can be read of a list; `None` if there is no list, or an empty one.
    fn all<T, U: Ord>(
        &mut self,
        field: &str,
        list: &[Part<T>],
        one: fn(&mut Self, &T) -> Result<U, String>,
    ) -> Option<BTreeSet<U>> {
        let mut found = BTreeSet::new();
        for (number, it) in list.iter().enumerate() {
            let at = format!("{field}[{number}]");
            let Some(it) = self.read(&at, it) else {
                continue;
            };
            match one(self, it) {
                Ok(it) => drop(found.insert(it)),
                Err(problem) => self.problem(&at, &problem),
            }
        }
        (!list.is_empty()).then_some(found)
    }

    fn read<'p, T>(&mut self, field: &str, part: &'p Part<T>) -> Option<&'p T> {
        match part {
            Part::Read(it) => Some(it),
            Part::Unreadable(problem) => {
                self.problem(field, problem);
                None
            }
        }
    }

    fn problem(&mut self, field: &str, problem: &str) {
        self.problems
            .push(format!("{field}: {problem}; it allows nothing"));
    }

    fn peer(&mut self, peer: &api::Peer) -> Result<Peer, String> {
        let selector = |of: &api::LabelSelector, field: &str| {
            Selector::parse(of).map_err(|(_, error)| format!("{field}.{error}"))
        };
        let (pods, namespaces) = (&peer.pod_selector, &peer.namespace_selector);
        match &peer.ip_block {
            Some(_) if pods.is_some() || namespaces.is_some() => {
                Err("ipBlock can't be combined with selectors".to_owned())
            }
            Some(block) => {
                let net = |text: &String| {
                    let parsed = text.parse::<IpNet>().map(|net| net.trunc());
                    parsed.map_err(|error| format!("ipBlock: {text:?}: {error}"))
                };
                let except: Result<BTreeSet<_>, _> = block.except.iter().map(net).collect();
                let (net, except) = (net(&block.cidr)?, except?);
                let own = pieces(net, &except).len();
                let (rule, all) = (self.of_rule + own, self.pieces + own);
                if rule >= PIECES {
                    return Err(format!(
                        "ipBlock: without its exceptions it is {own} networks; with it the rule \
                         would have {rule}, and {} are possible",
                        PIECES - 1
                    ));
                }
                if all > ALL_PIECES {
                    return Err(format!(
                        "ipBlock: without its exceptions it is {own} networks; with it the policy \
                         would have {all}, and {ALL_PIECES} are possible"
                    ));
                }
                (self.of_rule, self.pieces) = (rule, all);
                Ok(Peer::Block(net, except))
            }
            None if pods.is_none() && namespaces.is_none() => {
                Err("none of podSelector, namespaceSelector and ipBlock is set".to_owned())
            }
            None => Ok(Peer::Pods {
                namespaces: match namespaces {
                    Some(of) => Namespaces::Matching(selector(of, "namespaceSelector")?),
                    None => Namespaces::Own(self.namespace.clone()),
                },
                pods: match pods {
                    Some(of) => selector(of, "podSelector")?,
                    None => Selector::default(),
                },
            }),
        }
    }

    fn port(&mut self, port: &api::PolicyPort) -> Result<Ports, String> {
        let protocol = Protocol::named(&port.protocol)
            .ok_or_else(|| format!("protocol: {:?} is not known", port.protocol))?;
        let number = |field: &str, number: i64| match u16::try_from(number) {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{field}: {number} is not between 1 and 65535")),
        };
        match (&port.port, port.end_port) {
            (None, None) => Ok(Ports::All(protocol)),
            (Some(IntOrString::Int(first)), end) => {
                let first = number("port", *first)?;
                let last = end.map_or(Ok(first), |end| number("endPort", end))?;
                if last < first {
                    return Err(format!("endPort: {last} is less than port {first}"));
                }
                Ok(Ports::Range(protocol, first, last))
            }
            (Some(IntOrString::String(name)), None) => Ok(Ports::Named(NamedPort {
                protocol,
                name: name.as_str().into(),
            })),
            (_, Some(_)) => Err("endPort needs a port with a number".to_owned()),
        }
    }
}

/// A network without some others, as networks.
pub fn pieces(net: IpNet, except: &BTreeSet<IpNet>) -> Vec<IpNet> {
    if except.iter().any(|it| it.contains(&net)) {
        return Vec::new();
    }
    let inside: BTreeSet<IpNet> = except
        .iter()
        .filter(|it| net.contains(*it))
        .copied()
        .collect();
    if inside.is_empty() {
        return vec![net];
    }
    let halves = net.subnets(net.prefix_len() + 1).into_iter().flatten();
    halves.flat_map(|half| pieces(half, &inside)).collect()
}

/// What policies need to know of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// Its labels.
    pub labels: Labels,
    /// The ports that its containers name; one name may have several numbers.
    pub ports: BTreeSet<(NamedPort, u16)>,
}

impl Selected {
    /// That of a pod.
    pub fn of(pod: &api::Pod) -> Self {
        let ports = pod.spec.ports().filter(|port| !port.name.is_empty());
        let ports = ports.filter_map(|port| {
            let protocol = Protocol::named(&port.protocol)?;
            let number = port.container_port.and_then(|it| it.try_into().ok())?;
            let name = port.name.as_str().into();
            Some((NamedPort { protocol, name }, number))
        });
        Self {
            labels: pod.metadata.labels.clone(),
            ports: ports.collect(),
        }
    }

    /// The numbers that it gives a port.
    pub fn numbers(&self, named: &NamedPort) -> impl Iterator<Item = u16> {
        let own = self.ports.iter().filter(move |(it, _)| it == named);
        own.map(|(_, number)| *number)
    }
}
