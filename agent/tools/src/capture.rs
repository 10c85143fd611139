//! `podwire capture`: the packets at a pod's port, as a pcap file
//! (draft-ietf-opsawg-pcap: libpcap's format, with nanoseconds).

use std::fs::File;
use std::io::{self, BufWriter, IoSliceMut, IsTerminal as _, PipeReader, Write};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, LinkAddr, MsgFlags, SockFlag, SockProtocol, SockType, bind,
    recvmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use podwire_daemon::process;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::output::CommonArgs;
use super::trace::port_of;
use super::{Exit, ToolError};
use podwire::inspect::PortList;

/// The largest packet of a link, with offloads (tcpdump's own limit).
const LARGEST: usize = 256 << 10;
/// What the kernel keeps for a busy reader, in bytes.
const BACKLOG: usize = 16 << 20;

/// The flags of `podwire capture`.
#[derive(Debug, Args)]
#[command(
    after_help = "It sees what the pod sends before Open vSwitch does, and what it receives after: \
                  what is\ndropped on the way to the pod is not there (podwire flows). Packets are \
                  whole, before\nthe pod's offloads cut them; VLAN tags are missing.\n\
                  Example: podwire capture shop/web | tcpdump -nr -"
)]
pub struct CaptureArgs {
    /// NAMESPACE/NAME, NAME or container ID
    #[arg(value_name = "POD")]
    pod: String,
    /// Its interface, if it has several
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// The file, instead of standard output
    #[arg(short, long, value_name = "FILE")]
    write: Option<PathBuf>,
    /// End after that time
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    seconds: u32,
    /// End after that many packets
    #[arg(long, value_name = "NUMBER")]
    packets: Option<u64>,
    #[command(flatten)]
    common: CommonArgs,
}

impl CaptureArgs {
    pub(super) async fn run(self) -> Result<Exit, ToolError> {
        let out: Box<dyn Write + Send> = match &self.write {
            Some(path) => Box::new(File::create(path).map_err(|source| ToolError::File {
                path: path.clone(),
                source,
            })?),
            None if io::stdout().is_terminal() => {
                let what = "standard output is a terminal: give --write FILE, or a pipe";
                return Err(ToolError::Unable(what.to_owned()));
            }
            None => Box::new(io::stdout()),
        };
        let list: PortList = self.common.agent().get("/v1/ports").await?;
        let port = port_of(&list.ports, &self.pod, self.interface.as_deref())?;
        let unable = |errno: Errno| ToolError::Unable(format!("listen on {}: {errno}", port.name));
        let (socket, link) = listen(&port.name).map_err(unable)?;
        let file = Pcap::begin(out)?;
        let asked = process::asked_to_end().map_err(ToolError::Runtime)?;
        let (stopped, stop) = io::pipe().map_err(ToolError::Runtime)?;
        let most = self.packets.unwrap_or(u64::MAX);
        let mut reader = spawn_blocking(move || read(&socket, link, &stopped, file, most));
        let early = tokio::select! {
            read = &mut reader => Some(read),
            () = sleep(Duration::from_secs(self.seconds.into())) => None,
            () = asked => None,
        };
        drop(stop);
        let read = match early {
            Some(read) => read,
            None => reader.await,
        };
        let (packets, lost) = read.map_err(|ended| ToolError::Runtime(ended.into()))??;
        let lost = match lost {
            0 => String::new(),
            lost => format!("; {lost} more came too fast"),
        };
        eprintln!(
            "podwire: {packets} packets at port {} of {}{lost}",
            port.name,
            port.pod.as_deref().unwrap_or(&self.pod)
        );
        Ok(Exit::Well)
    }
}

