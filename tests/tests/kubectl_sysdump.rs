//! OVN's databases in `kubectl podwire sysdump`: three members with real raft, as pods of
//! deploy/ovn serve them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use podwire_tests::apiserver::{self, ApiServer, Ended};
use podwire_tests::ovn::{Central, Clustered, MEMBERS, Members};
use podwire_tests::process::{Finished, finish};
use podwire_tests::schema::assert_valid;
use podwire_tests::{Place, controller_binary};
use serde_json::{Value, json};

const PARTS: [(&str, &str); 2] = [
    ("podwire-ovn-northbound", "nb"),
    ("podwire-ovn-southbound", "sb"),
];

fn own_pod(app: &str, number: usize) -> Value {
    let name = format!("{app}-{number}");
    let mut pod = apiserver::pod("n", "podwire-system", &name, &name, json!({}));
    pod["metadata"]["labels"] = json!({ "app.kubernetes.io/name": app });
    pod["status"] = json!({ "phase": "Running" });
    pod
}

/// Runs what is asked of the databases' pods where the members are, by their sockets' names there.
fn serve(server: &ApiServer, place: Place, controls: [String; MEMBERS]) {
    server.runs(move |exec| {
        let (app, member) = exec.pod.rsplit_once('-').unwrap();
        let Some((_, short)) = PARTS.iter().find(|(name, _)| *name == app) else {
            return Err(format!("no pod {}", exec.pod));
        };
        if exec.container != "database" {
            return Err(format!("no container {}", exec.container));
        }
        let socket = format!("/run/ovn/ovn{short}_db.sock");
        let control = format!("/run/ovn/ovn{short}_db.ctl");
        let mut command = Command::new(&exec.command[0]);
        for word in &exec.command[1..] {
            let word = word.replace(&socket, &format!("/run/ovn/{short}-{member}.sock"));
            let own = &controls[member.parse::<usize>().unwrap()];
            command.arg(word.replace(&control, own));
        }
        let output = place.run(|| command.output());
        let output = output.map_err(|error| error.to_string())?;
        Ok(Ended {
            code: output.status.code(),
            stdout: output.stdout,
            stderr: output.stderr,
        })
    });
}

#[track_caller]
fn sysdump(server: &ApiServer, path: &Path) -> Finished {
    let mut command = Command::new(controller_binary());
    command
        .args(["cluster", "sysdump", path.to_str().unwrap()])
        .args(["--k8s-apiserver", &server.url()]);
    finish(command, b"", Duration::from_secs(90)).unwrap()
}

#[test]
fn a_sysdump_has_the_rows_of_ovns_databases_and_what_each_member_says_of_the_cluster() {
    let central = Central::without_databases();
    let members = Members::start(&central);
    let made = json!({ "op": "insert", "table": "Logical_Switch", "row": {
        "name": "node-a", "other_config": ["map", [["password", "opensesame"]]] } });
    let leads = members.leader(Clustered::Northbound);
    let northbound = members.database(Clustered::Northbound, leads);
    northbound.transact(&[made]).unwrap();

    let server = ApiServer::start();
    let controls = [0, 1, 2].map(|member| members.control(member));
    serve(&server, central.machine().place().clone(), controls);
    let directory = tempfile::tempdir().unwrap();
    // A cluster with a controller and databases elsewhere: that they are not there is told.
    server.apply(own_pod("podwire-controller", 0));
    let done = sysdump(&server, &directory.path().join("none"));
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let told = "without ovn/southbound/tables.txt: no pod serves OVN_Southbound";
    assert!(done.stdout.contains(told), "{done:?}");

    for (app, _) in PARTS {
        (0..MEMBERS).for_each(|number| server.apply(own_pod(app, number)));
    }
    members.kill((leads + 1) % MEMBERS);
    let path = directory.path().join("dump");
    let done = sysdump(&server, &path);
    let read = |file: &str| {
        let text = fs::read_to_string(path.join(file));
        text.unwrap_or_else(|error| panic!("{file}: {error}: {done:?}"))
    };
    let mut status = Command::new(controller_binary());
    status
        .args(["cluster", "status", "-o", "json"])
        .args(["--k8s-apiserver", &server.url()]);
    let status = finish(status, b"", Duration::from_secs(90)).unwrap();
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    assert_valid("clusterStatus", &status);
    let northbound = json!({
        "name": "OVN_Northbound",
        "leader": format!("podwire-ovn-northbound-{leads}"),
        "connected": 2,
        "members": 3,
    });
    assert_eq!(status["ovn"]["databases"][0], northbound, "{status:#}");
    let problems = status["ovn"]["problems"].as_array().unwrap();
    let killed = format!("podwire-ovn-northbound-{}", (leads + 1) % MEMBERS);
    for what in [&*killed, "no ovn-northd works"] {
        let named = problems.iter().filter_map(Value::as_str);
        assert!(
            named.clone().any(|it| it.contains(what)),
            "{what}: {status:#}"
        );
    }
    let switches = read("ovn/northbound/Logical_Switch.txt");
    assert!(switches.contains("node-a"), "{switches}");
    assert!(!switches.contains("opensesame"), "{switches}");
    assert!(read("ovn/southbound/Datapath_Binding.txt").contains("node-a"));
    let mut clusters = BTreeSet::new();
    for number in 0..MEMBERS {
        let place = format!("ovn/northbound/podwire-ovn-northbound-{number}");
        if number == (leads + 1) % MEMBERS {
            let lacks = format!("without {place}/server.txt: ");
            assert!(done.stdout.contains(&lacks), "{done:?}");
            continue;
        }
        assert!(read(&format!("{place}/server.txt")).contains("clustered"));
        assert!(read(&format!("{place}/memory.txt")).contains("cells:"));
        let status = read(&format!("{place}/cluster.txt"));
        let role = if number == leads {
            "Role: leader"
        } else {
            "Role: follower"
        };
        assert!(status.contains(role), "{status}");
        let id = status.lines().find(|it| it.starts_with("Cluster ID"));
        clusters.insert(id.unwrap().to_owned());
    }
    assert_eq!(clusters.len(), 1, "{clusters:?}");
}
