//! The INI dialect of ovn-kubernetes' files, which is that of git-config as the Go package gcfg
//! reads it.
//!
//! `[section]` or `[section "subsection"]`, then one `name = value` per line. `;` and `#` begin a
//! comment, except within quotes. A value may be quoted partly or wholly. Within quotes, `\"`,
//! `\\`, `\n` and `\t` are escapes; outside of them, a backslash is special only at the end of a
//! line, where the value continues on the next one. Names consist of letters, digits and `-`; case
//! is ignored. A name without `=` has the value true.

use std::iter::Peekable;
use std::str::Chars;

use super::super::layers::Wrong;

/// A name with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The section's name, in lower case, with the subsection as written.
    pub(super) section: String,
    /// The name, in lower case.
    pub(super) name: String,
    /// The value, unquoted; None without `=`.
    pub(super) value: Option<String>,
    /// The line of the name, from 1.
    pub(super) line: usize,
}

/// Parses a whole file.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, Wrong> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut scanner = Scanner {
        rest: text.chars().peekable(),
        line: 1,
    };
    let mut section: Option<String> = None;
    let mut entries = Vec::new();
    while let Some(next) = scanner.skip_blank() {
        match next {
            '\n' => drop(scanner.next()),
            ';' | '#' => scanner.skip_comment(),
            '[' => section = Some(scanner.header()?),
            letter if letter.is_alphabetic() => {
                let Some(section) = section.clone() else {
                    return Err(scanner.wrong("expected a [section] before the first name"));
                };
                entries.push(scanner.entry(section)?);
            }
            other => {
                let problem = format!("expected [section] or a name, and not {other:?}");
                return Err(scanner.wrong(&problem));
            }
        }
    }
    Ok(entries)
}

struct Scanner<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl Scanner<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    /// Skips spaces; returns the next character.
    fn skip_blank(&mut self) -> Option<char> {
        while self.rest.next_if(|c| is_blank(*c)).is_some() {}
        self.rest.peek().copied()
    }

    fn skip_comment(&mut self) {
        while self.rest.next_if(|c| *c != '\n').is_some() {}
    }

    fn header(&mut self) -> Result<String, Wrong> {
        self.next();
        self.skip_blank();
        let mut section = self.name();
        if section.is_empty() {
            return Err(self.wrong("expected a section's name after ["));
        }
        if self.skip_blank() == Some('"') {
            self.next();
            let subsection = self.quoted()?;
            section = format!("{section} {subsection:?}");
        }
        if self.skip_blank() != Some(']') {
            return Err(self.wrong("expected ] after a section's name"));
        }
        self.next();
        self.end_of_line()?;
        Ok(section)
    }

    fn entry(&mut self, section: String) -> Result<Entry, Wrong> {
        let line = self.line;
        let name = self.name();
        let value = match self.skip_blank() {
            Some('=') => {
                self.next();
                Some(self.value()?)
            }
            None | Some('\n' | ';' | '#') => None,
            Some(_) => return Err(self.wrong(&format!("expected = after {name}"))),
        };
        Ok(Entry {
            section,
            name,
            value,
            line,
        })
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(next) = self.rest.next_if(|c| c.is_alphanumeric() || *c == '-') {
            name.extend(next.to_lowercase());
        }
        name
    }

    fn value(&mut self) -> Result<String, Wrong> {
        self.skip_blank();
        let mut value = String::new();
        // The end of the value: after the last character that is quoted or no space.
        let mut end = 0;
        while let Some(next) = self.rest.next_if(|c| !matches!(c, '\n' | ';' | '#')) {
            match next {
                '"' => {
                    value.push_str(&self.quoted()?);
                    end = value.len();
                }
                '\\' => {
                    self.rest.next_if_eq(&'\r');
                    if self.next() != Some('\n') {
                        return Err(
                            self.wrong("a \\ outside of quotes must be at the end of the line")
                        );
                    }
                }
                '\r' => {}
                other => {
                    value.push(other);
                    if !is_blank(other) {
                        end = value.len();
                    }
                }
            }
        }
        value.truncate(end);
        Ok(value)
    }

    /// The text between quotes, after the opening one.
    fn quoted(&mut self) -> Result<String, Wrong> {
        let mut text = String::new();
        while let Some(next) = self.rest.next_if(|c| *c != '\n') {
            text.push(match next {
                '"' => return Ok(text),
                '\\' => match self.rest.next_if(|c| matches!(c, '"' | '\\' | 'n' | 't')) {
                    Some('n') => '\n',
                    Some('t') => '\t',
                    Some(same) => same,
                    None => {
                        return Err(self.wrong(
                            "within quotes, \\ must be followed by \", \\, n \
                                                   or t",
                        ));
                    }
                },
                other => other,
            });
        }
        Err(self.wrong("a quote is not closed on its line"))
    }

    fn end_of_line(&mut self) -> Result<(), Wrong> {
        match self.skip_blank() {
            None | Some('\n' | ';' | '#') => Ok(()),
            Some(_) => Err(self.wrong("expected the end of the line after ]")),
        }
    }

    fn wrong(&self, problem: &str) -> Wrong {
        Wrong {
            line: Some(self.line),
            problem: problem.to_owned(),
        }
    }
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(line: &str) -> Result<Option<String>, String> {
        let text = format!("[s]\nname{line}\n");
        match parse(&text) {
            Ok(mut entries) => Ok(entries.remove(0).value),
            Err(wrong) => Err(wrong.problem),
        }
    }

    #[test]
    fn values_are_quoted_and_continued_as_gcfg_has_it() {
        let cases = [
            (" = plain", Some("plain")),
            ("=a b  ; comment", Some("a b")),
            ("=a#comment", Some("a")),
            ("=\"a ; b # c\"", Some("a ; b # c")),
            ("=pre\" mid \"post", Some("pre mid post")),
            ("=\"\\\"q\\\" \\\\ \\t|\\n\"", Some("\"q\" \\ \t|\n")),
            ("=one \\\ntwo", Some("one two")),
            ("=\" kept \"", Some(" kept ")),
            ("=a\r", Some("a")),
            ("=", Some("")),
            ("=\"\"", Some("")),
            ("", None),
            (" ; comment", None),
            (
                "=ssl:1.2.3.4:6641,ssl:[::1]:6641",
                Some("ssl:1.2.3.4:6641,ssl:[::1]:6641"),
            ),
            ("=a=b", Some("a=b")),
        ];
        for (line, expected) in cases {
            assert_eq!(value(line).unwrap().as_deref(), expected, "{line:?}");
        }
        for bad in ["=\"open", "=a\\b", "=\"\\x\"", "=\"two\nlines\"", " value"] {
            assert!(value(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn names_and_sections_are_compared_without_case_and_lines_are_counted() {
        let entries = parse("\u{feff}; top\n\n[Default]\nMTU=1\n[ovn \"Sub\"] # c\nA-b=2").unwrap();
        let found: Vec<_> = entries
            .iter()
            .map(|entry| (entry.section.as_str(), entry.name.as_str(), entry.line))
            .collect();
        assert_eq!(found, [("default", "mtu", 4), ("ovn \"Sub\"", "a-b", 6)]);
        for bad in ["a=1", "[", "[]", "[a b]", "[a]x", "[a]\n=1", "[a \"b]"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
