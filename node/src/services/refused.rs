//! The services that nft or the kernel refuses: found among all of them, so that the others are not
//! held up.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use podwire_cluster::ObjectName;
use podwire_cluster::service::Protocol;

use super::frontends::{Frontend, Frontends, Key, LocalNode};
use super::table::Contents;
use crate::nft::{self, NftError};

/// Finds the services whose frontends are refused by themselves, with what nft said.
///
/// # Errors
/// nft's, if it refuses even a service that nothing is wrong with.
pub(super) async fn find(
    frontends: &Frontends,
    here: &LocalNode,
) -> Result<BTreeMap<ObjectName, String>, NftError> {
    let check = async |frontends: &Frontends| {
        let script = Contents::of(frontends, here).anew();
        nft::check("a part of the services' table", &script).await
    };
    check(&sample()).await?;
    let mut refused = BTreeMap::new();
    let names: BTreeSet<&ObjectName> = frontends
        .by_key
        .values()
        .map(|frontend| &frontend.service)
        .collect();
    let mut groups = vec![names.into_iter().collect::<Vec<&ObjectName>>()];
    while let Some(group) = groups.pop() {
        let of_group = |frontend: &Frontend| group.binary_search(&&frontend.service).is_ok();
        let said = match check(&frontends.only(of_group)).await {
            Ok(()) => continue,
            Err(NftError::Refused { said, .. }) => said,
            Err(error) => return Err(error),
        };
        match group.split_at(group.len() / 2) {
            ([], one) => refused.extend(one.iter().map(|name| ((*name).clone(), said.clone()))),
            (some, others) => groups.extend([some.to_vec(), others.to_vec()]),
        }
    }
    Ok(refused)
}

/// A service with everything that a service can have.
fn sample() -> Frontends {
    let addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().ok());
    let frontends = addresses.into_iter().flatten().map(|address: IpAddr| {
        let key = Key {
            protocol: Protocol::Tcp,
            address,
            port: 80,
        };
        let frontend = Frontend {
            endpoints: vec![SocketAddr::new(address, 8080)],
            affinity: Some(1),
            sources: vec![address.into()],
            ..Frontend::default()
        };
        (key, frontend)
    });
    Frontends {
        by_key: frontends.collect(),
        ..Frontends::default()
    }
}
