//! The CNI plugin `podwire-cni`.
fn main() {}
