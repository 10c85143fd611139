//! Groups of which several keys contribute members: Port_Group.ports, Address_Set.addresses.
//!
//! A group's row is made by one key, that of a policy for example. Each pod's key states the groups
//! that the pod is in; the difference to the database is written with the pod's other rows, in one
//! transaction. Who contributes what is known to the leader alone, and computed anew by each.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use podwire_cluster::Name;
use podwire_ovs::nb::Table;

use crate::key::Key;

/// A group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    /// Its table: Port_Group or Address_Set.
    pub table: Table,
    /// Its name.
    pub name: Name,
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member {
    /// The group.
    pub group: Group,
    /// The name of a logical port, or an address.
    pub member: Name,
}

/// The members of all groups, as the keys contribute them.
#[derive(Debug, Default)]
pub struct Members {
    by_key: HashMap<Key, BTreeSet<Member>>,
    /// With the number of keys that contribute each.
    by_group: HashMap<Group, BTreeMap<Name, u32>>,
}

impl Members {
    /// The members that a key has contributed, and that no key does once it contributes `wanted`.
    pub fn without(&self, key: &Key, wanted: &BTreeSet<Member>) -> Vec<Member> {
        let own = self.by_key.get(key).into_iter().flatten();
        let gone = own.filter(|it| !wanted.contains(it));
        let is_only = |it: &&Member| {
            let group = self.by_group.get(&it.group);
            group.and_then(|group| group.get(&it.member)) == Some(&1)
        };
        gone.filter(is_only).cloned().collect()
    }

    /// Sets what a key contributes.
    pub fn set(&mut self, key: &Key, wanted: BTreeSet<Member>) {
        let former = match wanted.is_empty() {
            true => self.by_key.remove(key),
            false => {
                for Member { group, member } in &wanted {
                    let group = self.by_group.entry(group.clone()).or_default();
                    *group.entry(member.clone()).or_default() += 1;
                }
                self.by_key.insert(key.clone(), wanted)
            }
        };
        for Member { group, member } in former.into_iter().flatten() {
            let Some(members) = self.by_group.get_mut(&group) else {
                continue;
            };
            if let Some(count) = members.get_mut(&member) {
                *count -= 1;
                if *count == 0 {
                    members.remove(&member);
                }
            }
            if members.is_empty() {
                self.by_group.remove(&group);
            }
        }
    }

    /// Adds one to what a key contributes.
    pub fn add(&mut self, key: &Key, added: Member) {
        let Member { group, member } = added.clone();
        if self.by_key.entry(key.clone()).or_default().insert(added) {
            let group = self.by_group.entry(group).or_default();
            *group.entry(member).or_default() += 1;
        }
    }

    /// The number of a group's members.
    pub fn count(&self, group: &Group) -> usize {
        self.by_group.get(group).map_or(0, BTreeMap::len)
    }

    /// A group's members.
    pub fn of(&self, group: &Group) -> impl Iterator<Item = &Name> {
        let members = self.by_group.get(group).into_iter();
        members.flat_map(BTreeMap::keys)
    }

    /// Whether a key contributes this member.
    pub fn contains(&self, group: &Group, member: &str) -> bool {
        let members = self.by_group.get(group);
        members.is_some_and(|members| members.contains_key(member))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(number: u8) -> Key {
        Key::pod(("ns".into(), format!("p{number}").into()))
    }

    fn member((group, member): (u8, u8)) -> Member {
        Member {
            group: Group {
                table: Table::AddressSet,
                name: format!("g{group}").into(),
            },
            member: format!("10.0.0.{member}").into(),
        }
    }

    proptest! {
        /// What is there, kept by differences alone, is what all keys contribute.
        #[test]
        fn differences_keep_what_all_keys_contribute(
            steps in proptest::collection::vec(
                (0..4_u8, proptest::collection::btree_set((0..3_u8, 0..3_u8), 0..5)), 0..30)
        ) {
            let (mut members, mut there) = (Members::default(), BTreeSet::new());
            let mut naive: BTreeMap<u8, BTreeSet<Member>> = BTreeMap::new();
            for (number, own) in steps {
                let own: BTreeSet<Member> = own.into_iter().map(member).collect();
                for gone in members.without(&key(number), &own) {
                    there.remove(&gone);
                }
                there.extend(own.iter().cloned());
                // Some of them one by one first, as for a new group.
                for one in own.iter().take(number.into()) {
                    members.add(&key(number), one.clone());
                }
                members.set(&key(number), own.clone());
                naive.insert(number, own);
                let all: BTreeSet<Member> = naive.values().flatten().cloned().collect();
                prop_assert_eq!(&there, &all);
                for group in (0..3_u8).map(|it| member((it, 0)).group) {
                    let of: BTreeSet<&Name> = members.of(&group).collect();
                    let wanted = all.iter().filter(|it| it.group == group);
                    let wanted: BTreeSet<&Name> = wanted.map(|it| &it.member).collect();
                    prop_assert_eq!(of, wanted);
                }
            }
        }
    }
}
