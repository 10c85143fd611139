//! podwire's own file: TOML. Each key is a setting of the agent and, if it has one with the same
//! name, of the node role; the table `[node]` is for the role only. Any other key is refused: a
//! mistyped key would silently do nothing.

use std::collections::BTreeMap;
use std::path::Path;

use toml::{Spanned, Value};

use super::super::layers::{Given, Layer, Origin, Parsed, Wrong};
use super::super::settings::{Kind, Setting, Settings};

pub(super) fn parse(text: &str, path: &Path, settings: &Settings) -> Parsed {
    let line_of = |at: usize| {
        text.get(..at)
            .map(|before| before.matches('\n').count() + 1)
    };
    // The error's own text quotes the line, which may contain a token.
    let entries: BTreeMap<String, Spanned<Value>> =
        toml::from_str(text).map_err(|error| Wrong {
            line: error.span().and_then(|span| line_of(span.start)),
            problem: error.message().to_owned(),
        })?;
    let agents = settings.of_node.then(Settings::of_agent);
    let mut layer = Layer::new();
    let mut take = |key: &str, line: Option<usize>, value: Value| -> Result<(), Wrong> {
        let shown = match line {
            Some(_) => key.to_owned(),
            None => format!("[{NODE}] {key}"),
        };
        let wrong = |problem| Wrong { line, problem };
        let setting = settings
            .find(key)
            .ok_or_else(|| wrong(unknown(key, settings)))?;
        let values = values(setting, value)
            .map_err(|expected| wrong(format!("{shown}: expected {expected}")))?;
        let origin = Origin::File {
            path: path.to_owned(),
            key: shown,
            line,
        };
        layer.insert(key.to_owned(), Given { values, origin });
        Ok(())
    };
    let mut of_node = toml::Table::new();
    let mut of_bridges = None;
    for (key, value) in entries {
        let line = line_of(value.span().start);
        match (value.into_inner(), &agents) {
            (Value::Table(table), _) if key == NODE => of_node = table,
            (Value::Array(tables), _) if key == BRIDGE && tables.iter().all(Value::is_table) => {
                let bridges = tables
                    .into_iter()
                    .map(bridge)
                    .collect::<Result<Vec<_>, _>>();
                let bridges = bridges.map_err(|problem| Wrong { line, problem })?;
                if let Some(setting) = settings.find(DATA_BRIDGES).filter(|_| settings.of_node) {
                    of_bridges = Some((setting.key.clone(), line, bridges));
                }
            }
            (_, Some(agents)) if agents.find(&key).is_some() && !is_shared(&key, settings) => {}
            (value, _) => take(&key, line, value)?,
        }
    }
    // The more specific one counts.
    for (key, value) in of_node.into_iter().filter(|_| settings.of_node) {
        take(&key, None, value)?;
    }
    if let Some((key, line, values)) = of_bridges {
        let origin = Origin::File {
            path: path.to_owned(),
            key: format!("[[{BRIDGE}]]"),
            line,
        };
        layer.insert(key, Given { values, origin });
    }
    Ok((layer, Vec::new()))
}

/// The tables of bridges that the node role makes, and its setting for them.
const BRIDGE: &str = "bridge";
const DATA_BRIDGES: &str = "data-bridges";

/// One of them in the form of the flag's value, or what is wrong with it.
fn bridge(table: Value) -> Result<String, String> {
    let Value::Table(mut table) = table else {
        return Err(format!("[[{BRIDGE}]]: expected a table"));
    };
    let mut parts = Vec::new();
    for (key, is_needed) in [("name", true), ("nic", true), ("network", false)] {
        match table.remove(key) {
            Some(Value::String(text)) if !text.contains([':', ' ']) => parts.push(text),
            Some(value) => return Err(format!("[[{BRIDGE}]] {key} = {value}: expected a name")),
            None if is_needed => return Err(format!("[[{BRIDGE}]] {key}: it is missing")),
            None => {}
        }
    }
    match table.keys().next() {
        Some(key) => Err(format!(
            "[[{BRIDGE}]]: there is no {key:?}: it has name, nic, network"
        )),
        None => Ok(parts.join(":")),
    }
}

/// The table of the node role.
const NODE: &str = "node";

/// Whether an agent's key means the same to the node role. The two can't serve metrics at one
/// address.
fn is_shared(key: &str, settings: &Settings) -> bool {
    key != "metrics-address" && settings.find(key).is_some()
}

fn unknown(key: &str, settings: &Settings) -> String {
    match settings.nearest(key) {
        Some(nearest) => format!("there is no setting {key:?}; is it {nearest}?"),
        None if settings.of_node => {
            format!("there is no setting {key:?} (podwire node run --help shows all)")
        }
        None => format!("there is no setting {key:?} (podwire agent --print-config shows all)"),
    }
}

/// The values in the form of a flag's, or what is valid.
fn values(setting: &Setting, value: Value) -> Result<Vec<String>, &'static str> {
    match (setting.kind, value) {
        (Kind::List(_), Value::Array(values)) if values.is_empty() => {
            Err("at least one, or no such key")
        }
        (Kind::List(_), Value::Array(values)) => values
            .into_iter()
            .map(|value| scalar(value).ok_or("an array of strings"))
            .collect(),
        (Kind::List(_), value) => one(value).ok_or("a string or an array of strings"),
        (Kind::Switch, value @ Value::Boolean(_)) => Ok(one(value).unwrap_or_default()),
        (Kind::Switch, _) => Err("true or false"),
        (Kind::One, Value::Boolean(_)) => Err("a string or a number"),
        (Kind::One, value) => one(value).ok_or("a string or a number"),
    }
}

fn one(value: Value) -> Option<Vec<String>> {
    scalar(value).map(|value| vec![value])
}

fn scalar(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        Value::Integer(number) => Some(number.to_string()),
        Value::Boolean(is) => Some(is.to_string()),
        Value::Float(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    }
}
