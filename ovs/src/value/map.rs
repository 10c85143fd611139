use super::{Atom, STRING_RANK};

/// The entries of a map column, sorted by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(Vec<(Atom, Atom)>);

impl Map {
    /// A map without entries.
    pub const EMPTY: Self = Self(Vec::new());

    /// The value under a string key.
    pub fn get(&self, key: &str) -> Option<&Atom> {
        let order = |entry: &(Atom, Atom)| match &entry.0 {
            Atom::String(string) => string.as_str().cmp(key),
            // Keys of one map have one type; other types order before or after all strings.
            other => other.rank().cmp(&STRING_RANK),
        };
        self.0.binary_search_by(order).ok().map(|at| &self.0[at].1)
    }

    /// The string under a string key.
    pub fn str(&self, key: &str) -> Option<&str> {
        self.get(key).and_then(Atom::as_str)
    }

    /// The entries in the order of their keys.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Atom, &Atom)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The entries whose key and value are strings.
    pub fn strings(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter_map(|(key, value)| Some((key.as_str()?, value.as_str()?)))
    }

    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entries, sorted by key; `None` if a key occurs twice.
    pub(crate) fn from_entries(mut entries: Vec<(Atom, Atom)>) -> Option<Self> {
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries
            .windows(2)
            .all(|pair| pair[0].0 != pair[1].0)
            .then_some(Self(entries))
    }

    /// This map, changed by a difference of `update2`: an entry that exists with that value is
    /// removed, any other is set.
    pub(crate) fn merged(self, difference: Self) -> Self {
        let mut merged = Vec::with_capacity(self.len() + difference.len());
        let mut old = self.0.into_iter().peekable();
        for (key, value) in difference.0 {
            while let Some(before) = old.next_if(|entry| entry.0 < key) {
                merged.push(before);
            }
            let replaced = old.next_if(|entry| entry.0 == key);
            if replaced.is_none_or(|replaced| replaced.1 != value) {
                merged.push((key, value));
            }
        }
        merged.extend(old);
        Self(merged)
    }

    pub(crate) fn weight(&self) -> usize {
        self.0
            .iter()
            .map(|(key, value)| key.weight() + value.weight())
            .sum()
    }
}

impl FromIterator<(Atom, Atom)> for Map {
    fn from_iter<I: IntoIterator<Item = (Atom, Atom)>>(entries: I) -> Self {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        // `dedup_by` drops the later of two neighbours, but the later one has to win.
        entries.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                std::mem::swap(later, earlier);
            }
            same
        });
        Self(entries)
    }
}
