//! The controller against a real northbound database and ovn-northd, and the tests' API server.

#![allow(clippy::unwrap_used, reason = "a test's panic is its report")]

mod cutting;
mod delays;
mod external_addresses;
mod failures;
mod fixture;
mod flood;
mod gateways;
mod history;
mod image;
mod layer3;
mod leading;
mod localnet;
mod logging;
mod members;
mod multi_policies;
mod network_command;
mod networks;
mod nodes;
mod older_rows;
mod packets;
mod pods;
mod policies;
mod policy_command;
mod policy_groups;
mod primary;
mod primary_exits;
mod primary_policies;
mod protection;
mod rbac;
mod round;
mod rows;
mod services;
mod subnets;
mod successor;
mod tiered;
mod tools;
mod unreadable;
mod user_networks;
