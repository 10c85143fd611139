//! The kinds of findings.

use serde::Serialize;

use podwire::attach::Fault;

/// Declares the kinds, by the subject of the check.
macro_rules! kinds {
    ($($about:literal { $($(#[$on:meta])* $kind:ident,)+ })+) => {
        /// The problem, for programs. tests/tests/doctor runs the fix of each; a kind without one
        /// there fails a test.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "kebab-case")]
        pub(super) enum Kind {
            $($($(#[$on])* $kind,)+)+
            /// An attachment differs from what its ADD created.
            #[serde(untagged)]
            Attachment(Option<Fault>),
        }

        impl Kind {
            /// The subject of the check.
            pub(super) fn about(self) -> &'static str {
                match self {
                    $($(Self::$kind)|+ => $about,)+
                    Self::Attachment(_) => "pods",
                }
            }
        }
    };
}

kinds! {
    "Open vSwitch" {
        /// Open vSwitch's database does not answer.
        DatabaseSilent,
        /// ovs-vswitchd does not answer.
        VswitchdSilent,
        /// ovs-vswitchd may open too few files for its ports.
        FileLimit,
        /// ovs-vswitchd has many ports and keeps idle flows for long.
        ManyPorts,
        /// The kernel lacks the bridge's datapath.
        DatapathMissing,
        /// The bridge's row has another error.
        BridgeError,
        /// ovn-controller uses another bridge.
        OtherBridge,
        /// The bridge is not there.
        BridgeMissing,
    }
    "OVN" {
        /// ovn-controller does not know where the southbound database is.
        OvnRemoteUnset,
        /// ovn-controller does not answer, or has no connection.
        ControllerSilent,
        /// OVN has no tunnel to other nodes.
        EncapIpUnset,
        /// An entry of ovn-bridge-mappings can't be read.
        MappingWrong,
        /// It names a bridge that does not exist.
        MappingBridgeMissing,
        /// A physical network of pods is not in it.
        MappingMissing,
        /// ADDs wait for ovn-northd.
        NorthdSlow,
        /// Flushing a connection tracking zone takes long, for the kernel's table is large.
        ConntrackBuckets,
    }
    "agent" {
        /// No agent answers.
        AgentSilent,
        /// The socket, or its directory, does not belong to root.
        SocketOwner,
        /// Users other than root have access to them.
        SocketMode,
        /// A source of annotations can't be read.
        SourceUnreadable,
        /// The agent would serve no ADD.
        NotReady,
        /// DELs wait in the spool.
        SpoolWaits,
        /// The spool can't be read.
        SpoolUnreadable,
        /// A subnet has no address left.
        SubnetFull,
        /// The last operation of another verb failed.
        OperationFailed,
    }
    "pods" {
        /// Ports without links wait for an agent.
        PortsWithoutLinks,
        /// An ADD waits for its pod's annotation.
        AnnotationAwaited,
        /// A pod's last ADD failed.
        AddFailed,
        /// There are leftover attachments.
        LeftOver,
        /// There are leftover QoS rows.
        QosLeftOver,
    }
    "node role" {
        /// `podwire node run` has ended.
        NodeRoleEnded,
        /// It does not answer.
        NodeRoleSilent,
        /// One of its items is not as it should be.
        NodeRoleUnwell,
        /// It has restored something.
        NodeRoleRestored,
        /// Its state can't be read.
        NodeRoleUnreadable,
        /// A moved NIC is moved back unless somebody confirms.
        NicUnconfirmed,
    }
    "CNI" {
        /// The runtime's directory of configurations can't be read.
        ConfUnreadable,
        /// Its plugin is ovn-kubernetes' own.
        OverlayNotOurs,
        /// No configuration names podwire.
        NoConf,
        /// Another configuration comes before podwire's.
        ConfNotFirst,
        /// The plugin is not there.
        PluginMissing,
        /// It is another program.
        PluginNotOurs,
        /// It can't be run.
        PluginMode,
    }
    "tunnel MTU" {
        /// Pods get an MTU that does not fit through the tunnel.
        MtuTooLarge,
        /// Pods have such an MTU.
        PodsMtuTooLarge,
    }
}