/// A socket for all packets of a link, in both directions, and the link's index (packet(7)).
fn listen(link: &str) -> nix::Result<(OwnedFd, usize)> {
    let mut links = getifaddrs()?.filter(|it| it.interface_name == link);
    let address = links.find_map(|it| it.address?.as_link_addr().copied());
    let address = address.ok_or(Errno::ENODEV)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let (family, protocol) = (AddressFamily::Packet, SockProtocol::EthAll);
    let socket = socket(family, SockType::Raw, flags, protocol)?;
    setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
    setsockopt(&socket, sockopt::RxqOvfl, &1)?;
    // Without CAP_NET_ADMIN it stays as it is.
    let _ = setsockopt(&socket, sockopt::RcvBufForce, &BACKLOG);
    bind(socket.as_raw_fd(), &address)?;
    Ok((socket, address.ifindex()))
}

/// Writes what comes, until the other end of the pipe is closed. Returns how many packets there
/// were, and how many the kernel dropped.
fn read(
    socket: &OwnedFd,
    link: usize,
    stopped: &PipeReader,
    mut file: Pcap,
    most: u64,
) -> Result<(u64, u32), ToolError> {
    let mut buffer = vec![0; LARGEST];
    let mut lost = 0;
    while file.packets < most {
        match receive(socket, &mut buffer) {
            Ok(packet) if packet.link == link => {
                lost = packet.lost.unwrap_or(lost);
                file.add(&packet, &buffer)?;
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                file.out.flush()?;
                let mut awaited = [
                    PollFd::new(socket.as_fd(), PollFlags::POLLIN),
                    PollFd::new(stopped.as_fd(), PollFlags::empty()),
                ];
                match poll(&mut awaited, PollTimeout::NONE) {
                    Ok(_) if awaited[1].any() == Some(true) => break,
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(ToolError::Runtime(errno.into())),
                }
            }
            Err(errno) => return Err(ToolError::Runtime(errno.into())),
        }
    }
    file.out.flush()?;
    Ok((file.packets, lost))
}

/// A packet in the buffer.
struct Packet {
    /// The index of the link: a packet of another one may have come before `bind`.
    link: usize,
    /// Of which the buffer has as much as fits.
    length: usize,
    at: TimeSpec,
    /// How many the kernel has dropped until now, because they came too fast.
    lost: Option<u32>,
}

fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> nix::Result<Packet> {
    let mut space = cmsg_space!(TimeSpec, u32);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
    let message = recvmsg::<LinkAddr>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut packet = Packet {
        link: message.address.map_or(0, |from| from.ifindex()),
        length: message.bytes,
        at: TimeSpec::new(0, 0),
        lost: None,
    };
    for part in message.cmsgs()? {
        match part {
            ControlMessageOwned::ScmTimestampns(at) => packet.at = at,
            ControlMessageOwned::RxqOvfl(lost) => packet.lost = Some(lost),
            _ => {}
        }
    }
    Ok(packet)
}

/// A pcap file that is being written.
struct Pcap {
    out: BufWriter<Box<dyn Write + Send>>,
    packets: u64,
}

impl Pcap {
    /// Writes the file header: of version 2.4, with nanoseconds, for Ethernet.
    fn begin(out: Box<dyn Write + Send>) -> io::Result<Self> {
        const NANOSECONDS: u32 = 0xa1b2_3c4d;
        const ETHERNET: u32 = 1;
        let mut out = BufWriter::new(out);
        out.write_all(&NANOSECONDS.to_ne_bytes())?;
        out.write_all(&[2_u16.to_ne_bytes(), 4_u16.to_ne_bytes()].concat())?;
        for word in [0, 0, LARGEST as u32, ETHERNET] {
            out.write_all(&word.to_ne_bytes())?;
        }
        // A reader of the pipe can begin.
        out.flush()?;
        Ok(Self { out, packets: 0 })
    }

    fn add(&mut self, packet: &Packet, buffer: &[u8]) -> io::Result<()> {
        let kept = packet.length.min(buffer.len());
        let head = [
            packet.at.tv_sec() as u32,
            packet.at.tv_nsec() as u32,
            kept as u32,
            packet.length as u32,
        ];
        for word in head {
            self.out.write_all(&word.to_ne_bytes())?;
        }
        self.out.write_all(&buffer[..kept])?;
        self.packets += 1;
        Ok(())
    }
}
