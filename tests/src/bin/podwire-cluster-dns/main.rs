//! `podwire-cluster-dns`: cluster DNS for `make test-e2e`, on port 53 of its pod, by Kubernetes'
//! DNS-based service discovery (kubernetes/dns, specification 1.1.0). Each question is answered by
//! requests to the API server, so an answer is never older than its question. There is no cache
//! and no forwarder: every other name does not exist.
//!
//! With `-conf FILE` it stands for CoreDNS in the pods of specs that run a server of their own: it
//! answers what the block `hosts` of that file has.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use podwire_apiserver::Access;
use simple_dns::{Packet, PacketFlag, RCODE};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};

mod api;
mod hosts;
mod records;

use api::Api;
use hosts::Hosts;
use records::{Answer, Source, answer};

/// The largest answer by UDP in bytes: no fragment on any link (DNS flag day 2020).
const LARGEST_DATAGRAM: usize = 1232;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let source = if let [_conf, file] = &arguments[..] {
        Source::Hosts(Hosts::of(&std::fs::read_to_string(file)?))
    } else {
        let client = podwire_apiserver::client(&Access::InCluster).await?;
        Source::Cluster(Api { client })
    };
    let source = Arc::new(source);
    let address = (IpAddr::from(Ipv6Addr::UNSPECIFIED), 53);
    let socket = Arc::new(UdpSocket::bind(address).await?);
    let listener = TcpListener::bind(address).await?;
    let streams = source.clone();
    tokio::spawn(async move {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => drop(tokio::spawn(stream_of(streams.clone(), stream))),
                Err(error) => eprintln!("accept a connection: {error}"),
            }
        }
    });
    let mut buffer = [0; 4096];
    loop {
        let (length, peer) = socket.recv_from(&mut buffer).await?;
        let (source, socket) = (source.clone(), socket.clone());
        let query = buffer[..length].to_vec();
        tokio::spawn(async move {
            if let Some(reply) = reply(&source, &query, LARGEST_DATAGRAM).await
                && let Err(error) = socket.send_to(&reply, peer).await
            {
                eprintln!("answer {peer}: {error}");
            }
        });
    }
}

/// Answers each message of a connection, which its two bytes of length precede.
async fn stream_of(source: Arc<Source>, mut stream: TcpStream) {
    while let Ok(length) = stream.read_u16().await {
        let mut query = vec![0; length.into()];
        if stream.read_exact(&mut query).await.is_err() {
            return;
        }
        let Some(reply) = reply(&source, &query, usize::from(u16::MAX)).await else {
            return;
        };
        let length = u16::try_from(reply.len()).unwrap_or(u16::MAX);
        if stream.write_u16(length).await.is_err() || stream.write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// The reply to a message, of at most so many bytes. None if it isn't a query.
async fn reply(source: &Source, message: &[u8], largest: usize) -> Option<Vec<u8>> {
    let query = Packet::parse(message).ok()?;
    if query.has_flags(PacketFlag::RESPONSE) {
        return None;
    }
    let question = query.questions.first()?;
    let mut reply = Packet::new_reply(query.id());
    reply.set_flags(PacketFlag::AUTHORITATIVE_ANSWER);
    if query.has_flags(PacketFlag::RECURSION_DESIRED) {
        reply.set_flags(PacketFlag::RECURSION_DESIRED | PacketFlag::RECURSION_AVAILABLE);
    }
    reply.questions.push(question.clone());
    let name = question.qname.to_string().to_ascii_lowercase();
    match answer(source, name.trim_end_matches('.')).await {
        Ok(Answer::NoSuchName) => *reply.rcode_mut() = RCODE::NameError,
        Ok(Answer::Records(records)) => {
            for record in records {
                if record.match_qtype(question.qtype) || record.match_qtype(records::CNAME) {
                    reply.answers.push(record);
                }
            }
        }
        Err(error) => {
            eprintln!("{name}: {error}");
            *reply.rcode_mut() = RCODE::ServerFailure;
        }
    }
    let bytes = reply.build_bytes_vec_compressed().ok()?;
    if bytes.len() <= largest {
        return Some(bytes);
    }
    reply.answers.clear();
    reply.set_flags(PacketFlag::TRUNCATION);
    reply.build_bytes_vec_compressed().ok()
}
