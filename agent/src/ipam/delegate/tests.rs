//! Against the reference plugins as Debian has them (host-local and static 1.1.1, which know
//! versions up to 1.0.0), and against a script that does what real ones rarely do.

use std::time::Duration;

use podwire_cni::spec::{CniVersion, IpConfig};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::ipam::spawner::fixture::{LONG, TESTDATA, spawner};

const PLUGINS: &str = "/usr/lib/cni";

fn invocation(cni_path: &str) -> Invocation {
    Invocation {
        command: Command::Add,
        container_id: "4f1c9be0a7d2".to_owned(),
        netns: "/run/netns/none".to_owned(),
        ifname: "eth0".to_owned(),
        args: "IgnoreUnknown=1".to_owned(),
        path: cni_path.to_owned(),
    }
}

/// A call of a plugin with this `ipam` section, in version 1.0.0 unless told otherwise.
struct Fixture {
    spawner: Spawner,
    invocation: Invocation,
    kind: String,
    config: Value,
    environment: BTreeMap<String, String>,
    remarks: Remarks,
    timeout: Duration,
}

impl Fixture {
    fn new(ipam: Value) -> Self {
        Self {
            spawner: spawner(),
            invocation: invocation(&format!("{PLUGINS}:{TESTDATA}")),
            kind: ipam["type"].as_str().unwrap().to_owned(),
            config: json!({ "cniVersion": "1.0.0", "name": "pods", "type": "podwire-cni",
                "ipam": ipam }),
            environment: BTreeMap::new(),
            remarks: Remarks::default(),
            timeout: LONG,
        }
    }

    fn scripted(behaviour: &str) -> Self {
        Self::new(json!({ "type": "scripted-ipam", "behaviour": behaviour }))
    }

    fn host_local(dir: &TempDir) -> Self {
        let range = json!([[{ "subnet": "10.9.0.0/29", "gateway": "10.9.0.1" }]]);
        Self::new(json!({ "type": "host-local", "ranges": range, "dataDir": dir.path() }))
    }

    fn found<'a>(&'a self, config: &'a str) -> Result<Delegate<'a>, DelegateError> {
        let call = Call {
            invocation: &self.invocation,
            config,
            environment: &self.environment,
            remarks: &self.remarks,
            timeout: self.timeout,
        };
        Delegate::find(&self.kind, call, &self.spawner)
    }

    async fn call(&self, command: Command) -> Result<String, DelegateError> {
        let config = self.config.to_string();
        let delegate = self.found(&config)?;
        let answer = |answer| format!("{answer:?}");
        match command {
            Command::Add => {
                let result = delegate.add().await?;
                Ok(result.to_json(CniVersion::V1_1_0))
            }
            Command::Del => delegate.del().await.map(|()| String::new()),
            Command::Check => delegate.check().await.map(|()| String::new()),
            Command::Gc => delegate.gc().await.map(answer),
            Command::Status => delegate.status().await.map(answer),
            Command::Version => unreachable!("nobody delegates it"),
        }
    }

    async fn add(&self) -> Result<CniResult, DelegateError> {
        self.found(&self.config.to_string())?.add().await
    }
}

#[tokio::test]
async fn host_local_gives_an_address_keeps_it_through_check_and_takes_it_back() {
    let dir = tempfile::tempdir().unwrap();
    let mut pod = Fixture::host_local(&dir);
    let given = pod.add().await.unwrap();
    let expected = IpConfig {
        address: "10.9.0.2/29".parse().unwrap(),
        gateway: Some("10.9.0.1".parse().unwrap()),
        interface: None,
    };
    assert_eq!(given.ips, [expected]);
    let record = dir.path().join("pods/10.9.0.2");
    assert_eq!(
        std::fs::read_to_string(&record).unwrap(),
        "4f1c9be0a7d2\r\neth0"
    );

    pod.config["prevResult"] = given.to_value(CniVersion::V1_0_0);
    pod.call(Command::Check).await.unwrap();
    pod.call(Command::Del).await.unwrap();
    assert!(!record.exists());
    let error = pod.call(Command::Check).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "IPAM plugin host-local, CHECK: host-local: Failed to find address added by container \
         4f1c9be0a7d2"
    );
    pod.call(Command::Del).await.unwrap();
}

