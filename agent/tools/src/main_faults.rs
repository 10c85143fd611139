//! `podwire-faults`: `podwire` with the fault points that tests name in PODWIRE_FAULT.

#![forbid(unsafe_code)]

#[path = "main.rs"]
mod podwire_main;

fn main() -> std::process::ExitCode {
    podwire_main::main()
}
