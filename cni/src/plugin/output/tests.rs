use std::env;
use std::process::Command;

use super::*;

/// Set for the child process that the test makes of itself.
const CHILD: &str = "PODWIRE_TEST_PANICS";

#[test]
fn a_panic_ends_as_an_error_object_and_exit_code_1() {
    if env::var_os(CHILD).is_some() {
        report_panics();
        panic!("a \"bug\"");
    }
    let output = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "output::tests::a_panic_ends_as_an_error_object_and_exit_code_1",
            "--nocapture",
        ])
        .env(CHILD, "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(FAILURE));
    // The test harness has printed before it.
    let stdout = String::from_utf8(output.stdout).unwrap();
    let start = stdout.find("{\"").unwrap();
    let error = SpecError::from_json(&stdout.as_bytes()[start..]).unwrap();
    assert_eq!(
        (error.code, error.details.as_str()),
        (ErrorCode::INTERNAL, "a \"bug\"")
    );
    assert!(error.msg.contains("output/tests.rs:"), "{}", error.msg);
}
