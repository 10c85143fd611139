//! Attachments whose network configuration names their bridge, with the members of ovs-cni: the
//! port is a plain port of Open vSwitch there, in OVN mode too, and has addresses from a delegated
//! IPAM plugin or none.

use std::path::Path;
use std::time::Duration;

use macaddr::MacAddr6;
use podwire_cni::env::Args;
use podwire_cni::spec::{self, ErrorCode, NetConf, SpecError};

use super::{Error, Handles};
use crate::config::Mode;
use crate::plan::{InterfaceSpec, SwitchPort};
use crate::ports::{ATTACH, AddedPort};

/// MTU in bytes of pods on another bridge, if the network has none of its own: Ethernet's. What the
/// node's uplink or tunnel carries says nothing about it.
const USUAL_MTU: u32 = 1500;

/// What the names of logical ports of nodes and routers begin with.
const RESERVED: [&str; 4] = ["k8s-", "podwire-door-", "stor-", "jtor-"];

/// Where the port of an attachment goes.
#[derive(Debug)]
pub(super) struct OnBridge {
    switch_port: SwitchPort,
    /// The logical port that is chosen.
    logical_port: Option<String>,
    /// The MAC address that is chosen in CNI_ARGS.
    mac: Option<MacAddr6>,
}

impl OnBridge {
    /// Where a call wants its port; None for the node's own networks.
    ///
    /// # Errors
    /// The member that can't be served on this node.
    pub(super) fn of(node: &Handles, conf: &NetConf, args: &Args) -> Result<Option<Self>, Error> {
        let Some(asked) = &conf.on_bridge else {
            return Ok(None);
        };
        let mac = argument(args, "mac").map(chosen_mac).transpose()?;
        let ovn_port = argument(args, "ovnPort").or(conf.args.ovn_port.as_deref());
        confirm_socket(asked.socket_file.as_deref(), &node.config.ovsdb)?;
        let own = &node.config.bridge;
        let is_ovn = node.config.ovn.mode == Mode::Ovn;
        let bridge = match &asked.bridge {
            Some(bridge) => bridge,
            None if is_ovn && ovn_port.is_some() => own,
            None => {
                return Err(Error::of_configuration(
                    "bridge is missing; it may be left out on a node with OVN, with \
                     args.cni.ovnPort"
                        .to_owned(),
                ));
            }
        };
        if is_ovn && bridge == own {
            return of_ovn(own, asked, ovn_port, mac).map(Some);
        }
        let is_elsewhere = bridge != own;
        if let Some(ovn_port) = ovn_port.filter(|_| !is_elsewhere) {
            return Err(Error::of_configuration(format!(
                "args.cni.ovnPort: {ovn_port} is not served on bridge {own}: this node has no OVN \
                 (it is in plain mode)"
            )));
        }
        if is_elsewhere && conf.port_security == Some(true) {
            return Err(Error::of_configuration(format!(
                "portSecurity: true is not served on bridge {bridge}, only on the node's own \
                 bridge, {own}"
            )));
        }
        Ok(Some(Self {
            switch_port: SwitchPort {
                bridge: is_elsewhere.then(|| bridge.clone()),
                vlan: Some(asked.vlan.clone()),
                ofport_request: asked.ofport_request,
            },
            logical_port: ovn_port.map(str::to_owned),
            mac,
        }))
    }

    /// The bridge, if it is not the node's own.
    pub(super) fn other_bridge(&self) -> Option<&str> {
        self.switch_port.bridge.as_deref()
    }

    /// The logical port that is chosen.
    pub(super) fn logical_port(&self) -> Option<&str> {
        self.logical_port.as_deref()
    }

    /// Sets what the port and its MTU depend on.
    pub(super) fn apply(&self, interface: &mut InterfaceSpec) {
        let usual = self.other_bridge().map(|_| USUAL_MTU);
        interface.mac = self.mac.or(interface.mac);
        interface.mtu = interface.mtu.or(usual);
        interface.switch_port = self.switch_port.clone();
        interface.logical_port.clone_from(&self.logical_port);
    }

    /// Confirms that a port can be created there now. A bridge that is missing is not waited for.
    ///
    /// # Errors
    /// There is no such bridge, or network configurations may not name it.
    pub(super) async fn ready(&self, node: &Handles, patience: Duration) -> Result<(), Error> {
        let Some(bridge) = self.other_bridge() else {
            return Ok(node.ports.ready(patience).await?);
        };
        node.ports.ready_on(bridge, patience).await?;
        let claims = node.ports.claims(bridge);
        let network = match (claims.said.as_deref(), claims.network) {
            (Some("true"), _) => return Ok(()),
            (None, Some(network)) if node.config.ovn.mode == Mode::Ovn => network,
            (None, _) => return Ok(()),
            (Some(said), _) => {
                return Err(Error::of_configuration(format!(
                    "bridge {bridge} is closed to network configurations: its external_ids have \
                     {ATTACH}={said}"
                )));
            }
        };
        Err(Error::of_configuration(format!(
            "bridge {bridge} carries OVN's physical network {network}, and a port there would go \
             around OVN's rules; to allow it: ovs-vsctl br-set-external-id {bridge} {ATTACH} true"
        )))
    }