#[tokio::test]
async fn a_refusal_keeps_its_code_and_details_behind_the_plugins_name() {
    let mut pod = Fixture::new(json!({ "type": "host-local", "subnet": "10.9.0.0/24" }));
    pod.config["cniVersion"] = "1.1.0".into();
    let error = SpecError::from(pod.call(Command::Add).await.unwrap_err());
    assert_eq!(error.code, ErrorCode::INCOMPATIBLE_VERSION);
    assert_eq!(
        error.msg,
        "IPAM plugin host-local, ADD: incompatible CNI versions"
    );
    assert!(
        error
            .details
            .starts_with(r#"config is "1.1.0", plugin supports ["#),
        "{}",
        error.details
    );
}

#[tokio::test]
async fn static_gives_the_addresses_and_routes_of_the_configuration() {
    let ipam = json!({
        "type": "static",
        "addresses": [{ "address": "10.9.0.7/24", "gateway": "10.9.0.1" },
        { "address": "fd09::7/64" }],
        "routes": [{ "dst": "0.0.0.0/0" }],
        "dns": { "nameservers": ["10.9.0.53"] },
    });
    let given = Fixture::new(ipam).add().await.unwrap();
    let addresses: Vec<_> = given.ips.iter().map(|ip| ip.address.to_string()).collect();
    assert_eq!(addresses, ["10.9.0.7/24", "fd09::7/64"]);
    assert_eq!(given.routes.len(), 1);
    assert_eq!(given.dns.nameservers, ["10.9.0.53"]);
}

#[tokio::test]
async fn a_result_without_an_address_is_refused() {
    let error = Fixture::new(json!({ "type": "static" }))
        .call(Command::Add)
        .await
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "IPAM plugin static, ADD: its result has no address"
    );
    assert_eq!(error.code(), ErrorCode::DECODE);
}

#[tokio::test]
async fn the_plugin_gets_every_parameter_and_the_whole_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let mut pod = Fixture::scripted("records");
    pod.invocation.args = dir.path().display().to_string();
    pod.call(Command::Del).await.unwrap();
    let env = std::fs::read_to_string(dir.path().join("env")).unwrap();
    let mut variables: Vec<_> = env
        .lines()
        .filter(|line| line.starts_with("CNI_"))
        .collect();
    variables.sort_unstable();
    let args = format!("CNI_ARGS={}", pod.invocation.args);
    let expected = [
        args.as_str(),
        "CNI_COMMAND=DEL",
        "CNI_CONTAINERID=4f1c9be0a7d2",
        "CNI_IFNAME=eth0",
        "CNI_NETNS=/run/netns/none",
        concat!(
            "CNI_PATH=/usr/lib/cni:",
            env!("CARGO_MANIFEST_DIR"),
            "/src/ipam/testdata"
        ),
    ];
    assert_eq!(variables, expected);
    let config = std::fs::read_to_string(dir.path().join("conf")).unwrap();
    assert_eq!(config, pod.config.to_string());
}

#[tokio::test]
async fn the_plugin_gets_the_runtimes_other_variables_and_no_parameter_but_the_calls() {
    let dir = tempfile::tempdir().unwrap();
    let mut pod = Fixture::scripted("records");
    pod.invocation.args = dir.path().display().to_string();
    pod.environment = BTreeMap::from([
        ("PROBE".into(), "a=b".into()),
        ("CNI_IFNAME".into(), "stale".into()),
    ]);
    pod.call(Command::Del).await.unwrap();
    let env = std::fs::read_to_string(dir.path().join("env")).unwrap();
    for wanted in ["PROBE=a=b", "CNI_IFNAME=eth0"] {
        assert!(env.lines().any(|line| line == wanted), "{env}");
    }
    assert!(!env.contains("stale"), "{env}");
}

#[tokio::test]
async fn a_plugins_own_code_is_passed_on_for_every_verb() {
    let pod = Fixture::scripted("refuses");
    for command in [
        Command::Add,
        Command::Del,
        Command::Check,
        Command::Gc,
        Command::Status,
    ] {
        let error = SpecError::from(pod.call(command).await.unwrap_err());
        assert_eq!(error.code, ErrorCode(117));
        assert_eq!(
            error.msg,
            format!("IPAM plugin scripted-ipam, {command}: the pool is on fire")
        );
        assert_eq!(error.details, "see its log");
    }
}

#[tokio::test]
async fn a_plugin_that_fails_without_a_word_is_named_with_its_status_and_its_last_words() {
    let error = Fixture::scripted("dies")
        .call(Command::Add)
        .await
        .unwrap_err();
    let expected = r#"IPAM plugin scripted-ipam, ADD: it ended with status 2 without giving a reason; its standard error ends with "panic: no such luck""#;
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.code(), ErrorCode::IO);
}

#[tokio::test]
async fn a_result_that_is_none_is_refused() {
    let error = Fixture::scripted("babbles")
        .call(Command::Add)
        .await
        .unwrap_err();
    let expected = "IPAM plugin scripted-ipam, ADD: its result cannot be used: ";
    assert!(error.to_string().starts_with(expected), "{error}");
    assert_eq!(error.code(), ErrorCode::DECODE);
}

