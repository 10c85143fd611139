//! Who listens, and who heard what.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use nix::sys::socket::{AddressFamily, SockProtocol};
use podwire_tests::Place;
use podwire_tests::frames::{self, Capture};

use crate::build::{Macs, syn, udp};
use crate::catalogue::Forgery;

const LAST_PORT: u16 = 1009;

/// Everybody who could hear a pod.
pub(crate) struct Ears<'a> {
    from: &'a Place,
    ears: Vec<Ear<'a>>,
    /// How often they have heard their last.
    times: Cell<usize>,
}

/// A place of which something is captured.
struct Ear<'a> {
    name: &'static str,
    place: &'a Place,
    what: What<'a>,
    /// What passes there after all else, with this payload; nothing forbids it.
    last: Framed,
}

/// A frame with a payload.
type Framed = Box<dyn Fn(&[u8]) -> Vec<u8>>;

enum What<'a> {
    Link(&'a str),
    Stack(AddressFamily, SockProtocol),
}

/// Who heard a forgery, by its number; those that nobody heard are left out.
pub(crate) type Heard = BTreeMap<usize, BTreeSet<&'static str>>;

impl<'a> Ears<'a> {
    /// Of the pod with its interface eth0 here.
    pub(crate) fn of(from: &'a Place) -> Self {
        Self {
            from,
            ears: Vec::new(),
            times: Cell::new(0),
        }
    }

    /// What passes a link, where packets between these addresses do.
    pub(crate) fn link(
        mut self,
        name: &'static str,
        (place, link): (&'a Place, &'a str),
        macs: Macs,
        (from, to): (IpAddr, IpAddr),
    ) -> Self {
        self.ears.push(Ear {
            name,
            place,
            what: What::Link(link),
            last: Box::new(move |last| udp(macs, (from, LAST_PORT), (to, LAST_PORT), last)),
        });
        self
    }

    /// What a machine's stack accepts of packets between these addresses.
    pub(crate) fn stack(
        mut self,
        name: &'static str,
        place: &'a Place,
        macs: Macs,
        (from, to): (IpAddr, IpAddr),
    ) -> Self {
        let family = match to {
            IpAddr::V4(_) => AddressFamily::Inet,
            IpAddr::V6(_) => AddressFamily::Inet6,
        };
        let (from, to) = ((from, LAST_PORT), (to, LAST_PORT));
        for (protocol, frame) in [
            (SockProtocol::Udp, udp as fn(_, _, _, &[u8]) -> _),
            (SockProtocol::Tcp, syn),
        ] {
            self.ears.push(Ear {
                name,
                place,
                what: What::Stack(family, protocol),
                last: Box::new(move |last| frame(macs, from, to, last)),
            });
        }
        self
    }

    /// Sends all of it, and says who heard what.
    pub(crate) fn hear(&self, forgeries: &[Forgery]) -> Heard {
        let listening: Vec<Capture> = self
            .ears
            .iter()
            .map(|ear| match ear.what {
                What::Link(link) => Capture::on(ear.place, link).unwrap(),
                What::Stack(family, protocol) => {
                    Capture::of_stack(ear.place, family, protocol).unwrap()
                }
            })
            .collect();
        let forged = forgeries.iter().flat_map(|forgery| &forgery.frames);
        let forged: Vec<Vec<u8>> = forged.cloned().collect();
        frames::send(self.from, "eth0", &forged).unwrap();
        let mut heard = Heard::new();
        // Of the frames that it reads at once, a switch may pass on the last before others: those
        // are through when another one comes that was sent after that.
        for _ in 0..2 {
            self.hear_last(&listening, forgeries, &mut heard);
        }
        heard
    }

    /// Sends what is the last for each of them, and adds what they hear before.
    fn hear_last(&self, listening: &[Capture], forgeries: &[Forgery], heard: &mut Heard) {
        // An ear may hear what is another's last, and that of the time before.
        let time = self.times.replace(self.times.get() + 1);
        let tags: Vec<String> = (0..self.ears.len())
            .map(|ear| format!("the last {time:03} {ear:03}"))
            .collect();
        let last = self.ears.iter().zip(&tags);
        let last: Vec<Vec<u8>> = last.map(|(ear, tag)| (ear.last)(tag.as_bytes())).collect();
        frames::send(self.from, "eth0", &last).unwrap();
        let has = |frame: &[u8], what: &[u8]| frame.windows(what.len()).any(|it| it == what);
        for ((ear, tag), capture) in self.ears.iter().zip(&tags).zip(listening) {
            let before = capture
                .until(|frame| has(frame, tag.as_bytes()))
                .unwrap_or_else(|error| panic!("{} did not hear the last: {error}", ear.name));
            for frame in before {
                let tags = forgeries.iter().enumerate();
                let tagged = tags.filter(|(_, forgery)| has(&frame, &forgery.tag));
                for (number, _) in tagged.filter(|(_, it)| !it.passes.contains(&ear.name)) {
                    heard.entry(number).or_default().insert(ear.name);
                }
            }
        }
    }
}

/// Each forgery that was heard, and by whom.
pub(crate) fn told(heard: &Heard, forgeries: &[Forgery]) -> Vec<String> {
    let lines = heard.iter().map(|(number, by)| {
        let Forgery { what, case, .. } = &forgeries[*number];
        format!("{what}: {case}: heard by {by:?}")
    });
    lines.collect()
}
