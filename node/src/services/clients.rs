//! The clients that stick to an endpoint of a frontend: forgets those whose endpoint is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tracing::warn;

use super::frontends::{Frontend, Key};
use super::{ends, joined, table};
use crate::nft::{self, NftError, objects};

/// How often the clients are read again because the packets have changed them meanwhile.
const MOST_READS: usize = 5;

/// Removes the clients that stuck to a deleted endpoint.
pub(super) async fn forget(key: &Key, frontend: &Frontend) {
    let mut last = Ok(());
    for _ in 0..MOST_READS {
        last = forget_once(key, frontend).await;
        if last.is_ok() {
            return;
        }
    }
    if let Err(error) = last {
        warn!(%error, "clients stick to endpoints that are gone");
    }
}

async fn forget_once(key: &Key, frontend: &Frontend) -> Result<(), NftError> {
    let [addresses, ports] = table::clients(key);
    let (by_address, by_port) = (values(&addresses).await?, values(&ports).await?);
    let endpoints = ends(Some(frontend));
    let stays = |client: &String, address: &String| {
        let ends = endpoints
            .iter()
            .filter(|end| end.ip().to_string() == *address);
        let port = by_port.get(client);
        ends.map(SocketAddr::port)
            .any(|it| port.is_none_or(|port| *port == it.to_string()))
    };
    let gone = by_address
        .iter()
        .filter(|(client, address)| !stays(client, address));
    let mut script = String::new();
    for (client, address) in gone {
        script += &delete(&addresses, client, address);
        if let Some(port) = by_port.get(client) {
            script += &delete(&ports, client, port);
        }
    }
    match script.is_empty() {
        true => Ok(()),
        false => nft::run("clients' endpoints", &script).await,
    }
}

/// By client.
async fn values(map: &str) -> Result<BTreeMap<String, String>, NftError> {
    let listed = nft::list_map(nft::SERVICES, map).await?;
    let elements = objects(&listed).filter_map(|object| object["map"]["elem"].as_array());
    let pairs = elements
        .flatten()
        .map(|pair| (joined(&pair[0]["elem"]["val"]), joined(&pair[1])));
    Ok(pairs.collect())
}

/// Deletes an element, also if it has expired meanwhile: for nft that is an error.
fn delete(map: &str, client: &str, value: &str) -> String {
    let name = nft::SERVICES;
    format!(
        "add element {name} {map} {{ {client} timeout 1s : {value} }}\n\
         delete element {name} {map} {{ {client} }}\n"
    )
}
