//! What the manual pages contain beyond the help texts.

/// Items, each with its description.
type Items = &'static [(&'static str, &'static str)];

/// A command's page.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) name: &'static str,
    /// Command lines, with descriptions.
    pub(super) examples: Items,
    /// Files of this command alone.
    pub(super) files: Items,
    /// References to other pages.
    pub(super) also: &'static [&'static str],
}

/// Files that concern every command.
pub(super) const EVERYWHERE: Items = &[(
    "/run/podwire/agent.sock",
    "The agent's socket. Only root may connect.",
)];

const CONFIGURATION: (&str, &str) = (
    "/etc/podwire/podwire.toml",
    "The agent's settings. Some take effect when the file changes.",
);
const SWITCH: (&str, &str) = ("/var/run/openvswitch/db.sock", "Open vSwitch's database.");
const CONFS: (&str, &str) = (
    "/etc/cni/net.d",
    "The container runtime's network configurations. The first by name is used.",
);
const PLUGINS: (&str, &str) = (
    "/opt/cni/bin",
    "The container runtime's CNI plugins, among them podwire-cni.",
);
const ATTACHMENTS: (&str, &str) = (
    "/run/podwire/attachments",
    "The intent log: one file for each interface that the agent has wired.",
);
const NODE_JOURNAL: (&str, &str) = (
    "/run/podwire/node",
    "The journal: what was changed on this machine, and the previous values.",
);

