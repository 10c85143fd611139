//! Kernel plumbing: netlink and network namespaces; the only room with unsafe code.
