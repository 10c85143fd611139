//! CNI specification types, error codes, and the wire format between plugin and agent.
