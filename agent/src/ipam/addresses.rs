//! Who holds which address of the node's own subnets: the pools behind a lock, and their cursor on
//! disk.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use podwire_cni::private_dir::{DirError, PrivateDir};
use tokio::sync::Notify;

use super::pool::{Allocated, Cursor, PoolError, Pools, Usage};
use super::{Family, Owner, subnet};

/// The cursor's file in the run directory.
const CURSOR: &str = "addresses.json";
/// Its most bytes: a few addresses for each subnet.
const LONGEST_CURSOR: usize = 1 << 20;

/// The node's pools.
///
/// What is held is recorded in the ports' external_ids and claimed back from there at start. Only
/// where the search for a free address stands, and what was released last, is in no row; it is kept
/// beside the intent log, so that an agent's restart does not hand out what was released a moment
/// ago.
#[derive(Debug)]
pub struct Addresses {
    pools: Mutex<Pools>,
    run_dir: PathBuf,
    moved: Notify,
}

impl Addresses {
    /// Empty pools of these subnets, going on from where the last agent stood.
    ///
    /// # Errors
    /// When two subnets overlap.
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

    /// Goes on with other subnets. Whoever has an address keeps it, and holds it where one of the
    /// subnets has it.
    ///
    /// # Errors
    /// When two subnets overlap; then nothing has changed.
    pub fn change_subnets(
        &self,
        subnets: Vec<subnet::SubnetSpec>,
    ) -> Result<(), subnet::SpecError> {
        let mut pools = self.lock();
        *pools = pools.with_subnets(subnets)?;
        self.moved.notify_one();
        Ok(())
    }

    /// One address of every family that has a subnet, or nothing.
    ///
    /// # Errors
    /// No subnet, or no address left.
    pub fn allocate(&self, owner: &Owner) -> Result<Vec<Allocated>, PoolError> {
        let allocated = self.lock().allocate(owner);
        self.moved.notify_one();
        allocated
    }

    /// The families that have a subnet.
    pub fn families(&self) -> Vec<Family> {
        self.lock().families()
    }

    /// This very address. An older sandbox of the same pod gives it up, for it is about to be
    /// replaced; it is named, so that it can have the address back if it is not.
    ///
    /// # Errors
    /// Taken by another pod, not for pods, or in no subnet.
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

    /// Takes one address back, if `owner` still has it.
    pub fn release(&self, address: IpAddr, owner: &Owner) {
        // Another holder took it over, as the newer sandbox of a pod does: then it is not this
        // one's to give back.
        let _ = self.lock().release(address, owner);
        self.moved.notify_one();
    }

    /// Takes one address back for the older sandbox that it was taken from.
    pub fn hand_back(&self, address: IpAddr, owner: &Owner, older: &Owner) {
        let mut pools = self.lock();
        if pools.release(address, owner).is_ok() {
            // It was the older one's a moment ago, so nothing speaks against it but a configuration
            // that changes under us.
            let _ = pools.claim(address, older);
        }
    }

    /// Takes back whatever `owner` has.
    pub fn release_all(&self, owner: &Owner) {
        self.lock().release_all(owner);
        self.moved.notify_one();
    }

    /// Whether one of the subnets has this address.
    pub fn covers(&self, address: IpAddr) -> bool {
        let usage = self.lock().usage();
        usage.iter().any(|it| it.subnet.contains(&address))
    }

    /// How full each subnet is.
    pub fn usage(&self) -> Vec<Usage> {
        self.lock().usage()
    }

    /// Who has this address.
    pub fn owner_of(&self, address: IpAddr) -> Option<Owner> {
        self.lock().owner_of(address).cloned()
    }

    /// Writes the cursor down whenever it has moved. Never ends.
    ///
    /// Off the path of every request: an agent that dies in between loses a courtesy to ARP caches,
    /// nothing else.
    pub async fn keep_cursor(&self) {
        loop {
            self.moved.notified().await;
            let cursor = self.lock().cursor();
            if let Err(error) = write_cursor(&self.run_dir, &cursor) {
                tracing::warn!(%error, "the address cursor can't be written");
            }
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
