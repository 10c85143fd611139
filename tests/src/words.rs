//! Command lines as tests write them.

/// The arguments of a program.
///
/// A string is a line of words as it is typed: `'…'` around a whole word keeps the spaces in it. A
/// slice holds the words themselves.
pub trait Words: Sized {
    /// The words.
    fn words(self) -> Vec<String>;

    /// The words of `line`, and then these.
    fn after(self, line: &str) -> Vec<String> {
        let mut words = line.words();
        words.extend(self.words());
        words
    }
}

impl Words for &str {
    fn words(self) -> Vec<String> {
        let mut words = Vec::new();
        for (position, part) in self.split('\'').enumerate() {
            if position % 2 == 1 {
                words.push(part.to_owned());
            } else {
                words.extend(part.split_whitespace().map(str::to_owned));
            }
        }
        words
    }
}

impl Words for &String {
    fn words(self) -> Vec<String> {
        self.as_str().words()
    }
}

impl Words for String {
    fn words(self) -> Vec<String> {
        self.as_str().words()
    }
}

impl Words for Vec<String> {
    fn words(self) -> Vec<String> {
        self
    }
}

impl<W: AsRef<str>> Words for &Vec<W> {
    fn words(self) -> Vec<String> {
        self.as_slice().words()
    }
}

impl<W: AsRef<str>> Words for &[W] {
    fn words(self) -> Vec<String> {
        self.iter().map(|word| word.as_ref().to_owned()).collect()
    }
}

impl<W: AsRef<str>, const COUNT: usize> Words for [W; COUNT] {
    fn words(self) -> Vec<String> {
        self.as_slice().words()
    }
}

impl<W: AsRef<str>, const COUNT: usize> Words for &[W; COUNT] {
    fn words(self) -> Vec<String> {
        self.as_slice().words()
    }
}
