//! Identifiers as runtimes and Kubernetes make them: random, so that tests never meet by chance.

use std::hash::{BuildHasher, RandomState};

/// A random number; the standard library seeds each `RandomState` anew.
pub(crate) fn number() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

/// `digits` random lower-case hexadecimal digits.
pub fn hex(digits: usize) -> String {
    let mut text = String::with_capacity(digits + 16);
    while text.len() < digits {
        text.push_str(&format!("{:016x}", number()));
    }
    text.truncate(digits);
    text
}

/// A container id as containerd and CRI-O make it: 64 hexadecimal digits.
pub fn container_id() -> String {
    hex(64)
}

/// A random UUID (version 4), as the API server gives to a pod.
pub fn uuid() -> String {
    let digits = hex(32);
    format!(
        "{}-{}-4{}-a{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[13..16],
        &digits[17..20],
        &digits[20..]
    )
}

/// The same elements in another order.
pub(crate) fn shuffle<T>(elements: &mut [T]) {
    for end in (1..elements.len()).rev() {
        let pick = usize::try_from(number() % (end as u64 + 1)).unwrap_or(0);
        elements.swap(end, pick);
    }
}
