use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_was_rotated_in_its_file_is_used_for_the_next_request() {
    let server = ApiServer::start();
    server.accept_tokens(Some(&["first"]));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    writeln!(file, "first").unwrap();
    let sources = start(server_access(&server, Token::File(file.path().into())));
    server.await_watches(1);
    server.accept_tokens(Some(&["second"]));
    server.apply(annotated("p", "u1", "a"));
    assert_eq!(
        said(ask(&sources, "p", "u1", LONG).await),
        "a",
        "the watch outlives its token"
    );
    server.break_connections();
    failing(&sources, "Unauthorized").await;
    std::fs::write(file.path(), "second\n").unwrap();
    let add = asking(&sources, "q", "u2").await;
    server.apply(annotated("q", "u2", "b"));
    assert_eq!(said(add.await.unwrap()), "b");
    std::fs::remove_file(file.path()).unwrap();
    server.break_connections();
    let problem = failing(&sources, "read token").await;
    assert!(problem.contains("No such file"), "{problem}");
}

#[tokio::test(flavor = "multi_thread")]
async fn https_is_spoken_to_a_server_whose_ca_is_known_and_to_no_other() {
    let server = ApiServer::start_tls();
    let other = ApiServer::start_tls();
    server.apply(annotated("p", "u1", "a"));
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(server.ca().as_bytes()).unwrap();
    let access = |url: String| Access::Server {
        url,
        ca: Some(file.path().into()),
        token: Token::None,
    };
    let sources = start(access(server.url()));
    assert_eq!(said(ask(&sources, "p", "u1", LONG).await), "a");
    let sources = start(access(other.url()));
    failing(&sources, "certificate").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kubeconfig_leads_to_the_server_and_one_that_needs_a_program_is_refused() {
    let server = ApiServer::start_tls();
    server.accept_tokens(Some(&["secret"]));
    server.apply(annotated("p", "u1", "a"));
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("ca.crt"), server.ca()).unwrap();
    std::fs::write(path("token"), "secret").unwrap();
    let kubeconfig = |user: Value| {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{ "name": "c", "context": { "cluster": "k", "user": "u" } }],
            "clusters": [{ "name": "k", "cluster": {
                "server": server.url(), "certificate-authority": path("ca.crt"),
            } }],
            "users": [{ "name": "u", "user": user }],
        })
    };
    let with_token = kubeconfig(json!({ "tokenFile": path("token") }));
    std::fs::write(path("good"), with_token.to_string()).unwrap();
    let sources = start(Access::Kubeconfig(path("good")));
    assert_eq!(said(ask(&sources, "p", "u1", LONG).await), "a");

    let program =
        json!({ "apiVersion": "client.authentication.k8s.io/v1", "command": "/bin/false" });
    let with_program = kubeconfig(json!({ "exec": program }));
    std::fs::write(path("bad"), with_program.to_string()).unwrap();
    let sources = start(Access::Kubeconfig(path("bad")));
    failing(&sources, "its user needs a program (exec)").await;
    let sources = start(Access::Kubeconfig(path("none")));
    failing(&sources, "none: No such file").await;
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let sources = start(Access::Kubeconfig(path("pipe")));
    failing(&sources, "pipe: not a regular file").await;
    let large = std::fs::File::create(path("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    let sources = start(Access::Kubeconfig(path("large")));
    failing(&sources, "large: larger than 1048576 bytes").await;
    let names_it = kubeconfig(json!({ "client-certificate": path("pipe") }));
    std::fs::write(path("names"), names_it.to_string()).unwrap();
    let sources = start(Access::Kubeconfig(path("names")));
    failing(&sources, "pipe: not a regular file").await;
    std::fs::write(path("half"), b"\xff\xfea").unwrap();
    let sources = start(Access::Kubeconfig(path("half")));
    failing(&sources, "half: not UTF-8").await;
}
