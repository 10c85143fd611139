//! What it has made: a file for each attachment, a veth pair, an address of its own subnet.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::request::Request;
use crate::{Done, Failed, fault};

/// The address of the gateway that its own addresses go by.
pub(crate) const GATEWAY: &str = "10.77.0.1";

fn root() -> PathBuf {
    PathBuf::from("/run/faulty-cni")
}

/// An attachment as its file has it.
#[derive(Debug)]
pub(crate) struct Attachment {
    pub(crate) file: PathBuf,
    pub(crate) record: Value,
}

/// The name of an attachment's host end.
pub(crate) fn host_end(request: &Request) -> String {
    // FNV-1a: within 15 characters, and different for each attachment.
    let hash = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let key = format!("{}/{}", request.id, request.ifname);
    let hash = key.bytes().fold(0xcbf2_9ce4_8422_2325, hash);
    format!("vf{:012x}", hash & 0xffff_ffff_ffff)
}

/// Writes an attachment's file.
pub(crate) fn record(request: &Request, address: &str) -> Done {
    let directory = root().join("attachments").join(&request.network);
    fs::create_dir_all(&directory)?;
    let record = json!({
        "id": request.id, "ifname": request.ifname, "link": host_end(request), "address": address,
    });
    let file = directory.join(format!(
        "{}.{}",
        request.id.replace('/', "_"),
        request.ifname
    ));
    Ok(fs::write(file, record.to_string())?)
}

/// The attachments of a network.
pub(crate) fn of_network(network: &str) -> Done<Vec<Attachment>> {
    let directory = root().join("attachments").join(network);
    let mut attachments = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let file = entry.path();
        // Another DEL may have taken it since it was listed.
        if let Ok(text) = fs::read(&file) {
            let record = serde_json::from_slice(&text).unwrap_or_default();
            attachments.push(Attachment { file, record });
        }
    }
    Ok(attachments)
}

/// The attachments of every network.
pub(crate) fn of_all_networks() -> Done<Vec<Attachment>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(root().join("attachments"))
        .into_iter()
        .flatten()
        .flatten()
    {
        all.extend(of_network(&entry.file_name().to_string_lossy())?);
    }
    Ok(all)
}

impl Attachment {
    pub(crate) fn is(&self, id: &str, ifname: &str) -> bool {
        self.record["id"] == id && self.record["ifname"] == ifname
    }

    /// Takes away link, address and file, whatever of it is still there.
    pub(crate) fn remove(&self) -> Done {
        let link = self.record["link"].as_str().unwrap_or_default();
        if exists(link) {
            // It may go by itself, with the namespace of its other end.
            let _ = ip(&["link", "delete", link]);
        } else if fault("del-wants-interface") {
            return Err(Failed::new(100, format!("{link} is gone")));
        }
        if !fault("del-keeps-address") {
            release(self.record["address"].as_str().unwrap_or_default())?;
        }
        // Gone already when two DELs meet.
        let _ = fs::remove_file(&self.file);
        Ok(())
    }
}

/// An address that nobody has, taken by making its file, which only one can.
pub(crate) fn take_address(request: &Request) -> Done<String> {
    let directory = root().join("addresses");
    fs::create_dir_all(&directory)?;
    if fault("one-address-for-all") {
        return Ok("10.77.0.2/24".into());
    }
    for host in 2..250 {
        let address = format!("10.77.0.{host}");
        if let Ok(mut file) = fs::File::create_new(directory.join(&address)) {
            file.write_all(request.id.as_bytes())?;
            return Ok(format!("{address}/24"));
        }
    }
    Err(Failed::new(11, "no address left"))
}

/// Gives an address back.
pub(crate) fn release(address: &str) -> Done {
    let name = address.split('/').next().unwrap_or_default();
    let file = root().join("addresses").join(name);
    match name.is_empty() || !file.exists() {
        true => Ok(()),
        false => Ok(fs::remove_file(file)?),
    }
}

/// A file that stands for something it remembers.
pub(crate) fn mark(name: &str) -> PathBuf {
    root().join(name)
}

/// Makes such a file.
pub(crate) fn set_mark(name: &str) -> Done {
    fs::create_dir_all(root())?;
    Ok(fs::write(mark(name), "")?)
}

/// Whether the host has a link.
pub(crate) fn exists(link: &str) -> bool {
    !link.is_empty() && Path::new("/sys/class/net").join(link).exists()
}

/// `ip` on the host.
pub(crate) fn ip(arguments: &[&str]) -> Done<String> {
    run(Command::new("ip").args(arguments))
}

/// `ip` in a network namespace.
pub(crate) fn ip_in(netns: &str, arguments: &[&str]) -> Done<String> {
    let mut command = Command::new("nsenter");
    run(command
        .arg(format!("--net={netns}"))
        .arg("ip")
        .args(arguments))
}

/// `ip -json` in a network namespace.
pub(crate) fn list_in(netns: &str, arguments: &[&str]) -> Done<Vec<Value>> {
    let printed = ip_in(netns, &[&["-json"], arguments].concat())?;
    Ok(serde_json::from_str(&printed).unwrap_or_default())
}

fn run(command: &mut Command) -> Done<String> {
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(Failed::new(106, format!("{command:?}: {}", said.trim())))
        }
    }
}
