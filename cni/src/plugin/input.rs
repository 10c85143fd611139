//! The configuration on stdin, within a size limit and a deadline.

use std::io;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::unistd;
use podwire_cni::spec::{ErrorCode, SpecError};
use podwire_cni::wire::MAX_CONFIG;

use crate::deadline::{Deadline, WaitError};

#[derive(Debug, thiserror::Error)]
pub(crate) enum InputError {
    #[error("reading the network configuration from stdin: {}", .0.desc())]
    Read(Errno),
    #[error(
        "the network configuration on stdin did not end within {} s; {came} bytes arrived",
        .span.as_secs()
    )]
    Expired { span: Duration, came: usize },
    #[error("the network configuration on stdin has more than the {MAX_CONFIG} bytes allowed")]
    TooLarge,
    #[error("the network configuration on stdin is empty")]
    Empty,
    #[error("the network configuration on stdin is not UTF-8 from byte {0} on")]
    NotText(usize),
}

impl From<InputError> for SpecError {
    fn from(error: InputError) -> Self {
        let code = match error {
            InputError::Read(_) | InputError::Expired { .. } => ErrorCode::IO,
            InputError::TooLarge | InputError::Empty | InputError::NotText(_) => ErrorCode::DECODE,
        };
        Self::new(code, error.to_string())
    }
}

/// Reads stdin to its end.
pub(crate) fn configuration(deadline: Deadline) -> Result<String, InputError> {
    let stdin = io::stdin();
    let mut conf = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        match deadline.wait(&stdin, PollFlags::POLLIN) {
            Ok(()) => {}
            Err(WaitError::Poll(errno)) => return Err(InputError::Read(errno)),
            Err(WaitError::Expired) => {
                return Err(InputError::Expired {
                    span: deadline.span,
                    came: conf.len(),
                });
            }
        }
        match unistd::read(&stdin, &mut chunk) {
            Ok(0) => break,
            Ok(length) => {
                if length == chunk.len() && conf.is_empty() {
                    // All the space at once, since untouched pages are free; doubling would leave
                    // the smaller copies resident.
                    conf.reserve_exact(MAX_CONFIG + chunk.len());
                }
                conf.extend_from_slice(&chunk[..length]);
            }
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(errno) => return Err(InputError::Read(errno)),
        }
        if conf.len() > MAX_CONFIG {
            return Err(InputError::TooLarge);
        }
    }
    // RawValue::from_string copies what has space around it.
    conf.truncate(conf.trim_ascii_end().len());
    if conf.is_empty() {
        return Err(InputError::Empty);
    }
    String::from_utf8(conf).map_err(|error| InputError::NotText(error.utf8_error().valid_up_to()))
}
