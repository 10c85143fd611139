//! Names and numbers derived from an attachment's identity: the same today, after a restart and in
//! a later version.

/// Characters of a derived name: base 32 without the four that are easily confused.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// IFNAMSIZ less its terminating NUL.
const LONGEST_LINK_NAME: usize = 15;

/// The names that the host end of a pod's veth pair may have, best first.
///
/// Operators and ovn-kubernetes' tools expect the first 15 characters of the container id. That
/// name is used only for a pod's first interface, and only when the id is hexadecimal and long
/// enough, as runtimes create them: `test-container-1` and `test-container-2` would share it, and
/// the id `eth0` would clash with the machine's own interface.
pub fn host_link_names(network: &str, container_id: &str, ifname: &str) -> Vec<String> {
    let mut names = Vec::with_capacity(3);
    let is_hex = container_id.bytes().all(|byte| byte.is_ascii_hexdigit());
    if ifname == "eth0" && is_hex {
        names.extend(container_id.get(..LONGEST_LINK_NAME).map(str::to_owned));
    }
    for salt in ["", "again"] {
        let hash = stable_hash(&[network, container_id, ifname, salt]);
        names.push(derived_link_name(hash));
    }
    names
}

/// The link name that encodes these 64 bits.
pub fn derived_link_name(hash: u64) -> String {
    format!("pw{}", base32(hash))
}

/// FNV-1a, 64 bits, over the parts, joined by a separator that no part can contain. Not for hostile
/// input: where a collision would matter, the whole key is compared as well.
pub fn stable_hash(parts: &[&str]) -> u64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(PRIME);
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        step(part.bytes().fold(hash, step), 0)
    })
}

/// 13 characters that encode 64 bits.
fn base32(mut number: u64) -> String {
    let mut text = [0; 13];
    for place in text.iter_mut().rev() {
        *place = ALPHABET[(number % 32) as usize];
        number /= 32;
    }
    text.iter().copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2b9c0d1e4a5b6c7d8e9f00112233445566778899aabbccddeeff0011223344";

    #[test]
    fn a_runtimes_container_id_gives_the_name_that_operators_know() {
        assert_eq!(host_link_names("pods", ID, "eth0")[0], "3f2b9c0d1e4a5b6");
    }

    #[test]
    fn ids_that_are_not_hexadecimal_or_too_short_and_later_interfaces_get_a_derived_name() {
        for (id, ifname) in [
            ("test-container-1", "eth0"),
            ("eth0", "eth0"),
            ("abc", "eth0"),
            (ID, "net1"),
        ] {
            for name in host_link_names("pods", id, ifname) {
                assert!(
                    name.starts_with("pw") && name.len() == LONGEST_LINK_NAME,
                    "{name}"
                );
            }
        }
    }

    #[test]
    fn attachments_that_differ_in_one_part_differ_in_name() {
        let names: std::collections::BTreeSet<_> = [
            host_link_names("pods", "test-container-1", "eth0"),
            host_link_names("pods", "test-container-2", "eth0"),
            host_link_names("pods", "test-container-1", "net1"),
            host_link_names("pod", "stest-container-1", "eth0"),
        ]
        .concat()
        .into_iter()
        .collect();
        assert_eq!(names.len(), 8);
    }

    #[test]
    fn a_derived_name_stays_the_same_from_version_to_version() {
        assert_eq!(
            host_link_names("pods", "c", "eth0"),
            ["pwcqk880ebkk0px", "pw6pzmwgmanm7kq"]
        );
    }
}
