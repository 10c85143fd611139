//! docs/metrics.md, "From another machine": its commands and files, and Prometheus that scrapes an
//! agent through the proxy; whoever has no certificate for it gets nothing.

use podwire_tests::walkthrough::{self, Walkthrough};

const PAGE: &str = include_str!("../../docs/metrics.md");

/// The machine is the node, Prometheus' own, and the one on which keys are made.
const MACHINE: &str = r#"
shopt -s expand_aliases
written_to_an_overlay /etc /var
ip addr add 192.0.2.11/24 dev lo
mkdir /run/keys /etc/prometheus/podwire
cd /run/keys
apt-get() { [[ -x /usr/bin/stunnel4 ]]; }
systemctl() {
    [[ $* == "enable --now stunnel@podwire" ]]
    stunnel4 /etc/stunnel/podwire.conf > /run/stunnel.log 2>&1 &
    grep -q --max-count 1 'Configuration successful' < <(tail -n +1 -F /run/stunnel.log 2>/dev/null)
}
mkdir -m 0700 /run/podwire
"$PODWIRE" agent --metrics-address 127.0.0.1:9476 > /run/agent.log 2>&1 &
"#;

/// What others than Prometheus get, and Prometheus.
const SCRAPES: &str = r#"
cp metrics-keys/{ca.crt,prometheus.crt,prometheus.key} /etc/prometheus/podwire
get() {
    curl --silent --fail --max-time 20 --cacert metrics-keys/ca.crt \
        --connect-to podwire-metrics:10476:192.0.2.11:10476 "$@" https://podwire-metrics:10476/metrics
}
echo '# nobody'
get | grep -c podwire_ready || true
echo '# a node'
get --cert metrics-keys/node.crt --key metrics-keys/node.key | grep -c podwire_ready || true
echo '# Prometheus'
get --cert metrics-keys/prometheus.crt --key metrics-keys/prometheus.key | grep -c '^podwire_ready '
prometheus --config.file=/etc/prometheus/prometheus.yml --storage.tsdb.path=/run/tsdb \
    --web.listen-address=127.0.0.1:9090 > /run/prometheus.log 2>&1 &
until curl --silent --get --data-urlencode 'query=up{job="podwire"} == 1 and podwire_ready == 0' \
    http://127.0.0.1:9090/api/v1/query > /run/answer && grep --quiet 192.0.2.11:10476 /run/answer; do
    sleep 0.1
done
echo '# scraped'
cat /run/answer
"#;

fn block(language: &str) -> String {
    let (_, section) = PAGE.split_once("\n## From another machine\n").unwrap();
    let (_, rest) = section.split_once(&format!("```{language}\n")).unwrap();
    rest.split_once("```").unwrap().0.to_owned()
}

#[test]
fn prometheus_scrapes_through_the_documented_proxy_and_nobody_else() {
    let (_, section) = PAGE.split_once("\n## From another machine\n").unwrap();
    let mut walkthrough = Walkthrough::on(MACHINE);
    let write = |file: &str, text: &str| format!("cat > {file} <<'END'\n{text}END");
    for command in walkthrough::commands(section.split("\n## ").next().unwrap()) {
        if command.starts_with("systemctl") {
            walkthrough.aside(&write("/etc/stunnel/podwire.conf", &block("ini")));
        }
        walkthrough.follow(&command);
    }
    // By default it scrapes once a minute.
    let config = format!("global: {{scrape_interval: 1s}}\n{}", block("yaml"));
    walkthrough.aside(&write("/etc/prometheus/prometheus.yml", &config));
    walkthrough.aside(SCRAPES);
    let transcript = walkthrough.run().unwrap();
    let got = |who: &str| transcript.printed_by(who).unwrap().trim().to_owned();
    assert_eq!(got("nobody"), "0", "{transcript:?}");
    assert_eq!(got("a node"), "0", "{transcript:?}");
    assert_eq!(got("Prometheus"), "1", "{transcript:?}");
    assert!(
        got("scraped").contains("192.0.2.11:10476"),
        "{transcript:?}"
    );
}
