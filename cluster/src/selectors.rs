//! Selectors of pods, found by a pod's namespace and labels without a look at all of them.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::{Labels, Name, Selector};

/// What every pod that a selector matches has in common.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Its namespace, and one of its labels if the selector requires one.
    Namespace(Name, Option<Label>),
    /// One of its labels.
    Label(Label),
    /// One of its namespace's labels.
    NamespaceLabel(Label),
    /// Nothing.
    Any,
}

/// A label: key and value.
pub type Label = (Name, Name);

/// The namespaces of a selector of pods.
#[derive(Clone, Copy, Debug)]
pub enum Within<'a> {
    /// This one.
    Namespace(&'a Name),
    /// Those with these labels.
    Matching(&'a Selector),
}

impl Place {
    /// The places of a selector: a pod that it matches is in one of them.
    pub fn of(namespaces: Within<'_>, pods: &Selector) -> Vec<Self> {
        let labels = |selector: &Selector| {
            let required = selector.required()?;
            let (key, values) = required;
            let label = move |value: &String| (key.into(), value.into());
            Some(values.iter().map(label).collect::<Vec<Label>>())
        };
        match (namespaces, labels(pods)) {
            (Within::Namespace(name), None) => vec![Self::Namespace(name.clone(), None)],
            (Within::Namespace(name), Some(labels)) => {
                let place = |label| Self::Namespace(name.clone(), Some(label));
                labels.into_iter().map(place).collect()
            }
            (Within::Matching(_), Some(own)) => own.into_iter().map(Self::Label).collect(),
            (Within::Matching(selector), None) => match labels(selector) {
                Some(labels) => labels.into_iter().map(Self::NamespaceLabel).collect(),
                None => vec![Self::Any],
            },
        }
    }

    /// The places in which a pod is.
    fn around(namespace: &Name, of_namespace: Option<&Labels>, own: &Labels) -> Vec<Self> {
        let label = |(key, value): (&String, &String)| (key.into(), value.into());
        let own: Vec<Label> = own.iter().map(label).collect();
        let of_namespace = of_namespace.into_iter().flatten().map(label);
        let within = |label: &Label| Self::Namespace(namespace.clone(), Some(label.clone()));
        let mut all = vec![Self::Any, Self::Namespace(namespace.clone(), None)];
        all.extend(own.iter().map(within));
        all.extend(own.into_iter().map(Self::Label));
        all.extend(of_namespace.map(Self::NamespaceLabel));
        all
    }
}

/// Selectors by an id, in their places.
#[derive(Clone, Debug)]
pub struct Selectors<I> {
    by_place: HashMap<Place, BTreeSet<I>>,
}

impl<I> Default for Selectors<I> {
    fn default() -> Self {
        Self {
            by_place: HashMap::new(),
        }
    }
}

impl<I: Clone + Ord + Hash> Selectors<I> {
    /// Adds a selector.
    pub fn insert(&mut self, id: &I, places: impl IntoIterator<Item = Place>) {
        for place in places {
            self.by_place.entry(place).or_default().insert(id.clone());
        }
    }

    /// Removes a selector that was added with these places.
    pub fn remove(&mut self, id: &I, places: impl IntoIterator<Item = Place>) {
        for place in places {
            if let Some(ids) = self.by_place.get_mut(&place) {
                ids.remove(id);
                if ids.is_empty() {
                    self.by_place.remove(&place);
                }
            }
        }
    }

    /// The selectors that may match a pod: all that do, and few others.
    pub fn candidates(
        &self,
        namespace: &Name,
        of_namespace: Option<&Labels>,
        own: &Labels,
    ) -> BTreeSet<&I> {
        let places = Place::around(namespace, of_namespace, own);
        let found = places.iter().filter_map(|place| self.by_place.get(place));
        found.flatten().collect()
    }
}
