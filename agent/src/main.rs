//! podwire.
fn main() {}
