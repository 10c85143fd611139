//! podwire as a network of podman's CNI backend.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use podwire_tests::process::finish;
use podwire_tests::runtime::{Podman, documented};
use podwire_tests::{
    AgentOptions, Place, TestNode, agent_binary, links, plugin_binary, stripped, traffic,
};

fn address(place: &Place) -> IpAddr {
    links::first_address(place, "eth0")
}

#[test]
fn containers_run_reach_each_other_and_leave_nothing() {
    let node = TestNode::with_ovs();
    let _agent = node.start_agent(&AgentOptions::default());
    let podman = Podman::start(&node, &documented("podman").unwrap()).unwrap();
    let web = podman.start_container("web").unwrap();
    podman.start_container("db").unwrap();

    let (web_place, db_place) = (podman.place("web").unwrap(), podman.place("db").unwrap());
    traffic::ping(node.place(), address(&web_place), 1).unwrap();
    traffic::tcp_echo(&web_place, &db_place, address(&db_place), 1 << 16).unwrap();
    let target = address(&db_place).to_string();
    podman.run(format!("exec web ping -c 1 {target}")).unwrap();
    // podman names a container as a pod without a namespace.
    let row = node.interface_of(&web).unwrap();
    assert_eq!(row["external_ids"]["iface-id"], "web");
    drop((web_place, db_place));

    podman.run("rm --force --time=0 web db").unwrap();
    node.leftovers().assert_none();
}

#[test]
fn the_image_runs() {
    let node = TestNode::with_ovs();
    let build = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/image/build");
    let work = tempfile::tempdir().unwrap();
    let [agent, plugin] = [stripped(&agent_binary(), work.path()), plugin_binary()];
    let output = tempfile::tempdir().unwrap();
    let mut command = Command::new(build);
    command.args([&agent, &plugin]);
    command.arg("0.1.0").arg(output.path());
    let built = finish(command, b"", Duration::from_secs(60)).unwrap();
    let built = PathBuf::from(built.success("deploy/image/build").trim());
    let archive = std::fs::read(&built).unwrap();
    let parts = std::fs::read_to_string(built.with_extension("").with_extension("cdx.json"));
    let parts = parts.unwrap();
    for part in [
        "pkg:cargo/tokio@",
        "pkg:deb/debian/libc6@",
        "pkg:deb/debian/nftables@",
    ] {
        assert!(
            parts.contains(part),
            "{part} is not in the bill of materials"
        );
    }
    std::fs::write(node.path("/run/podwire.oci.tar"), archive).unwrap();

    let podman = Podman::start(&node, &documented("podman").unwrap()).unwrap();
    let loaded = podman
        .run("load --quiet --input /run/podwire.oci.tar")
        .unwrap();
    let image = loaded.trim().rsplit(' ').next().unwrap().to_owned();
    let run = |arguments: &str| {
        let line = format!("run --rm --network=none --read-only {arguments} --version");
        podman.run(line).unwrap()
    };
    assert!(run(&image).contains("podwire 0.1.0"));
    assert!(run(&format!("--entrypoint=/usr/sbin/nft {image}")).contains("nftables"));
    node.leftovers().assert_none();
}
