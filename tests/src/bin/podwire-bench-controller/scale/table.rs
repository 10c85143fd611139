//! The numbers as text.

use std::time::Duration;

use super::measure::Measured;

/// Mean, median and 99th percentile of sorted durations, in ms.
pub(crate) fn summary(sorted: &[Duration]) -> [f64; 3] {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    let at = |percent: usize| {
        let place = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
        sorted.get(place).copied().map_or(0.0, ms)
    };
    let count = u32::try_from(sorted.len()).unwrap_or(u32::MAX).max(1);
    let mean = ms(sorted.iter().sum::<Duration>() / count);
    [mean, at(50), at(99)]
}

/// One size. The last number of a line is its mean processor time by that of the first rows.
pub(crate) fn print(pods: u32, measured: &[Measured]) {
    let Some(first) = measured.first() else {
        return;
    };
    println!("OVN {}, {pods} pods", first.version);
    println!(
        "{:26}{:22}{:>27}{:>27}{:>8}{:>8}{:>7}",
        "ms: mean, p50, p99",
        "",
        "processor time of northd",
        "until southbound",
        "northd",
        "lflow",
        ""
    );
    for (place, own) in first.changes.iter().enumerate() {
        for one in measured {
            let changes = &one.changes[place];
            let [processor, wall] = [&changes.processor, &changes.wall].map(|it| summary(it));
            let triple = |[mean, p50, p99]: [f64; 3]| format!("{mean:9.2}{p50:9.2}{p99:9.2}");
            let ratio = processor[0] / summary(&own.processor)[0];
            println!(
                "{:26}{:22}{}{}{:>8}{:>8}{ratio:>7.2}",
                changes.kind,
                one.name,
                triple(processor),
                triple(wall),
                changes.northd,
                changes.lflow
            );
        }
    }
    for one in measured {
        println!("{}:", one.name);
        for (name, number, unit) in &one.figures {
            println!("    {name:40}{number:>10.2} {unit}");
        }
    }
}
