//! Colours, which are used on terminals only (<https://no-color.org>).

use std::io::{self, IsTerminal as _};

use clap::ValueEnum;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum When {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Adds colours to text, or does not.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    on: bool,
}

impl Paint {
    pub(super) fn of_stdout(when: When) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let on = match when {
            When::Always => true,
            When::Never => false,
            When::Auto => io::stdout().is_terminal() && !no_color,
        };
        Self { on }
    }

    /// No colours.
    pub(super) const PLAIN: Self = Self { on: false };

    pub(super) fn good(self, text: &str) -> String {
        self.with("32", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.with("1;31", text)
    }

    pub(super) fn doubtful(self, text: &str) -> String {
        self.with("33", text)
    }

    pub(super) fn strong(self, text: &str) -> String {
        self.with("1", text)
    }

    pub(super) fn faint(self, text: &str) -> String {
        self.with("2", text)
    }

    pub(super) fn command(self, text: &str) -> String {
        self.with("36", text)
    }

    fn with(self, code: &str, text: &str) -> String {
        if self.on && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }
}

/// The terminal's columns; without a terminal, those of a line of text.
pub(super) fn width() -> usize {
    terminal_size::terminal_size_of(io::stdout()).map_or(100, |(width, _)| width.0.into())
}

/// The terminal's lines, if there is one.
pub(super) fn height() -> Option<usize> {
    terminal_size::terminal_size_of(io::stdout()).map(|(_, height)| height.0.into())
}

/// Removes from names and messages what a terminal would take for commands.
pub(super) fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(shown).collect()
}

/// A container id, shortened as runtimes' own tools do.
pub(super) fn short_id(container: &str) -> String {
    container.chars().take(12).collect()
}

/// A pod's name; if the runtime passed none, its container's id in parentheses.
pub(super) fn pod_or_container(pod: Option<&str>, container: Option<&str>) -> String {
    match (pod, container) {
        (Some(pod), _) => pod.to_owned(),
        (None, Some(container)) if !container.is_empty() => format!("({})", short_id(container)),
        (None, _) => "-".to_owned(),
    }
}

/// The text, shortened to this many characters.
pub(super) fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{kept}…")
}

/// The text in lines of at most this many characters, broken at spaces if possible.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut line = String::new();
    for word in text.split(' ') {
        let would_be = line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && would_be > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_a_message_do_not_reach_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\n"), "a\u{fffd}[2Jb\u{fffd}");
    }

    #[test]
    fn long_texts_are_cut_or_broken_at_spaces() {
        assert_eq!(shortened("namespace/pod", 6), "names…");
        assert_eq!(shortened("ab", 2), "ab");
        assert_eq!(wrapped("a bc def g", 4), ["a bc", "def", "g"]);
        assert_eq!(wrapped("unbroken", 3), ["unbroken"]);
    }

    #[test]
    fn without_colour_nothing_is_added() {
        assert_eq!(Paint::PLAIN.bad("x"), "x");
        assert_eq!(Paint { on: true }.good("x"), "\x1b[32mx\x1b[0m");
        assert_eq!(Paint { on: true }.good(""), "");
    }
}
