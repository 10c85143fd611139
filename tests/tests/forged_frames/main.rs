//! What a pod may not say is said by one, to pods, to its node and to another node, in both modes
//! and families: nobody hears it, and what stops each of it is as docs/security.md has it.

mod build;
mod catalogue;
mod ears;
mod layers;
mod ovn;
mod plain;
mod scene;
mod services;
