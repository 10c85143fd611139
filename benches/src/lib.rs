//! The pod-startup benchmark. One run measures, interleaved on one node, what podwire takes for ADD
//! and DEL, what the kernel and OVS alone would take (the floor), and what users have today.
//!
//! From the top: [`cells`] are the situations that are measured, [`subject`] is who is measured in
//! them, [`run`] is how, [`bars`] are the promised ratios, [`report`] is the output, and
//! [`verdict`] combines several runs. Times of different runs, or machines, do not compare; ratios
//! within a run do.

pub mod ahead;
pub mod bars;
pub mod cells;
pub mod cpu;
pub mod error;
pub mod exec;
pub mod group_commit;
pub mod machine;
pub mod netlink;
pub mod ovn;
pub mod ovsdb;
pub mod perf;
pub mod profile;
pub mod report;
pub mod run;
pub mod sample;
pub mod seat;
pub mod stage;
pub mod subject;
pub mod switch;
pub mod verdict;
