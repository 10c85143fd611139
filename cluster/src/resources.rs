//! The extended resource of a node for each physical network that it connects, so that the
//! scheduler sends no pod of the network to a node without it.

/// What the names begin with; the network's name follows.
pub const PREFIX: &str = "network.podwire.io/";

/// Of a NetworkAttachmentDefinition: the resource that each pod on its network has to request
/// (Network Plumbing Working Group, Kubernetes Network Custom Resource Definition De-facto
/// Standard).
pub const RESOURCE_NAME: &str = "k8s.v1.cni.cncf.io/resourceName";

/// How much of each a node has: more than it can have pods.
pub const QUANTITY: &str = "1k";

/// The resource of a physical network; None if Kubernetes allows no such name (qualified names:
/// 1 to 63 letters, digits, `-`, `_` and `.`, a letter or digit at both ends).
pub fn of_network(network: &str) -> Option<String> {
    let ends = [network.chars().next()?, network.chars().last()?];
    let is_inside = |it: char| it.is_ascii_alphanumeric() || "-_.".contains(it);
    let is_valid = ends.iter().all(char::is_ascii_alphanumeric)
        && network.chars().all(is_inside)
        && network.len() <= 63;
    is_valid.then(|| format!("{PREFIX}{network}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_kubernetes_would_refuse_gives_no_resource() {
        let name = |network: &str| of_network(network);
        assert_eq!(name("phys.net_1").unwrap(), "network.podwire.io/phys.net_1");
        let long = "a".repeat(64);
        for network in ["", "-a", "a.", "a/b", "a b", "\u{e4}", &long] {
            assert_eq!(name(network), None, "{network:?}");
        }
        assert!(name(&long[1..]).is_some());
    }
}
