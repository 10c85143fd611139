//! Which of the product's crates may have unsafe code. What it argues is clippy's to check
//! (`undocumented_unsafe_blocks`).

use std::fs;

use podwire_tests::source::{CRATES, root};

/// It speaks to the kernel.
const MAY: &str = "agent/netns";

#[test]
fn all_crates_but_that_of_the_kernel_forbid_unsafe_code() {
    let mut found = 0;
    for name in CRATES.iter().filter(|name| **name != MAY) {
        for file in ["lib.rs", "main.rs", "main_faults.rs"] {
            let file = root().join(name).join("src").join(file);
            let Ok(text) = fs::read_to_string(&file) else {
                continue;
            };
            let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
            assert!(forbids, "{} allows unsafe code", file.display());
            found += 1;
        }
    }
    assert!(found >= CRATES.len(), "found {found} roots of crates only");
}
