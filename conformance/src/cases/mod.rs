//! The cases, by subject.
//!
//! Each group's file begins with its table: a case's name, the sentence of the specification that
//! it checks, and its level in each version. The tests follow in the table's order.

mod add;
mod attachment;
mod chain;
mod check;
mod concurrency;
mod configuration;
mod del;
mod environment;
mod error;
mod gc;
mod ipam;
mod result;
mod status;
mod version;

use serde_json::Value;

use crate::case::{Case, Held, Levels, require};
use crate::spec::Level::{Must, Should};
use crate::spec::Version::{V0_3_0, V0_4_0, V1_0_0, V1_1_0};
use crate::subject::Kind;

const MUST: Levels = &[(V0_3_0, Must)];
const MUST_SINCE_0_4: Levels = &[(V0_4_0, Must)];
const MUST_SINCE_1_0: Levels = &[(V1_0_0, Must)];
const MUST_SINCE_1_1: Levels = &[(V1_1_0, Must)];
const SHOULD: Levels = &[(V0_3_0, Should)];
const SHOULD_SINCE_0_4: Levels = &[(V0_4_0, Should)];
const SHOULD_SINCE_1_0: Levels = &[(V1_0_0, Should)];
const SHOULD_SINCE_1_1: Levels = &[(V1_1_0, Should)];

/// A SHOULD that 1.0.0 made a MUST.
const SHOULD_THEN_MUST: Levels = &[(V0_3_0, Should), (V1_0_0, Must)];
const SHOULD_SINCE_0_4_THEN_MUST: Levels = &[(V0_4_0, Should), (V1_0_0, Must)];

const EVERY_KIND: &[Kind] = &[Kind::Interface, Kind::Chained, Kind::Ipam];
const WITH_INTERFACE: &[Kind] = &[Kind::Interface, Kind::Chained];
const WITH_ADDRESSES: &[Kind] = &[Kind::Interface, Kind::Ipam];

/// Every case, in the order in which they are run and told.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [
        version::CASES,
        environment::CASES,
        configuration::CASES,
        error::CASES,
        add::CASES,
        result::CASES,
        attachment::CASES,
        chain::CASES,
        del::CASES,
        check::CASES,
        concurrency::CASES,
        ipam::CASES,
        status::CASES,
        gc::CASES,
    ]
    .into_iter()
    .flatten()
}

/// The members of an array; none where there is no array.
fn members(array: &Value) -> &[Value] {
    array.as_array().map_or(&[], Vec::as_slice)
}

/// Nothing may be left.
fn nothing_left(left: &[String], after: &str) -> Held {
    require(left.is_empty(), || {
        format!("left on the host after {after}: {}", left.join(", "))
    })
}
