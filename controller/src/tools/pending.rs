//! What a leader would change now.

use std::fmt;

use podwire_daemon::output::Format;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::{ToolError, View};
use crate::config::Config;

/// All of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changes {
    /// The chassis that are removed from the southbound database first.
    removed_chassis: Vec<String>,
    /// The transaction in the northbound database (RFC 7047, section 5.2).
    #[serde(serialize_with = "as_values")]
    operations: Vec<String>,
    /// To Kubernetes, after it.
    writes: Vec<KubernetesWrite>,
}

#[derive(Debug, Serialize)]
struct KubernetesWrite {
    object: String,
    write: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    content: Value,
}

/// What a leader would do now; true if that is nothing.
///
/// # Errors
/// See [`ToolError`].
pub async fn dry_run(config: &Config, format: Format) -> Result<(String, bool), ToolError> {
    let step = View::open(config).await?.pending();
    let writes = step.writes.iter().map(|(key, write)| {
        let (write, name, content) = write.described(key);
        KubernetesWrite {
            object: key.to_string(),
            write,
            name,
            content,
        }
    });
    let changes = Changes {
        removed_chassis: step.chassis.into_iter().map(|(_, name)| name).collect(),
        operations: step.transaction.to_json()?,
        writes: writes.collect(),
    };
    let is_none = changes.removed_chassis.is_empty()
        && changes.operations.is_empty()
        && changes.writes.is_empty();
    let text = format.encode(&changes, || changes.to_string());
    Ok((text.map_err(ToolError::Format)?, is_none))
}

fn as_values<S: Serializer>(operations: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    let values = operations.iter().map(|it| serde_json::from_str(it));
    let values: Result<Vec<Value>, _> = values.collect();
    values
        .map_err(serde::ser::Error::custom)?
        .serialize(serializer)
}

/// For people: one operation or write a line.
impl fmt::Display for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chassis in &self.removed_chassis {
            writeln!(f, "# Chassis {chassis} is removed from OVN_Southbound")?;
        }
        writeln!(
            f,
            "# {} operations in OVN_Northbound",
            self.operations.len()
        )?;
        for operation in &self.operations {
            writeln!(f, "{operation}")?;
        }
        writeln!(f, "# {} writes to Kubernetes", self.writes.len())?;
        for KubernetesWrite {
            object,
            write,
            name,
            content,
        } in &self.writes
        {
            write!(f, "{object}: {write}")?;
            if let Some(name) = name {
                write!(f, " {name}")?;
            }
            match content {
                Value::Null => writeln!(f)?,
                Value::String(text) => writeln!(f, " {text}")?,
                json => writeln!(f, " {json}")?,
            }
        }
        Ok(())
    }
}
