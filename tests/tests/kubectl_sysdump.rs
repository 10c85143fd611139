//! `kubectl podwire sysdump`: the API server's objects, one that ends early, and OVN's databases:
//! three members with real raft, as pods of deploy/ovn serve them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use podwire_tests::apiserver::{self, ApiServer, Ended, Request};
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

fn command(server: &ApiServer) -> Command {
    let mut command = Command::new(controller_binary());
    command
        .args(["cluster", "sysdump"])
        .args(["--k8s-apiserver", &server.url()]);
    command
}

#[track_caller]
fn sysdump(server: &ApiServer, path: &Path) -> Finished {
    let mut command = command(server);
    command.arg(path);
    finish(command, b"", Duration::from_secs(90)).unwrap()
}

/// The files of an archive, by their names in it.
fn unpacked(archive: &Path) -> BTreeMap<String, String> {
    let directory = tempfile::tempdir().unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(archive).arg("-C").arg(directory.path());
    assert!(tar.status().unwrap().success());
    let inner = fs::read_dir(directory.path()).unwrap().next().unwrap();
    let root = inner.unwrap().path();
    let mut found = BTreeMap::new();
    let mut todo = vec![root.clone()];
    while let Some(next) = todo.pop() {
        for entry in fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                todo.push(path);
                continue;
            }
            let name = path.strip_prefix(&root).unwrap().display().to_string();
            found.insert(name, fs::read_to_string(&path).unwrap());
        }
    }
    found
}

fn named(kind: &str, namespace: &str, name: &str) -> Value {
    json!({ "kind": kind, "metadata": { "namespace": namespace, "name": name } })
}

fn event(namespace: &str, name: &str, component: &str) -> Value {
    let mut event = named("Event", namespace, name);
    event["source"] = json!({ "component": component });
    event
}

#[test]
fn a_sysdump_has_what_podwire_acts_on_its_events_everywhere_and_previous_logs() {
    let server = ApiServer::start();
    // Not every cluster has them.
    server.lacks("k8s.ovn.org");
    let [own, shop] = ["podwire-system", "shop"];
    server.apply(named("NetworkAttachmentDefinition", shop, "blue"));
    server.apply(named("ClusterNetworkPolicy", "", "all"));
    server.apply(named("AdminNetworkPolicy", "", "some"));
    server.apply(named("BaselineAdminNetworkPolicy", "", "default"));
    server.apply(named("PodDisruptionBudget", own, "northbound"));
    server.apply(event(own, "scheduled", "kubelet"));
    server.apply(event(own, "leads", "podwire-controller"));
    server.apply(event(shop, "refused", "podwire-controller"));
    server.apply(event(shop, "restored", "podwire-node"));
    server.apply(event(shop, "pulled", "kubelet"));
    let mut pod = own_pod("podwire-openvswitch", 0);
    pod["status"]["containerStatuses"] = json!([{
        "name": "vswitchd", "image": "", "imageID": "", "ready": true, "restartCount": 1,
        "lastState": { "terminated": { "exitCode": 139 } },
    }]);
    server.apply(pod);

    let directory = tempfile::tempdir().unwrap();
    let mut command = command(&server);
    command.current_dir(directory.path());
    let done = finish(command, b"", Duration::from_secs(90)).unwrap();
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let archive = fs::read_dir(directory.path()).unwrap().next().unwrap();
    let archive = archive.unwrap().path();
    let name = archive.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("podwire-sysdump-20"), "{name}");
    let files = unpacked(&archive);
    let index: Value = serde_json::from_str(&files["sysdump.json"]).unwrap();
    assert_eq!(index["missing"], json!([]), "{index:#}");
    assert_eq!(index["endedEarly"], json!(null), "{index:#}");
    for (plural, name) in [
        ("network-attachment-definitions", "blue"),
        ("clusternetworkpolicies", "all"),
        ("adminnetworkpolicies", "some"),
        ("baselineadminnetworkpolicies", "default"),
        ("poddisruptionbudgets", "northbound"),
    ] {
        let text = &files[&format!("objects/{plural}.json")];
        assert!(text.contains(name), "{plural}: {text}");
    }
    assert!(!files.contains_key("objects/userdefinednetworks.json"));
    let events = files["objects/events.json"].lines();
    let events: BTreeSet<String> = events
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|it| it["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    let expected = ["leads", "refused", "restored", "scheduled"];
    assert_eq!(events, expected.map(str::to_owned).into());
    let logs = "nodes/n/podwire-openvswitch-0";
    assert!(files.contains_key(&format!("{logs}/vswitchd-previous.log")));
    assert!(!files.contains_key(&format!("{logs}/database-previous.log")));
    let is_previous = |it: &Request| it.parameter("previous") == Some("true");
    assert!(server.requests().iter().any(is_previous));
}

