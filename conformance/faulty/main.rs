//! A small CNI plugin that does everything right, unless told to do one thing wrong.
//!
//! It is what the suite's tests judge: without a fault every case must pass, and for every case
//! there is a fault that turns it red. By its configuration (`role`) it is also a plugin that
//! adjusts another's interface, or one that manages addresses. The fault comes by the environment
//! (`FAULTY_CNI`), so that VERSION can have one too.

mod attachments;
mod delegate;
mod request;
mod result;
mod roles;
mod verbs;

use std::process::ExitCode;

use serde_json::{Value, json};

/// An error as the plugin prints it.
#[derive(Debug)]
pub(crate) struct Failed {
    code: u64,
    msg: String,
}

pub(crate) type Done<T = ()> = Result<T, Failed>;

impl Failed {
    pub(crate) fn new(code: u64, msg: impl Into<String>) -> Failed {
        Failed {
            code,
            msg: msg.into(),
        }
    }
}

impl From<std::io::Error> for Failed {
    fn from(error: std::io::Error) -> Failed {
        Failed::new(5, error.to_string())
    }
}

/// Whether it is to have this fault.
pub(crate) fn fault(name: &str) -> bool {
    std::env::var_os("FAULTY_CNI").is_some_and(|fault| fault == name)
}

fn main() -> ExitCode {
    let (version, done) = request::serve();
    match done {
        Ok(None) => ExitCode::SUCCESS,
        Ok(Some(answer)) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(failed) => {
            print(&version, &failed);
            match fault("exits-0-on-error") {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
    }
}

fn print(version: &str, failed: &Failed) {
    if fault("errors-as-text") {
        println!("error {}: {}", failed.code, failed.msg);
        return;
    }
    let mut error = json!({"cniVersion": version, "code": failed.code, "msg": failed.msg});
    if fault("errors-without-version")
        && let Some(members) = error.as_object_mut()
    {
        members.remove("cniVersion");
    }
    println!("{error}");
}

/// The members of an array; none where there is no array.
pub(crate) fn members(array: &Value) -> &[Value] {
    array.as_array().map_or(&[], Vec::as_slice)
}