/// The pages.
pub(super) const PAGES: &[Page] = &[
    Page {
        name: "podwire",
        examples: &[
            (
                "podwire status",
                "Show whether the node can wire pods, and why not.",
            ),
            (
                "podwire doctor",
                "Find what is wrong, and print the commands that fix it.",
            ),
            (
                "podwire ports --watch",
                "Show changes of the pods' ports as they happen.",
            ),
        ],
        files: &[CONFIGURATION, ATTACHMENTS, CONFS, PLUGINS],
        also: &[
            "podwire-agent(1)",
            "podwire-status(1)",
            "podwire-doctor(1)",
            "podwire-install(1)",
            "ovs-vswitchd(8)",
            "ovn-controller(8)",
        ],
    },
    Page {
        name: "podwire-agent",
        examples: &[
            (
                "podwire agent",
                "Run the agent in the foreground, on the local Open vSwitch.",
            ),
            (
                "podwire agent --mode ovn",
                "Wire pods for OVN: an ADD ends when OVN has installed its port.",
            ),
            (
                "podwire agent --print-config",
                "Show every setting, and where its value comes from.",
            ),
        ],
        files: &[
            CONFIGURATION,
            (
                "/etc/openvswitch/ovn_k8s.conf",
                "ovn-kubernetes' settings; the agent reads those of a node.",
            ),
            ATTACHMENTS,
            SWITCH,
        ],
        also: &[
            "podwire(1)",
            "podwire-install(1)",
            "ovs-vswitchd(8)",
            "systemd(1)",
        ],
    },
    Page {
        name: "podwire-install",
        examples: &[
            (
                "podwire install",
                "Install the plugin, wait for the agent, then install the configuration.",
            ),
            (
                "podwire install --dry-run",
                "Print what would be installed.",
            ),
        ],
        files: &[PLUGINS, CONFS],
        also: &["podwire-uninstall(1)", "podwire-agent(1)"],
    },
    Page {
        name: "podwire-uninstall",
        examples: &[(
            "podwire uninstall",
            "Remove the configuration and the plugin, and restore what was there before.",
        )],
        files: &[PLUGINS, CONFS],
        also: &["podwire-install(1)"],
    },
    Page {
        name: "podwire-probe",
        examples: &[
            ("podwire probe live", "Succeed if the agent answers."),
            (
                "podwire probe ready",
                "Succeed if the agent can serve an ADD.",
            ),
        ],
        files: &[],
        also: &["podwire-status(1)"],
    },
    Page {
        name: "podwire-node",
        examples: &[(
            "podwire node plan --cluster-subnet 10.128.0.0/14 --node-subnet 10.128.1.0/24",
            "Show what would be changed on this machine.",
        )],
        files: &[NODE_JOURNAL],
        also: &[
            "podwire-node-plan(1)",
            "podwire-node-init(1)",
            "podwire-node-show(1)",
            "podwire-node-cleanup(1)",
        ],
    },
    Page {
        name: "podwire-node-plan",
        examples: &[(
            "podwire node plan --cluster-subnet 10.128.0.0/14 --node-subnet 10.128.1.0/24",
            "Show what init would do, and change nothing.",
        )],
        files: &[NODE_JOURNAL],
        also: &["podwire-node(1)", "podwire-node-init(1)"],
    },
    Page {
        name: "podwire-node-init",
        examples: &[(
            "podwire node init --cluster-subnet 10.128.0.0/14 --node-subnet 10.128.1.0/24",
            "Join this machine to the pod network.",
        )],
        files: &[NODE_JOURNAL, SWITCH],
        also: &[
            "podwire-node(1)",
            "podwire-node-cleanup(1)",
            "nft(8)",
            "ovn-controller(8)",
        ],
    },
    Page {
        name: "podwire-node-run",
        examples: &[(
            "podwire node run --cluster-subnet 10.128.0.0/14 --node-subnet 10.128.1.0/24",
            "Join this machine to the pod network, and restore what others change.",
        )],
        files: &[NODE_JOURNAL, SWITCH],
        also: &["podwire-node(1)", "podwire-node-show(1)", "systemd(1)"],
    },
    Page {
        name: "podwire-node-show",
        examples: &[(
            "podwire node show --output json",
            "Show every item and its state, for a program.",
        )],
        files: &[NODE_JOURNAL],
        also: &["podwire-node(1)", "podwire-node-plan(1)"],
    },
    Page {
        name: "podwire-node-cleanup",
        examples: &[(
            "podwire node cleanup",
            "Remove everything that init created, and restore what it replaced.",
        )],
        files: &[NODE_JOURNAL],
        also: &["podwire-node(1)", "podwire-node-init(1)"],
    },
    Page {
        name: "podwire-status",
        examples: &[
            ("podwire status", "Show the node's state."),
            (
                "podwire status > /dev/null",
                "Succeed if the node can wire pods.",
            ),
            ("podwire status --output yaml", "The same for a program."),
        ],
        files: &[],
        also: &["podwire-doctor(1)", "podwire-ports(1)", "podwire-probe(1)"],
    },
    Page {
        name: "podwire-ports",
        examples: &[
            (
                "podwire ports --namespace shop",
                "List the ports of a namespace's pods.",
            ),
            (
                "podwire ports --state failed",
                "List the ports that do not work, with the reason.",
            ),
            (
                "podwire ports --no-headers",
                "Print rows without a header, for a script.",
            ),
            (
                "podwire ports --watch --output json",
                "Print each change as a line of JSON.",
            ),
        ],
        files: &[],
        also: &[
            "podwire-check(1)",
            "podwire-timings(1)",
            "podwire-trace(1)",
            "ovs-vsctl(8)",
        ],
    },
    Page {
        name: "podwire-timings",
        examples: &[
            (
                "podwire timings --last 1 shop/web",
                "Show where the pod's last ADD or DEL spent its time.",
            ),
            (
                "podwire timings --output html > timings.html",
                "Write the last operations as a page for a browser.",
            ),
        ],
        files: &[],
        also: &["podwire-status(1)", "podwire-trace(1)"],
    },
    Page {
        name: "podwire-trace",
        examples: &[
            (
                "podwire trace shop/web shop/db --port 5432",
                "Follow the first packet of a TCP connection from one pod to another.",
            ),
            (
                "podwire trace shop/web 10.128.2.7 --verbose",
                "Follow a ping to an address of another node, with each flow that it matches.",
            ),
            (
                "podwire trace shop/web shop/db --src 10.0.0.9",
                "See whether port security drops a forged source address.",
            ),
        ],
        files: &[SWITCH],
        also: &[
            "podwire-ports(1)",
            "podwire-check(1)",
            "ovs-appctl(8)",
            "ovs-vswitchd(8)",
            "ovn-trace(8)",
        ],
    },
    Page {
        name: "podwire-check",
        examples: &[
            (
                "podwire check",
                "Compare every attachment with what its ADD created.",
            ),
            (
                "podwire check --verbose shop/web",
                "The same for one pod, even if nothing differs.",
            ),
        ],
        files: &[ATTACHMENTS],
        also: &["podwire-doctor(1)", "podwire-gc(1)"],
    },
    Page {
        name: "podwire-gc",
        examples: &[
            ("podwire gc --dry-run", "List what pods left behind."),
            ("podwire gc", "Remove it."),
        ],
        files: &[ATTACHMENTS],
        also: &["podwire-check(1)"],
    },
    Page {
        name: "podwire-doctor",
        examples: &[
            (
                "podwire doctor",
                "Print what is wrong, with the commands that fix it.",
            ),
            ("podwire doctor --output json", "The same for a program."),
        ],
        files: &[SWITCH, CONFS, PLUGINS],
        also: &["podwire-status(1)", "podwire-check(1)", "podwire-bundle(1)"],
    },
    Page {
        name: "podwire-bundle",
        examples: &[
            (
                "podwire bundle",
                "Write podwire-HOST-TIME.tar.gz in this directory.",
            ),
            (
                "podwire bundle /tmp/node-a",
                "Write a directory, so that you can look at it first.",
            ),
        ],
        files: &[CONFIGURATION, SWITCH, CONFS, PLUGINS],
        also: &["podwire-doctor(1)", "journalctl(1)"],
    },
    Page {
        name: "podwire-version",
        examples: &[(
            "podwire version",
            "Show whether the running agent has the version that is installed.",
        )],
        files: &[],
        also: &["podwire-status(1)"],
    },
    Page {
        name: "podwire-completions",
        examples: &[(
            "podwire completions bash > /etc/bash_completion.d/podwire",
            "Install completions for bash.",
        )],
        files: &[],
        also: &["podwire-man(1)", "bash(1)"],
    },
    Page {
        name: "podwire-man",
        examples: &[(
            "podwire man --dir /usr/local/share/man/man1",
            "Install the manual pages.",
        )],
        files: &[],
        also: &["podwire-completions(1)", "man(1)"],
    },
];
