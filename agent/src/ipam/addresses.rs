//! The holders of addresses in the node's own subnets: the pools behind a lock, and their cursor on
//! disk.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use podwire_cni::private_dir::{DirError, PrivateDir};
use tokio::sync::Notify;

use super::pool::{Allocated, Cursor, PoolError, Pools, Usage};
use super::{Family, Owner, subnet};

/// The cursor's file in the run directory.
const CURSOR: &str = "addresses.json";
/// Its size limit in bytes: a few addresses for each subnet.
const LONGEST_CURSOR: usize = 1 << 20;

/// How long further moves may join the first: many pods come and go together.
const GATHERING: Duration = Duration::from_secs(1);

/// The node's pools.
///
/// The ports' external_ids record which addresses are held, and they are claimed from there at
/// start. No row records the position of the search for a free address and the latest releases;
/// they are kept beside the intent log, so that a restarted agent does not hand out an address
/// released a moment ago.
#[derive(Debug)]
pub struct Addresses {
    pools: Mutex<Pools>,
    run_dir: PathBuf,
    moved: Notify,
}

impl Addresses {
    /// Empty pools for these subnets, with the previous agent's cursor.
    ///
    /// # Errors
    /// Two subnets overlap.
    pub fn open(
        subnets: Vec<subnet::SubnetSpec>,
        run_dir: &Path,
    ) -> Result<Self, subnet::SpecError> {
        let mut pools = Pools::new(subnets)?;
        match cursor(run_dir) {
            Ok(cursors) => pools.restore_cursor(&cursors),
            Err(error) => tracing::warn!(%error, "the address cursor is not used"),
        }
        Ok(Self {
            pools: Mutex::new(pools),
            run_dir: run_dir.to_owned(),
            moved: Notify::new(),
        })
    }

    /// Changes the subnets. Every owner keeps its addresses, and holds those that are in a subnet.
    ///
    /// # Errors
    /// Two subnets overlap; nothing has changed then.
    pub fn change_subnets(
        &self,
        subnets: Vec<subnet::SubnetSpec>,
    ) -> Result<(), subnet::SpecError> {
        let mut pools = self.lock();
        *pools = pools.with_subnets(subnets)?;
        self.moved.notify_one();
        Ok(())
    }

    /// One address of each family that has a subnet, or none.
    ///
    /// # Errors
    /// There is no subnet, or no address left.
    pub fn allocate(&self, owner: &Owner) -> Result<Vec<Allocated>, PoolError> {
        let allocated = self.lock().allocate(owner);
        self.moved.notify_one();
        allocated
    }

    /// The families that have a subnet.
    pub fn families(&self) -> Vec<Family> {
        self.lock().families()
    }

    /// This address. An older sandbox of the same pod gives it up, since it is about to be
    /// replaced; it is returned, so that it can have the address back if it is not.
    ///
    /// # Errors
    /// Another pod has it, it is not for pods, or it is in no subnet.
    pub fn claim(
        &self,
        address: IpAddr,
        owner: &Owner,
    ) -> Result<(Allocated, Option<Owner>), PoolError> {
        let mut pools = self.lock();
        match pools.claim(address, owner) {
            Err(PoolError::Taken { holder, .. }) if is_same_pod(&holder, owner) => {
                pools.release(address, &holder)?;
                let allocated = pools.claim(address, owner)?;
                Ok((allocated, Some(holder)))
            }
            other => other.map(|allocated| (allocated, None)),
        }
    }

    /// Releases one address, if `owner` still has it.
    pub fn release(&self, address: IpAddr, owner: &Owner) {
        // Another holder, such as the newer sandbox of a pod, took it over; then `owner` no longer
        // has it.
        let _ = self.lock().release(address, owner);
        self.moved.notify_one();
    }

    /// Returns one address to the older sandbox that it was taken from.
    pub fn hand_back(&self, address: IpAddr, owner: &Owner, older: &Owner) {
        let mut pools = self.lock();
        if pools.release(address, owner).is_ok() {
            // The older one held it a moment ago; only a concurrent change of the configuration can
            // refuse it.
            let _ = pools.claim(address, older);
        }
    }

    /// Releases all addresses of `owner`.
    pub fn release_all(&self, owner: &Owner) {
        self.lock().release_all(owner);
        self.moved.notify_one();
    }

    /// Whether one of the subnets contains this address.
    pub fn covers(&self, address: IpAddr) -> bool {
        let usage = self.lock().usage();
        usage.iter().any(|it| it.subnet.contains(&address))
    }

    /// The usage of each subnet.
    pub fn usage(&self) -> Vec<Usage> {
        self.lock().usage()
    }

    /// The holder of this address.
    pub fn owner_of(&self, address: IpAddr) -> Option<Owner> {
        self.lock().owner_of(address).cloned()
    }

    /// Writes the cursor to disk a second after it moves. Never returns.
    ///
    /// Not on the path of any request: if the agent dies first, only ARP caches suffer.
    pub async fn keep_cursor(&self) {
        loop {
            self.moved.notified().await;
            tokio::time::sleep(GATHERING).await;
            self.write_cursor();
        }
    }

    /// Writes the cursor to disk.
    pub fn write_cursor(&self) {
        let cursor = self.lock().cursor();
        if let Err(error) = write_cursor(&self.run_dir, &cursor) {
            tracing::warn!(%error, "the address cursor can't be written");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Pools> {
        self.pools
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[derive(Debug, thiserror::Error)]
enum CursorError {
    #[error("{0}")]
    Dir(#[from] DirError),
    #[error("{CURSOR}: {0}")]
    Malformed(#[from] serde_json::Error),
}

fn cursor(run_dir: &Path) -> Result<Vec<Cursor>, CursorError> {
    let text = PrivateDir::open(run_dir)?.read(CURSOR, LONGEST_CURSOR)?;
    Ok(text
        .map(|text| serde_json::from_slice(&text))
        .transpose()?
        .unwrap_or_default())
}

fn write_cursor(run_dir: &Path, cursor: &[Cursor]) -> Result<(), CursorError> {
    let text = serde_json::to_vec(cursor)?;
    Ok(PrivateDir::open(run_dir)?.write(CURSOR, &[&text])?)
}

fn is_same_pod(a: &Owner, b: &Owner) -> bool {
    a.network == b.network && a.ifname == b.ifname && a.pod.is_some() && a.pod == b.pod
}