    /// Refuses a number that another port has; Open vSwitch would give another one and say nothing.
    pub(super) fn refuse_taken_ofport(&self, node: &Handles, ifname: &str) -> Result<(), Error> {
        let Some(ofport) = self.switch_port.ofport_request else {
            return Ok(());
        };
        match node.ports.holder_of_ofport(self.other_bridge(), ofport) {
            None => Ok(()),
            Some(holder) => Err(taken(ofport, ifname, format!("belongs to port {holder}"))),
        }
    }

    /// The same, once ovs-vswitchd has decided: another port may have asked meanwhile.
    pub(super) fn confirm_ofport(
        &self,
        node: &Handles,
        ifname: &str,
        ports: &[AddedPort],
    ) -> Result<(), Error> {
        let Some(wanted) = self.switch_port.ofport_request else {
            return Ok(());
        };
        let mut given = ports.iter().filter_map(|port| node.ports.ofport(port));
        match given.find(|given| *given != wanted) {
            None => Ok(()),
            Some(given) => {
                let holder = node.ports.holder_of_ofport(self.other_bridge(), wanted);
                let holder = holder.unwrap_or_else(|| "another".to_owned());
                let problem = format!("belongs to port {holder}; Open vSwitch gave {given}");
                Err(taken(wanted, ifname, problem))
            }
        }
    }
}

/// A port of OVN's own bridge, which is what its logical port says.
fn of_ovn(
    own: &str,
    asked: &spec::OnBridge,
    logical_port: Option<&str>,
    mac: Option<MacAddr6>,
) -> Result<OnBridge, Error> {
    if logical_port.is_none() {
        return Err(Error::of_configuration(format!(
            "bridge: {own} is OVN's own, on which a port without a logical port gets no packets; \
             name another bridge, or the logical port in args.cni.ovnPort"
        )));
    }
    let reserved = logical_port.and_then(|port| {
        let is_its = |prefix: &&str| port.starts_with(prefix);
        RESERVED.into_iter().find(is_its)
    });
    if let Some(prefix) = reserved {
        return Err(Error::of_configuration(format!(
            "args.cni.ovnPort: {} begins with {prefix}, as ports of nodes and routers do, and no \
             pod's may",
            logical_port.unwrap_or_default()
        )));
    }
    let is_set = [
        ("vlan", asked.vlan.tag.is_some()),
        ("trunk", !asked.vlan.trunks.is_empty()),
        ("ofport_request", asked.ofport_request.is_some()),
    ];
    if let Some((field, _)) = is_set.iter().find(|(_, is_set)| *is_set) {
        return Err(Error::of_configuration(format!(
            "{field} is not for bridge {own}, where OVN decides by the logical port"
        )));
    }
    Ok(OnBridge {
        switch_port: SwitchPort::default(),
        logical_port: logical_port.map(str::to_owned),
        mac,
    })
}

/// One of ovs-cni's arguments in CNI_ARGS, in any case.
fn argument<'a>(args: &'a Args, name: &str) -> Option<&'a str> {
    let mut all = args.iter();
    let named = all.find(|(key, value)| key.eq_ignore_ascii_case(name) && !value.is_empty());
    named.map(|(_, value)| value)
}

fn chosen_mac(text: &str) -> Result<MacAddr6, Error> {
    spec::unicast_mac(text).ok_or_else(|| {
        let text = format!("CNI_ARGS: MAC={text} is not a unicast Ethernet address");
        Error::Request(SpecError::new(ErrorCode::INVALID_ENVIRONMENT, text))
    })
}

/// A configuration for another switch than the agent's must not be served by this one.
fn confirm_socket(asked: Option<&str>, ours: &Path) -> Result<(), Error> {
    let Some(asked) = asked else { return Ok(()) };
    let path = Path::new(asked.strip_prefix("unix:").unwrap_or(asked));
    // /var/run is a link to /run on every system with systemd.
    let short = |path: &Path| match path.strip_prefix("/var/run") {
        Ok(rest) => Path::new("/run").join(rest),
        Err(_) => path.to_owned(),
    };
    if short(path) == short(ours) {
        return Ok(());
    }
    Err(Error::of_configuration(format!(
        "socket_file: {asked} is not the database of this node's agent, unix:{}",
        ours.display()
    )))
}

fn taken(ofport: u16, ifname: &str, problem: String) -> Error {
    Error::NotForPod {
        field: "ofport_request",
        value: ofport.to_string(),
        interface: ifname.to_owned(),
        problem,
        is_taken: true,
        from_annotation: false,
    }
}
