//! Whether the machine reaches what it needs: its gateways, by the kernel's own ARP and neighbour
//! discovery, and the API server.

use std::net::IpAddr;
use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::RouteType;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{MulticastGroup, RouteMessageBuilder};
use tokio::time::{Instant, timeout, timeout_at};

use crate::items::ManagedConfig;

/// Time limit of an answer. The kernel asks three times, a second apart.
const LIMIT: Duration = Duration::from_secs(5);

/// That of a network manager, which asks a DHCP server.
const RENEWAL: Duration = Duration::from_secs(20);

/// How long nothing changes when a network manager has done what it does at once.
const QUIET: Duration = Duration::from_millis(500);

/// Why something does not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReachError {
    #[error("listen to the kernel: {0}")]
    Listen(#[from] std::io::Error),
    #[error("ask for the neighbour {ip}: {source}")]
    Ask {
        ip: IpAddr,
        source: rtnetlink::Error,
    },
    #[error("the gateway {ip} does not answer on {link}")]
    Silent { ip: IpAddr, link: String },
    #[error("after {limit} ms the network manager has not made on {link}: {missing}",
        limit = RENEWAL.as_millis())]
    NotRenewed { link: String, missing: String },
    #[error("list addresses and routes: {0}")]
    List(#[source] rtnetlink::Error),
    #[error("the API server does not answer within {limit} ms: {why}", limit = LIMIT.as_millis())]
    Api { why: String },
}

/// Waits until a gateway answers on a link: ARP for IPv4, neighbour discovery for IPv6. A permanent
/// neighbour is not asked.
pub(crate) async fn gateway(link: &str, index: u32, ip: IpAddr) -> Result<(), ReachError> {
    let groups = [MulticastGroup::Neigh];
    let (connection, handle, mut events) = rtnetlink::new_multicast_connection(&groups)?;
    let driver = tokio::spawn(connection);
    let asked = async {
        let failed = |source| ReachError::Ask { ip, source };
        let seen: Vec<NeighbourMessage> = handle
            .neighbours()
            .get()
            .execute()
            .try_collect()
            .await
            .map_err(failed)?;
        let seen = seen.into_iter().find(|it| is_of(it, index, ip));
        let state = seen.as_ref().map(|seen| seen.header.state);
        if matches!(
            state,
            Some(NeighbourState::Permanent | NeighbourState::Noarp)
        ) {
            return Ok(());
        }
        let request = request(seen, index, ip);
        let mut answers = handle.clone().request(request).map_err(failed)?;
        while let Some(answer) = answers.next().await {
            if let NetlinkPayload::Error(error) = answer.payload
                && error.code.is_some()
            {
                return Err(failed(rtnetlink::Error::NetlinkError(error)));
            }
        }
        let deadline = Instant::now() + LIMIT;
        while let Ok(Some((message, _))) = timeout_at(deadline, events.next()).await {
            let NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewNeighbour(seen)) =
                message.payload
            else {
                continue;
            };
            match seen.header.state {
                NeighbourState::Reachable if is_of(&seen, index, ip) => return Ok(()),
                NeighbourState::Failed if is_of(&seen, index, ip) => break,
                _ => {}
            }
        }
        let link = link.to_owned();
        Err(ReachError::Silent { ip, link })
    };
    let answered = asked.await;
    driver.abort();
    answered
}

/// Waits until a network manager has renewed all of this.
pub(crate) async fn renewed(awaited: &ManagedConfig) -> Result<(), ReachError> {
    let groups = [
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (connection, handle, mut events) = rtnetlink::new_multicast_connection(&groups)?;
    let driver = tokio::spawn(connection);
    let deadline = Instant::now() + RENEWAL;
    let waited = async {
        loop {
            let addresses = handle.address().get().execute().try_collect().await;
            let addresses: Vec<_> = addresses.map_err(ReachError::List)?;
            let mut routes = Vec::new();
            for family in [AddressFamily::Inet, AddressFamily::Inet6] {
                let mut request = RouteMessageBuilder::<IpAddr>::new().build();
                request.header.address_family = family;
                let listed = handle.route().get(request).execute().try_collect().await;
                routes.extend::<Vec<_>>(listed.map_err(ReachError::List)?);
            }
            let missing = awaited.missing(&addresses, &routes);
            if missing.is_empty() {
                return Ok(());
            }
            if !matches!(timeout_at(deadline, events.next()).await, Ok(Some(_))) {
                let (link, missing) = (awaited.link.clone(), missing.join(", "));
                return Err(ReachError::NotRenewed { link, missing });
            }
        }
    };
    let waited = waited.await;
    driver.abort();
    waited
}

/// Waits until addresses and routes have not changed for a moment, but not for long.
pub(crate) async fn settled() -> Result<(), ReachError> {
    let groups = [
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
    ];
    let (connection, _handle, mut events) = rtnetlink::new_multicast_connection(&groups)?;
    let driver = tokio::spawn(connection);
    let deadline = Instant::now() + LIMIT;
    while let Ok(Some(_)) = timeout(QUIET.min(deadline - Instant::now()), events.next()).await {}
    driver.abort();
    Ok(())
}

/// Has the kernel ask: the neighbour that it knows once more, or one that it does not know yet.
fn request(
    seen: Option<NeighbourMessage>,
    index: u32,
    ip: IpAddr,
) -> NetlinkMessage<RouteNetlinkMessage> {
    let known = seen.and_then(|seen| {
        let mut attributes = seen.attributes.into_iter();
        attributes.find(|it| matches!(it, NeighbourAttribute::LinkLayerAddress(_)))
    });
    let mut message = NeighbourMessage::default();
    message.header.ifindex = index;
    message.header.kind = RouteType::Unicast;
    let (family, address) = match ip {
        IpAddr::V4(ip) => (AddressFamily::Inet, NeighbourAddress::Inet(ip)),
        IpAddr::V6(ip) => (AddressFamily::Inet6, NeighbourAddress::Inet6(ip)),
    };
    message.header.family = family;
    match known {
        Some(_) => message.header.state = NeighbourState::Probe,
        None => message.header.flags = NeighbourFlags::Use,
    }
    message.attributes = vec![NeighbourAttribute::Destination(address)];
    message.attributes.extend(known);
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewNeighbour(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    request
}

fn is_of(message: &NeighbourMessage, index: u32, ip: IpAddr) -> bool {
    let address = match ip {
        IpAddr::V4(ip) => NeighbourAddress::Inet(ip),
        IpAddr::V6(ip) => NeighbourAddress::Inet6(ip),
    };
    let destination = NeighbourAttribute::Destination(address);
    message.header.ifindex == index && message.attributes.contains(&destination)
}

/// Waits for an answer of the API server, whatever it says.
pub(crate) async fn api_server(client: &kube::Client) -> Result<(), ReachError> {
    let request = http::Request::get("/version").body(kube::client::Body::empty());
    let failed = |why: String| ReachError::Api { why };
    let request = request.map_err(|error| failed(error.to_string()))?;
    match timeout(LIMIT, client.send(request)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Err(_) => Err(failed("no answer".to_owned())),
    }
}
