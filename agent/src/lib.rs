//! The podwire node agent, one room for each of its concerns. A request flows downward, and no room
//! imports one above it: [`install`], [`server`], [`inspect`], [`reconcile`], [`attach`], [`pods`],
//! [`ipam`], [`plan`], [`flows`], [`ports`], [`journal`], [`observe`],
//! [`config`].

#![forbid(unsafe_code)]

pub mod asking;
pub mod attach;
pub mod config;
pub mod duration;
pub mod fault;
pub mod flows;
pub mod inspect;
pub mod install;
pub mod ipam;
pub mod journal;
pub mod observe;
pub mod plan;
pub mod pods;
pub mod ports;
pub mod reconcile;
pub mod run;
pub mod server;
pub mod service;