#[tokio::test]
async fn a_plugin_that_hangs_is_ended_and_worth_another_try() {
    let timeout = Duration::from_millis(200);
    let pod = Fixture {
        timeout,
        ..Fixture::scripted("hangs")
    };
    let error = pod.call(Command::Add).await.unwrap_err();
    let config = pod.config.to_string();
    let path = pod.found(&config).unwrap().path;
    let path = path.display();
    let expected =
        format!("IPAM plugin scripted-ipam, ADD: {path} did not end within 200 ms and was killed");
    assert_eq!(error.to_string(), expected);
    assert_eq!(error.code(), ErrorCode::TRY_AGAIN);
}

#[tokio::test]
async fn gc_and_status_are_forwarded_to_a_plugin_that_knows_them() {
    // It knows all and does nothing.
    let pod = Fixture::scripted("obliges");
    assert_eq!(pod.call(Command::Gc).await.unwrap(), "Served");
    assert_eq!(pod.call(Command::Status).await.unwrap(), "Served");
    let error = Fixture::scripted("is-full")
        .call(Command::Status)
        .await
        .unwrap_err();
    assert_eq!(error.code(), ErrorCode::NOT_AVAILABLE);
}

#[tokio::test]
async fn gc_and_status_of_a_plugin_older_than_them_are_no_failures() {
    let dir = tempfile::tempdir().unwrap();
    let mut debians = Fixture::host_local(&dir);
    // GC and STATUS name no container and no interface.
    debians.invocation.container_id.clear();
    debians.invocation.ifname.clear();
    for old in [debians, Fixture::scripted("lacks-verbs")] {
        assert_eq!(old.call(Command::Gc).await.unwrap(), "NotServed");
        assert_eq!(old.call(Command::Status).await.unwrap(), "NotServed");
    }
}

#[tokio::test]
async fn status_fails_where_every_add_would_for_the_plugin_lacks_the_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut debians = Fixture::host_local(&dir);
    debians.invocation.container_id.clear();
    debians.config["cniVersion"] = "1.1.0".into();
    let error = debians.call(Command::Status).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "IPAM plugin host-local supports the CNI versions 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, \
         1.0.0, but the configuration has 1.1.0"
    );
    assert_eq!(error.code(), ErrorCode::INCOMPATIBLE_VERSION);

    let strict = Fixture::scripted("lacks-version");
    assert_eq!(
        strict.call(Command::Status).await.unwrap_err().code(),
        ErrorCode::INCOMPATIBLE_VERSION
    );
    assert_eq!(
        strict.call(Command::Gc).await.unwrap(),
        "NotServed",
        "it holds nothing"
    );
}

#[test]
fn a_plugin_is_an_executable_file_in_a_plugin_directory_of_cni_path() {
    let dir = tempfile::tempdir().unwrap();
    let here = dir.path().to_str().unwrap();
    std::fs::write(dir.path().join("host-local"), "not executable").unwrap();
    std::fs::create_dir(dir.path().join("static")).unwrap();
    let directories = [PLUGINS.into(), dir.path().to_owned()];
    let path = |kind, cni_path: &str| file(kind, cni_path, &directories);
    let host_local = Path::new(PLUGINS).join("host-local");
    for cni_path in [
        format!("{here}:{PLUGINS}"),
        format!("::/nonexistent:{PLUGINS}"),
        format!("{PLUGINS}/../cni:{PLUGINS}"),
    ] {
        assert_eq!(path("host-local", &cni_path).unwrap(), host_local);
    }
    let error = path("static", here).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "IPAM plugin static: no executable file of that name in CNI_PATH ({here:?}); podwire \
             only uses its plugin directories: {PLUGINS}, {here} (--cni-bin-dir adds one)"
        )
    );
    assert_eq!(error.code(), ErrorCode::INVALID_CONFIG);
    for elsewhere in ["/bin", "../../bin", "src/ipam/testdata"] {
        let error = path("true", elsewhere).unwrap_err();
        assert!(matches!(error, DelegateError::NotFound { .. }), "{error}");
    }
}

#[test]
fn a_plugin_is_named_by_its_file_name_alone() {
    for kind in [
        "",
        ".",
        "..",
        "/usr/lib/cni/host-local",
        "../cni/host-local",
        "host\0local",
    ] {
        let error = file(kind, PLUGINS, &[PLUGINS.into()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("ipam.type {kind:?} is not the file name of a plugin")
        );
    }
}
