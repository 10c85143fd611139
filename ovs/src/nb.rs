//! OVN's northbound database (ovn-nb(5)): the tables that podwire-controller writes, and lookups of
//! their rows.
//!
//! Every row of the controller has, in `external_ids` under [`KEY`], the object that it was created
//! for; a row without it belongs to somebody else. Columns that ovn-northd writes (`up`, `nb_cfg`,
//! …) are not watched: they would wake a replica for every change of a port.

use crate::replica::Index::Column;
use crate::replica::{Db, Index, Row, TableSpec};
use crate::value::{Atom, Uuid};

/// The database's name.
pub const DATABASE: &str = "OVN_Northbound";

/// The key of `external_ids` with the object that a row was created for.
pub const KEY: &str = "podwire.io/key";
/// The key of `external_ids` of `NB_Global` with the leader's term.
pub const EPOCH: &str = "podwire.io/epoch";

/// A table and a column that came with OVN 24.03, as marks by rows of QoS did.
const MARKS: (Table, &str) = (Table::RouterPolicy, "bfd_sessions");

const BY_NAME: Index = Column("name");
const BY_KEY: Index = Index::Key("external_ids", KEY);

/// Declares the tables: each with its name in the database, the columns that are watched, and the
/// indexes.
macro_rules! tables {
    ($($table:ident = $name:literal [$($column:expr),+] by [$($index:expr),+];)+) => {
        /// A table in which the controller creates rows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[expect(missing_docs, reason = "each is the table of that name in ovn-nb(5)")]
        pub enum Table {
            $($table,)+
        }

        impl Table {
            /// All of them.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$table),+];

            fn spec(self) -> TableSpec {
                match self {
                    $(Self::$table => TableSpec {
                        name: $name,
                        columns: &[$($column),+],
                        indexes: &[$($index),+],
                    },)+
                }
            }
        }
    };
}

tables! {
    LogicalSwitch = "Logical_Switch"
        ["name", "ports", "load_balancer", "load_balancer_group", "qos_rules", "other_config",
         "copp", "external_ids"]
        by [BY_NAME, BY_KEY, Column("ports"), Column("load_balancer"), Column("qos_rules")];
    LogicalSwitchPort = "Logical_Switch_Port"
        ["name", "type", "addresses", "port_security", "tag_request", "options", "external_ids"]
        by [BY_NAME, BY_KEY];
    LogicalRouter = "Logical_Router"
        ["name", "ports", "static_routes", "policies", "nat", "options", "copp", "external_ids"]
        by [BY_NAME, BY_KEY, Column("ports"), Column("static_routes"), Column("policies"),
            Column("nat")];
    LogicalRouterPort = "Logical_Router_Port"
        ["name", "mac", "networks", "options", "gateway_chassis", "external_ids"]
        by [BY_NAME, BY_KEY, Column("gateway_chassis")];
    GatewayChassis = "Gateway_Chassis"
        ["name", "chassis_name", "priority", "external_ids"]
        by [BY_NAME, BY_KEY];
    StaticRoute = "Logical_Router_Static_Route"
        ["ip_prefix", "nexthop", "output_port", "policy", "external_ids"]
        by [BY_KEY];
    RouterPolicy = "Logical_Router_Policy"
        ["priority", "match", "action", "nexthops", MARKS.1, "external_ids"]
        by [BY_KEY];
    Nat = "NAT"
        ["type", "external_ip", "logical_ip", "gateway_port", "external_ids"]
        by [BY_KEY];
    Qos = "QoS" ["direction", "priority", "match", "action", "external_ids"] by [BY_KEY];
    LoadBalancer = "Load_Balancer"
        ["name", "protocol", "vips", "options", "selection_fields", "external_ids"]
        by [BY_NAME, BY_KEY];
    LoadBalancerGroup = "Load_Balancer_Group"
        ["name", "load_balancer"]
        by [BY_NAME, Column("load_balancer")];
    PortGroup = "Port_Group"
        ["name", "ports", "acls", "external_ids"]
        by [BY_NAME, BY_KEY, Column("acls")];
    AddressSet = "Address_Set" ["name", "addresses", "external_ids"] by [BY_NAME, BY_KEY];
    Acl = "ACL"
        ["name", "direction", "priority", "match", "action", "tier", "options", "log", "severity",
         "meter", "external_ids"]
        by [BY_KEY];
    // It has no external_ids: only its name shows its owner.
    Meter = "Meter" ["name", "external_ids"] by [BY_NAME];
    Copp = "Copp" ["name", "meters", "external_ids"] by [BY_NAME, BY_KEY];
}

impl Table {
    /// The table's name.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Whether its rows have names that distinguish them.
    pub fn is_named(self) -> bool {
        // An ACL's name is for its log lines.
        self != Self::Acl && self.spec().columns.contains(&"name")
    }

    /// The column with the members of its rows, if several objects contribute them: ports, or
    /// addresses.
    pub fn members(self) -> Option<&'static str> {
        match self {
            Self::PortGroup => Some("ports"),
            Self::AddressSet => Some("addresses"),
            _ => None,
        }
    }

    /// Whether its rows exist without another row that refers to them.
    pub fn is_root(self) -> bool {
        matches!(
            self,
            Self::LogicalSwitch
                | Self::LogicalRouter
                | Self::LoadBalancer
                | Self::LoadBalancerGroup
                | Self::PortGroup
                | Self::AddressSet
                | Self::Meter
                | Self::Copp
        )
    }
}

/// The tables and columns that a replica of this database watches.
pub fn tables() -> Vec<TableSpec> {
    let global = TableSpec::of("NB_Global", &["external_ids", "options"]);
    let tables = Table::ALL.into_iter().map(Table::spec);
    tables.chain([global]).collect()
}

/// Lookups in a replica of [`tables`]. All use an index.
impl Db {
    /// The only row of `NB_Global`.
    pub fn nb_global(&self) -> Option<Row<'_>> {
        self.rows("NB_Global").next()
    }

    /// Whether a row of QoS can give a packet a mark.
    pub fn nb_has_marks(&self) -> bool {
        let (table, column) = MARKS;
        self.has_column(table.name(), column)
    }

    /// The rows with a name. Switches, routers and load balancers may have the same.
    pub fn nb_named(&self, table: Table, name: &str) -> impl Iterator<Item = Row<'_>> {
        self.find(table.name(), BY_NAME, name)
    }

    /// The rows created for an object.
    pub fn nb_of_object(
        &self,
        table: Table,
        key: impl Into<Atom>,
    ) -> impl Iterator<Item = Row<'_>> {
        self.find(table.name(), BY_KEY, key)
    }

    /// The rows that refer to another through this column.
    pub fn nb_parents(
        &self,
        table: Table,
        column: &'static str,
        row: Uuid,
    ) -> impl Iterator<Item = Row<'_>> {
        self.find(table.name(), Column(column), row)
    }
}
