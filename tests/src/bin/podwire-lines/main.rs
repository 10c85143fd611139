//! `podwire-lines`: the product's lines of code by crate and room, without blank lines, comments,
//! documentation and tests.

use std::collections::BTreeMap;

use podwire_tests::source::{CRATES, Module};

fn main() {
    let mut total = 0;
    for name in CRATES {
        let mut rooms: BTreeMap<String, usize> = BTreeMap::new();
        for module in Module::of_crate(name) {
            let room = module.path.first().cloned().unwrap_or_default();
            *rooms.entry(room).or_default() += module.lines();
        }
        let sum: usize = rooms.values().sum();
        println!("{sum:7}  {name}");
        for (room, lines) in rooms {
            println!("{lines:7}    {name}/{room}");
        }
        total += sum;
    }
    println!("{total:7}  total");
}
