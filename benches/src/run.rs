//! How a cell is measured: in rounds, in each of which every subject attaches the same pods and
//! detaches them again, in another order each time, so that a machine that becomes slower does so
//! for all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use podwire_tests::{TestNode, links};
use serde::Serialize;

use crate::cells::Cell;
use crate::cpu::{CpuTimes, daemons};
use crate::error::Error;
use crate::netlink::Wirer;
use crate::sample::{Phase, Sample, micros, waterfall};
use crate::seat::Seat;
use crate::subject::{Subject, Worker};

/// A verb of the three that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach.
    Add,
    /// Compare.
    Check,
    /// Detach.
    Del,
}

/// All that was measured of one subject in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Whose.
    pub subject: &'static str,
    /// ADDs.
    pub add: Vec<Sample>,
    /// CHECKs.
    pub check: Vec<Sample>,
    /// DELs.
    pub del: Vec<Sample>,
    /// How long each batch of ADDs took as a whole, in microseconds.
    pub add_batches: Vec<f64>,
    /// How long each batch of DELs took as a whole, in microseconds.
    pub del_batches: Vec<f64>,
    /// The medians of the steps of an ADD, as far as they are traced.
    pub waterfall: Vec<Phase>,
    /// Processor seconds of each batch of ADDs, by process name, until all that it caused was done.
    pub add_cpu: BTreeMap<String, Vec<f64>>,
    /// The same of the DELs.
    pub del_cpu: BTreeMap<String, Vec<f64>>,
    /// How many pods a batch has.
    pub pods: usize,
}

impl Measured {
    fn of(subject: &'static str, pods: usize) -> Self {
        Self {
            subject,
            add: Vec::new(),
            check: Vec::new(),
            del: Vec::new(),
            add_batches: Vec::new(),
            del_batches: Vec::new(),
            waterfall: Vec::new(),
            add_cpu: BTreeMap::new(),
            del_cpu: BTreeMap::new(),
            pods,
        }
    }

    /// Processor seconds of one operation by process, of these of [`Self::add_cpu`] and
    /// [`Self::del_cpu`]: of the median batch, for what daemons do of themselves now and then is no
    /// operation's.
    pub fn of_one<'a>(
        &self,
        cpu: &'a BTreeMap<String, Vec<f64>>,
    ) -> impl Iterator<Item = (&'a str, f64)> {
        let pods = self.pods.max(1) as f64;
        cpu.iter().filter_map(move |(name, batches)| {
            let median = crate::sample::median(batches.iter().copied())?;
            Some((name.as_str(), median / pods))
        })
    }

    /// Pods attached per second, by the median batch.
    pub fn pods_per_second(&self) -> Option<f64> {
        let median = crate::sample::median(self.add_batches.iter().copied())?;
        Some(self.pods as f64 * 1e6 / median)
    }
}

/// A subject, and in which rounds of a cell it takes part: slow ones in fewer.
#[derive(Clone, Copy)]
pub struct Entrant<'a> {
    /// Who.
    pub subject: &'a dyn Subject,
    /// In every how many rounds.
    pub every: usize,
}

