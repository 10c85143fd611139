//! A text table whose columns are as wide as their content.

/// Formats rows under their headings, if there are any. Widths are computed before `paint(row,
/// column, text)` adds colours.
pub(super) fn table<const N: usize>(
    headings: Option<[&str; N]>,
    rows: &[[String; N]],
    paint: impl Fn(usize, usize, &str) -> String,
) -> String {
    let mut widths = headings
        .unwrap_or([""; N])
        .map(|heading| heading.chars().count());
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    let mut line = |cells: [&str; N], painted: &dyn Fn(usize, &str) -> String| {
        let start = text.len();
        for (column, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let padding = width - cell.chars().count();
            text.push_str(&painted(column, cell));
            text.extend(std::iter::repeat_n(' ', padding + 2));
        }
        let end = text[start..].trim_end().len();
        text.truncate(start + end);
        text.push('\n');
    };
    if let Some(headings) = headings {
        line(headings, &|_, cell| cell.to_owned());
    }
    for (number, row) in rows.iter().enumerate() {
        let cells = std::array::from_fn(|column| row[column].as_str());
        line(cells, &|column, cell| paint(number, column, cell));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell_and_lines_end_with_text() {
        let rows = [["a", "1"], ["longer", ""]].map(|row| row.map(str::to_owned));
        let text = |headings| table(headings, &rows, |_, _, cell| cell.to_owned());
        assert_eq!(text(Some(["POD", "IP"])), "POD     IP\na       1\nlonger\n");
        assert_eq!(text(None), "a       1\nlonger\n");
    }
}
