//! Who reaches whom, as a table for the terminal and as a page.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use podwire_tests::Failure;
use serde_json::Value;

use crate::proof::expect;

/// Whether one pod reaches another, and what decides.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) passes: bool,
    /// The rule, or the policies without one.
    decides: String,
}

pub(crate) struct Picture {
    pub(crate) title: String,
    /// Of the pods.
    pub(crate) names: Vec<String>,
    /// By the numbers of sender and receiver.
    pub(crate) cells: BTreeMap<(usize, usize), Cell>,
}

impl Cell {
    /// What `podwire-controller explain` says. Its own decision and ovn-trace's have to agree.
    pub(crate) fn of(text: &str) -> Result<Self, Failure> {
        let line = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            let found = lines.find(|(word, _)| *word == name);
            found.map(|(_, rest)| rest.trim().to_owned())
        };
        let (egress, ingress) = (line("egress"), line("ingress"));
        let reaches = line("reaches");
        let whole = || text.to_owned();
        let is_whole = egress.is_some() && ingress.is_some() && reaches.is_some();
        expect("explain", "both directions and a trace", is_whole, whole)?;
        let ends = [egress.unwrap_or_default(), ingress.unwrap_or_default()];
        let passes = !ends.iter().any(|it| it.contains(": denied"));
        let traced = reaches.unwrap_or_default().contains("): yes");
        expect("explain", "ovn-trace's verdict", passes == traced, whole)?;
        let words = ["egress", "ingress"].into_iter().zip(&ends);
        let said = |part: &str| {
            let mut words = words.clone();
            let found = words.find(|(_, it)| it.contains(part));
            found.map(|(word, it)| format!("{word} {it}"))
        };
        let decides = said(": denied").or_else(|| said(": allowed"));
        Ok(Self {
            passes,
            decides: decides.unwrap_or_else(|| "no policy selects either".to_owned()),
        })
    }
}

impl Picture {
    /// What decides, each with a letter, in the order of the cells.
    fn legend(&self) -> Vec<(char, &str)> {
        let mut found: Vec<&str> = Vec::new();
        for cell in self.cells.values() {
            if !found.contains(&&*cell.decides) {
                found.push(&cell.decides);
            }
        }
        ('a'..).zip(found).collect()
    }

    fn letter(&self, cell: &Cell) -> char {
        let legend = self.legend();
        let own = legend.iter().find(|(_, text)| *text == cell.decides);
        own.map_or('?', |(letter, _)| *letter)
    }
}

/// Rows send, columns receive.
pub(crate) fn text(picture: &Picture) -> String {
    let width = picture.names.iter().map(String::len).max().unwrap_or(0);
    let mut text = format!(
        "\n  {}; rows send, columns receive\n\n  {:width$}",
        picture.title, ""
    );
    for name in &picture.names {
        let _ = write!(text, "  {name:^width$}");
    }
    text.push('\n');
    for (from, name) in picture.names.iter().enumerate() {
        let _ = write!(text, "  {name:width$}");
        for to in 0..picture.names.len() {
            let cell = picture.cells.get(&(from, to)).map(|cell| {
                let mark = if cell.passes { '✓' } else { '✗' };
                format!("{mark} {}", picture.letter(cell))
            });
            let _ = write!(text, "  {:^width$}", cell.unwrap_or_else(|| "·".to_owned()));
        }
        text.push('\n');
    }
    text.push('\n');
    for (letter, decides) in picture.legend() {
        let _ = writeln!(text, "  {letter}  {decides}");
    }
    text
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem;color:#222}\
    table{border-collapse:collapse;margin:1rem 0}th,td{border:1px solid #ccc;padding:.4rem .7rem;\
    text-align:center}th{background:#f4f4f4;font-weight:600}.yes{background:#d8f0dc}\
    .no{background:#f6d5d5}.own{background:#eee}pre{background:#f4f4f4;padding:1rem}\
    .was{outline:2px solid #c33;outline-offset:-2px}";

/// A page without anything from elsewhere.
pub(crate) fn page(pictures: &[Picture; 2], policies: &[Value]) -> String {
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><title>Who reaches whom</title>\
         <style>{STYLE}</style><h1>Who reaches whom</h1>\
         <p>Rows send, columns receive, TCP port 8080. Each cell is podwire-controller's decision \
         and ovn-trace's, and was checked by a packet. Framed: no longer.</p>"
    );
    let before = &pictures[0];
    for picture in pictures {
        let _ = write!(
            html,
            "<h2>{}</h2><table><tr><th></th>",
            escaped(&picture.title)
        );
        for name in &picture.names {
            let _ = write!(html, "<th>{}</th>", escaped(name));
        }
        html.push_str("</tr>");
        for (from, name) in picture.names.iter().enumerate() {
            let _ = write!(html, "<tr><th>{}</th>", escaped(name));
            for to in 0..picture.names.len() {
                let Some(cell) = picture.cells.get(&(from, to)) else {
                    html.push_str("<td class=own></td>");
                    continue;
                };
                let (class, mark) = if cell.passes {
                    ("yes", '✓')
                } else {
                    ("no", '✗')
                };
                let was = before.cells.get(&(from, to)).is_some_and(|it| it.passes);
                let was = if was && !cell.passes { " was" } else { "" };
                let _ = write!(
                    html,
                    "<td class=\"{class}{was}\" title=\"{}\">{mark} {}</td>",
                    escaped(&cell.decides),
                    picture.letter(cell)
                );
            }
            html.push_str("</tr>");
        }
        html.push_str("</table><ul>");
        for (letter, decides) in picture.legend() {
            let _ = write!(html, "<li><b>{letter}</b> {}", escaped(decides));
        }
        html.push_str("</ul>");
    }
    html.push_str("<h2>The policies</h2>");
    for policy in policies {
        let _ = write!(html, "<pre>{}</pre>", escaped(&format!("{policy:#}")));
    }
    html + "</html>\n"
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('"', "&quot;")
}
