//! Boxes for the terminal, side by side.

/// Lines of text, all of one width.
#[derive(Clone, Debug)]
pub(crate) struct Block(Vec<String>);

impl Block {
    /// A box with a title in its upper edge; boxes may stand in boxes.
    pub(crate) fn titled(title: &str, content: &Block) -> Block {
        let width = content.width().max(title.chars().count() + 2);
        let edge = "─".repeat(width - title.chars().count() - 1);
        let mut lines = vec![format!("┌─ {title} {edge}┐")];
        lines.extend(
            content
                .0
                .iter()
                .map(|line| format!("│ {} │", padded(line, width))),
        );
        lines.push(format!("└{}┘", "─".repeat(width + 2)));
        Block(lines)
    }

    /// Plain lines.
    pub(crate) fn lines<S: Into<String>>(lines: impl IntoIterator<Item = S>) -> Block {
        Block(lines.into_iter().map(Into::into).collect())
    }

    /// One above the other.
    pub(crate) fn above(mut self, below: Block) -> Block {
        self.0.extend(below.0);
        self
    }

    /// One beside the other, with `wire` between their lines number `at`, and as much space between
    /// the others.
    pub(crate) fn beside(&self, right: &Block, wire: &str, at: usize) -> Block {
        let space = " ".repeat(wire.chars().count());
        let (left_width, height) = (self.width(), self.0.len().max(right.0.len()));
        let line = |number: usize| {
            let left = self.0.get(number).map_or("", String::as_str);
            let right = right.0.get(number).map_or("", String::as_str);
            let between = if number == at { wire } else { &space };
            format!("{}{between}{right}", padded(left, left_width))
        };
        Block((0..height).map(line).collect())
    }

    /// A line that comes from above at one column and goes down at two others.
    pub(crate) fn fork(left: usize, from: usize, right: usize) -> Block {
        let run = |from: usize, to: usize| "─".repeat(to.saturating_sub(from + 1));
        let (west, east) = (run(left, from), run(from, right));
        Block::lines([format!("┌{west}┴{east}┐")]).from(left)
    }

    /// With its left edge at a column.
    pub(crate) fn from(self, column: usize) -> Block {
        let indent = " ".repeat(column);
        Block(
            self.0
                .iter()
                .map(|line| format!("{indent}{line}"))
                .collect(),
        )
    }

    /// Centred on a width.
    pub(crate) fn centred(&self, width: usize) -> Block {
        let column = width.saturating_sub(self.width()) / 2;
        self.clone().from(column)
    }

    /// In characters.
    pub(crate) fn width(&self) -> usize {
        self.0
            .iter()
            .map(|line| line.chars().count())
            .max()
            .unwrap_or(0)
    }

    /// The number of the first line that holds this text.
    pub(crate) fn line_with(&self, text: &str) -> usize {
        self.0
            .iter()
            .position(|line| line.contains(text))
            .unwrap_or(0)
    }

    /// As text, indented as the demo's lines are.
    pub(crate) fn text(&self) -> String {
        let lines = self.0.iter().map(|line| format!("  {}\n", line.trim_end()));
        lines.collect()
    }
}

fn padded(line: &str, width: usize) -> String {
    format!("{line:<width$}")
}
