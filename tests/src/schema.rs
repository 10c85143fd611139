//! What docs/tools.schema.json says of the tools' answers.

use jsonschema::Validator;
use serde_json::{Value, json};

/// The whole schema.
#[must_use]
pub fn schema() -> Value {
    let text = include_str!("../../docs/tools.schema.json");
    serde_json::from_str(text).expect("the schema is JSON")
}

/// That of one command's answer.
#[must_use]
pub fn validator(name: &str) -> Validator {
    let mut schema = schema();
    schema["$ref"] = json!(format!("#/$defs/{name}"));
    jsonschema::validator_for(&schema).expect("it is a schema")
}

/// Asserts that an answer is what the schema says, field by field.
///
/// # Panics
/// It is not.
#[track_caller]
pub fn assert_valid(name: &str, value: &Value) {
    let validator = validator(name);
    let errors: Vec<String> = validator
        .iter_errors(value)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(errors.is_empty(), "{name}: {errors:#?}\n{value:#}");
}
