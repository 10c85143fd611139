//! Addresses: the embedded pools, and delegated IPAM plugins.