/// Measures a cell. `progress` is told of each round.
///
/// # Errors
/// An operation failed, or left something behind.
pub fn cell(
    node: &TestNode,
    cell: &Cell,
    entrants: &[Entrant<'_>],
    seats: &[Seat<'_>],
    progress: &mut dyn FnMut(usize),
) -> Result<Vec<Measured>, Error> {
    let daemons = daemons(node)?;
    let seats = &seats[..cell.pods.min(seats.len())];
    let mut measured: Vec<Measured> = entrants
        .iter()
        .map(|entrant| Measured::of(entrant.subject.name(), seats.len()))
        .collect();
    for round in 0..cell.rounds {
        progress(round);
        for turn in 0..entrants.len() {
            let entrant = (turn + round) % entrants.len();
            let Entrant { subject, every } = &entrants[entrant];
            if round % every == 0 {
                let measured = &mut measured[entrant];
                one_round(node, *subject, seats, cell, &daemons, measured)?;
            }
        }
    }
    for measured in &mut measured {
        measured.waterfall = waterfall(&measured.add);
    }
    for entrant in entrants {
        assert_gone(node, entrant.subject.name(), seats)?;
    }
    Ok(measured)
}

fn one_round(
    node: &TestNode,
    subject: &dyn Subject,
    seats: &[Seat<'_>],
    cell: &Cell,
    daemons: &[(String, i32)],
    measured: &mut Measured,
) -> Result<(), Error> {
    // Flows that were left by what was measured before would be translated again at each change
    // until they expire, ten seconds later (other_config:max-idle): beside 300 ports that doubles
    // what ovs-vswitchd takes, in some rounds and not in others.
    if !cell.keeps_flows {
        node.appctl("revalidator/purge");
    }
    await_idle(node)?;
    let meter = Meter { node, daemons };
    let (mut added, took) = meter.measure(&mut measured.add_cpu, || {
        batch(node, subject, seats, cell.threads, Verb::Add)
    })?;
    subject.explain(&mut added)?;
    measured.add.extend(added);
    measured.add_batches.push(took);
    settle(node)?;
    if subject.has_check() {
        let (checked, _) = batch(node, subject, seats, cell.threads, Verb::Check)?;
        measured.check.extend(checked);
    }
    let (mut deleted, took) = meter.measure(&mut measured.del_cpu, || {
        batch(node, subject, seats, cell.threads, Verb::Del)
    })?;
    subject.explain(&mut deleted)?;
    measured.del.extend(deleted);
    measured.del_batches.push(took);
    settle(node)
}

/// Measures processor time.
struct Meter<'a> {
    node: &'a TestNode,
    daemons: &'a [(String, i32)],
}

impl Meter<'_> {
    /// Adds what an action costs, with what the daemons do for it after its end, and without what
    /// it takes to await that.
    fn measure<T>(
        &self,
        cpu: &mut BTreeMap<String, Vec<f64>>,
        action: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let before = CpuTimes::now(self.daemons)?;
        let result = action()?;
        let after = CpuTimes::now(self.daemons)?;
        await_idle(self.node)?;
        let idle = CpuTimes::now(self.daemons)?;
        await_idle(self.node)?;
        let baseline = CpuTimes::now(self.daemons)?.since(&idle);
        let of_processes = after.since(&before);
        for (name, until_idle) in idle.since(&before) {
            let seconds = match name.as_str() {
                // Who awaits starts processes too.
                CpuTimes::EXECS => of_processes.get(&name).copied().unwrap_or_default(),
                _ => until_idle - baseline.get(&name).copied().unwrap_or_default(),
            };
            cpu.entry(name).or_default().push(seconds);
        }
        Ok(result)
    }
}

/// Waits until ovs-vswitchd has handled what it was told before, without giving it anything to
/// apply: it answers its control socket once in each turn of its main loop, and one turn may start
/// what the next one does.
///
/// # Errors
/// A fixture failed.
pub fn await_idle(node: &TestNode) -> Result<(), Error> {
    const TURNS: usize = 3;
    // ovsdb-server has then sent it what was committed before.
    node.ovsdb_rows("Bridge");
    for _ in 0..TURNS {
        node.appctl("version");
    }
    Ok(())
}

/// Runs a verb for each seat, so many at a time. Returns the samples and how long it took as a
/// whole, in microseconds.
///
/// # Errors
/// The first error of any; those that were under way are finished.
pub fn batch(
    node: &TestNode,
    subject: &dyn Subject,
    seats: &[Seat<'_>],
    threads: usize,
    verb: Verb,
) -> Result<(Vec<Sample>, f64), Error> {
    let next = AtomicUsize::new(0);
    let start = std::sync::Barrier::new(threads);
    let work = || -> Result<(Vec<Sample>, Instant, Instant), Error> {
        let worker = node.place().enter().map_err(Error::from);
        let worker = worker.and_then(|()| subject.worker());
        // Everyone comes here, whatever has failed, or the others would wait for ever.
        start.wait();
        let mut worker = worker?;
        let began = Instant::now();
        let mut samples = Vec::new();
        while let Some(seat) = seats.get(next.fetch_add(1, Ordering::Relaxed)) {
            samples.push(one(&mut *worker, seat, verb)?);
        }
        Ok((samples, began, Instant::now()))
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = Vec::with_capacity(seats.len());
        let mut span: Option<(Instant, Instant)> = None;
        for thread in threads {
            let done = thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let (samples, began, ended) = done?;
            all.extend(samples);
            let (first, last) = span.unwrap_or((began, ended));
            span = Some((first.min(began), last.max(ended)));
        }
        let took = span.map_or(0.0, |(first, last)| micros(last - first));
        Ok((all, took))
    })
}

fn one(worker: &mut dyn Worker, seat: &Seat<'_>, verb: Verb) -> Result<Sample, Error> {
    match verb {
        Verb::Add => worker.add(seat),
        Verb::Check => worker.check(seat),
        Verb::Del => worker.del(seat),
    }
}

/// Waits until the kernel has no deletion and ovs-vswitchd no change to carry out any more, so that
/// one subject's remains do not slow the next.
///
/// # Errors
/// A fixture failed.
pub fn settle(node: &TestNode) -> Result<(), Error> {
    node.await_vswitchd();
    node.place().run(|| Wirer::open()?.settle())?;
    node.await_vswitchd();
    Ok(())
}

/// Fails when a seat's link or row is there after all that was attached has been detached.
fn assert_gone(node: &TestNode, subject: &'static str, seats: &[Seat<'_>]) -> Result<(), Error> {
    let ours = |name: &str| seats.iter().any(|seat| seat.host_name() == name);
    let mut left: Vec<String> = links::list(node.place())
        .into_iter()
        .filter(|link| ours(&link.name))
        .map(|link| format!("link {}", link.name))
        .collect();
    for table in ["Port", "Interface"] {
        for row in node.ovsdb_rows(table) {
            let name = row["name"].as_str().unwrap_or_default();
            if ours(name) {
                left.push(format!("{table} {name}"));
            }
        }
    }
    match left.is_empty() {
        true => Ok(()),
        false => Err(Error::Leftovers {
            subject,
            left: left.join(", "),
        }),
    }
}