#[test]
fn no_secret_of_any_place_is_in_a_sysdump() {
    let server = ApiServer::start();
    let own = "podwire-system";
    let kubeconfig = [
        "users:",
        "- name: me",
        "  user:",
        "    token: secret-1",
        "    password: secret-2",
        "    client-key-data: LS0tsecret-3",
        "clusters: [{cluster: {server: 'https://me:secret-4@192.0.2.1:6443'}}]",
    ];
    let mut settings = named("ConfigMap", own, "podwire");
    settings["data"] = json!({
        "kubeconfig": kubeconfig.join("\n"),
        "tls.key": "-----BEGIN EC PRIVATE KEY-----\nsecret-5\n-----END EC PRIVATE KEY-----\n",
        "AWS_SECRET_ACCESS_KEY": "secret-6",
        "PODWIRE_MTU": "1400",
    });
    // -----BEGIN RSA PRIVATE KEY-----
    let encoded = "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQpzZWNyZXQK";
    settings["binaryData"] = json!({ "tls": encoded });
    server.apply(settings);
    let variables = json!([
        { "name": "PODWIRE_K8S_TOKEN", "value": "secret-7" },
        { "name": "PODWIRE_LOG", "value": "debug-of-podwire" },
    ]);
    let mut agents = named("DaemonSet", own, "podwire");
    agents["spec"] = json!({ "template": { "spec": { "containers": [{ "env": variables }] } } });
    server.apply(agents);
    let mut pod = apiserver::pod(
        "n",
        "shop",
        "web",
        "web",
        json!({ "shop/token": "secret-8" }),
    );
    pod["spec"]["containers"] = json!([{
        "name": "web",
        "image": "registry.test/web:1",
        "args": ["--db", "secret-9"],
        "command": ["web", "secret-10"],
        "env": [{ "name": "DSN", "value": "secret-11" }],
        "ports": [{ "containerPort": 8080 }],
        "readinessProbe": { "httpGet": {
            "port": 8080, "httpHeaders": [{ "name": "Authorization", "value": "Basic secret-12" }],
        } },
    }]);
    server.apply(pod);
    server.apply(own_pod("podwire-controller", 0));
    server.runs(|_| {
        Ok(Ended {
            code: Some(0),
            stdout: b"Authorization: Bearer secret-13, psk=secret-14".to_vec(),
            stderr: Vec::new(),
        })
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("all.tar.gz");
    let done = sysdump(&server, &path);
    assert!(path.exists(), "{done:?}");
    let files = unpacked(&path);
    for (file, text) in &files {
        for secret in ["secret-", encoded] {
            assert!(!text.contains(secret), "{file}: {text}");
        }
    }
    let of_secrets = |it: &Request| it.path.ends_with("/secrets");
    assert!(!server.requests().iter().any(of_secrets));
    for (file, content) in [
        ("objects/configmaps.json", "\"PODWIRE_MTU\":\"1400\""),
        ("objects/daemonsets.json", "debug-of-podwire"),
        ("objects/pods.json", "\"containerPort\":8080"),
        (
            "objects/pods.json",
            "\"readinessProbe\":{\"httpGet\":{\"port\":8080}}",
        ),
        (
            "controllers/podwire-controller-0/status.json",
            "Bearer (removed)",
        ),
    ] {
        assert!(files[file].contains(content), "{file}: {}", files[file]);
    }
}

#[test]
fn one_that_is_interrupted_or_late_writes_what_it_has_and_says_so() {
    let server = ApiServer::start();
    server.apply(own_pod("podwire-ovn-northbound", 0));
    server.runs(|_| {
        Ok(Ended {
            code: Some(0),
            stdout: b"said".to_vec(),
            stderr: Vec::new(),
        })
    });
    server.withhold(Some("services"));
    let directory = tempfile::tempdir().unwrap();
    let check = |done: &Finished, path: &Path, why: &str| {
        let lacks = format!("without objects/services.json: not all had come: {why}");
        done.assert_says(Some(1), &[&lacks, &format!("it ended early: {why}")]);
        let files = unpacked(path);
        let first = "ovn/northbound/podwire-ovn-northbound-0/server.txt";
        assert_eq!(files[first], "said");
        let index: Value = serde_json::from_str(&files["sysdump.json"]).unwrap();
        assert_eq!(index["endedEarly"], json!(why));
    };

    let path = directory.path().join("interrupted.tar.gz");
    let mut interrupted = command(&server);
    interrupted.arg(&path).args(["--timeout", "60"]);
    let child = interrupted.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    // The second question to the database's pod comes after the first answer.
    server.await_requests("the database's memory", |requests| {
        let second = |it: &Request| it.query.iter().any(|(_, value)| value == "memory/show");
        let services = |it: &Request| it.path.ends_with("/services");
        requests.iter().any(second) && requests.iter().any(services)
    });
    let id = Pid::from_raw(child.id().try_into().unwrap());
    kill(id, Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    let done = Finished {
        status: output.status,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        duration: Duration::ZERO,
    };
    check(&done, &path, "interrupted");

    let path = directory.path().join("late.tar.gz");
    let mut late = command(&server);
    late.arg(&path).args(["--deadline", "5"]);
    let done = finish(late, b"", Duration::from_secs(60)).unwrap();
    check(&done, &path, "5 s were over (--deadline)");
}

#[test]
fn a_sysdump_that_is_larger_than_its_memory_is_written_as_it_comes() {
    // Of each controller two answers.
    const CONTROLLERS: usize = 100;
    const ANSWER: usize = 256 << 10;
    // RLIMIT_DATA: less than all answers.
    const MEMORY: usize = 40 << 20;
    const { assert!(2 * CONTROLLERS * ANSWER > MEMORY) };
    let server = ApiServer::start();
    for number in 0..CONTROLLERS {
        server.apply(own_pod("podwire-controller", number));
    }
    let line = format!("{}\n", "so it is ".repeat(113));
    let answer = line.repeat(ANSWER / line.len()).into_bytes();
    server.runs(move |_| {
        Ok(Ended {
            code: Some(0),
            stdout: answer.clone(),
            stderr: Vec::new(),
        })
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("large.tar.gz");
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--data={MEMORY}"));
    limited.arg(controller_binary());
    limited.args(["cluster", "sysdump", "--k8s-apiserver", &server.url()]);
    limited.arg(&path);
    let done = finish(limited, b"", Duration::from_secs(120)).unwrap();
    // The databases are elsewhere.
    let lacks = "without ovn/northbound/tables.txt: no pod serves OVN_Northbound";
    done.assert_says(Some(1), &[lacks]);
    let files = unpacked(&path);
    let last = format!(
        "controllers/podwire-controller-{}/pending.txt",
        CONTROLLERS - 1
    );
    assert_eq!(files[&last].len() / line.len(), ANSWER / line.len());
    let index: Value = serde_json::from_str(&files["sysdump.json"]).unwrap();
    assert_valid("sysdump", &index);
    assert_eq!(
        (&index["cut"], &index["largestFileBytes"]),
        (&json!([]), &json!(64 << 20))
    );
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
