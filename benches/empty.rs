//! A process that does nothing: what the floor execs in the place of a plugin.

fn main() {}
