//! `kubernetes.io/ingress-bandwidth` and `kubernetes.io/egress-bandwidth`: limits of a pod's
//! traffic, each a Kubernetes quantity in bit/s such as `10M`, from the pod's point of view:
//! ingress is what it receives.
//!
//! Kubernetes accepts 1k to 1P and refuses a pod with anything else; so does podwire. A fraction of
//! a bit is rounded up.

use std::collections::BTreeMap;

use super::annotation::{AnnotationError, Problem};
use crate::plan::Bandwidth;

/// The limit for received traffic.
pub const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
/// The limit for sent traffic.
pub const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// The minimum, in bit/s.
const LEAST: u64 = 1_000;
/// The maximum, in bit/s.
const MOST: u64 = 1_000_000_000_000_000;

/// Parses both from a pod's annotations.
///
/// # Errors
/// A value is no quantity, or out of range.
pub fn parse(annotations: &BTreeMap<String, String>) -> Result<Bandwidth, AnnotationError> {
    let limit = |name: &'static str| {
        let value = annotations.get(name)?;
        Some(parse_limit(value).ok_or_else(|| AnnotationError {
            annotation: name,
            network: None,
            field: None,
            value: Some(format!("{value:?}").into()),
            problem: Problem::Bandwidth,
        }))
    };
    Ok(Bandwidth {
        ingress_rate: limit(INGRESS).transpose()?,
        egress_rate: limit(EGRESS).transpose()?,
    })
}

fn parse_limit(text: &str) -> Option<u64> {
    let value = parse_quantity(text)?;
    (LEAST..=MOST).contains(&value).then_some(value)
}

/// A Kubernetes quantity (`resource.Quantity`), rounded up: digits with at most one point, then a
/// decimal suffix, a binary suffix or an exponent. `None` also for a minus sign and for more digits
/// than anybody needs.
fn parse_quantity(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let (factor, exponent) = scale(suffix)?;
    // Rejects a second point, and a text without digits.
    let digits: u128 = format!("{whole}{fraction}").parse().ok()?;
    let mantissa = digits.checked_mul(factor)?;
    let exponent = exponent.checked_sub(i32::try_from(fraction.len()).ok()?)?;
    let power = 10u128.checked_pow(exponent.unsigned_abs())?;
    let value = if exponent < 0 {
        mantissa.div_ceil(power)
    } else {
        mantissa.checked_mul(power)?
    };
    u64::try_from(value).ok()
}

/// A suffix's multiplier: a factor, and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let scale = match suffix {
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "" => (1, 0),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        exponent => (1, exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
    };
    Some(scale)
}

#[cfg(test)]
mod tests;
