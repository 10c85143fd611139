//! Progress on the terminal: a line for each step as it ends, coloured only where that can be seen.

use std::any::Any;
use std::io::{IsTerminal, Write, stdout};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use podwire_tests::Failure;

const TITLE_WIDTH: usize = 66;

/// Where the demo tells what it does.
pub(crate) struct Stage {
    terminal: bool,
}

impl Stage {
    /// Standard output.
    pub(crate) fn new() -> Stage {
        Stage {
            terminal: stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
        }
    }

    /// Does a step and says how it went; its second value is a remark for the line's end.
    pub(crate) fn step<T>(
        &self,
        title: &str,
        work: impl FnOnce() -> Result<(T, String), Failure>,
    ) -> Result<T, ()> {
        if self.terminal {
            self.print(&format!("  … {title}"));
        }
        let started = Instant::now();
        let done = caught(work);
        if self.terminal {
            self.print("\r\x1b[K");
        }
        match done {
            Ok((value, remark)) => {
                let remark = if remark.is_empty() {
                    milliseconds(started.elapsed())
                } else {
                    remark
                };
                self.say(&format!(
                    "  {} {title:TITLE_WIDTH$}  {}",
                    self.green("✓"),
                    self.dim(&remark)
                ));
                Ok(value)
            }
            Err(failure) => {
                self.say(&format!("  {} {title}\n    {failure}", self.red("✗")));
                Err(())
            }
        }
    }

    /// Does something that is worth a line only when it fails.
    pub(crate) fn silent<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, ()> {
        caught(work).map_err(|failure| self.say(&format!("  {} {failure}", self.red("✗"))))
    }

    /// Prints a text of its own.
    pub(crate) fn say(&self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    fn print(&self, text: &str) {
        // A reader that has gone away (`make demo | head`) must not keep the demo from its end.
        let mut out = stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn green(&self, text: &str) -> String {
        self.coloured("32", text)
    }

    fn red(&self, text: &str) -> String {
        self.coloured("31", text)
    }

    fn dim(&self, text: &str) -> String {
        self.coloured("2", text)
    }

    fn coloured(&self, code: &str, text: &str) -> String {
        if self.terminal {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// What a step came to: a failure of its own, or the panic of a fixture.
fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, String> {
    let message = |panic: Box<dyn Any + Send>| match panic.downcast::<String>() {
        Ok(message) => *message,
        Err(_) => "a fixture panicked".to_owned(),
    };
    let done = catch_unwind(AssertUnwindSafe(work)).map_err(message)?;
    done.map_err(|failure| failure.to_string())
}

/// A duration as the demo shows it.
pub(crate) fn milliseconds(duration: Duration) -> String {
    format!("{:.1} ms", duration.as_secs_f64() * 1e3)
}
