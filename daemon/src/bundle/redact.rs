//! Removes secrets from text of any kind: JSON, YAML, TOML, logs, command lines.

use std::sync::LazyLock;

use regex::Regex;

/// What stands in place of a secret.
pub const REMOVED: &str = "(removed)";
/// Shorter ones would match parts of words.
const SHORTEST: usize = 6;
/// The value of a key with such a suffix is a secret, unless it is a path.
const KEYS: [&str; 13] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "psk",
    "private-key",
    "secret-key",
    "access-key",
    "key-data",
    "credentials",
    "api-key",
    "apikey",
];

/// Removes secrets.
#[derive(Debug, Default)]
pub struct Redactor {
    /// Secrets known by value.
    known: Vec<String>,
}

impl Redactor {
    /// Removes this value too, wherever it occurs.
    pub fn knows(&mut self, secret: &str) {
        if secret.len() >= SHORTEST {
            self.known.push(secret.to_owned());
        }
    }

    /// The text without secrets.
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.known {
            text = text.replace(secret.as_str(), REMOVED);
        }
        for (form, shown) in &*FORMS {
            text = form.replace_all(&text, *shown).into_owned();
        }
        values(&text)
    }
}

/// Whether a name, such as `K8S_TOKEN` or `client-key-data`, is a secret's.
pub fn names_secret(name: &str) -> bool {
    let name = name.to_lowercase().replace('_', "-");
    KEYS.iter().any(|key| name.ends_with(key))
}

/// Secrets by their form, each with what it becomes.
static FORMS: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    let forms = [
        // Private keys in PEM (RFC 7468). A truncated one extends to the end of the text.
        (
            r"(?s)-----BEGIN (?:-{0,4}[^-])*PRIVATE KEY-----.*?(?:-----END .*?-----|\z)",
            REMOVED,
        ),
        // What has such a key in base64 (RFC 4648), as data of Secrets and kubeconfigs do: "PRIVATE
        // KEY", as it begins at each of the three places of a group.
        (
            "[A-Za-z0-9+/=]*(?:UFJJVkFURSBLRV|BSSVZBVEUgS0VZ|QUklWQVRFIEtFW)[A-Za-z0-9+/=]*",
            REMOVED,
        ),
        // What is before the `@` of a URL's host (RFC 3986 §3.2.1).
        (r#"://[^\s/"'?#,]*@"#, "://(removed)@"),
        // JSON web tokens (RFC 7519), which begin with `{"` in base64.
        (r"eyJ[A-Za-z0-9_.=-]*\.[A-Za-z0-9_.=-]*", REMOVED),
    ];
    forms.map(|(form, shown)| (Regex::new(form).expect("a constant, tested"), shown))
});

/// Removes the values of keys with names of secrets, and what follows `Bearer`.
fn values(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut written, mut from) = (0, 0);
    while let Some(at) = text[from..].find([':', '=', ' ']).map(|it| from + it) {
        from = at + 1;
        let key = text[written..at].trim_end_matches(['"', '\'', '\\', ' ']);
        let is_word = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let key = key.rsplit(|c| !is_word(c)).next().unwrap_or_default();
        let is_secret = match text.as_bytes()[at] {
            b' ' => key == "Bearer" || (key.starts_with("--") && names_secret(key)),
            _ => names_secret(key),
        };
        if !is_secret {
            continue;
        }
        let opened = text[from..].trim_start_matches([' ', '"', '\'', '\\']);
        let start = text.len() - opened.len();
        let quote = text[from..start].chars().find(|c| "\"'".contains(*c));
        let is_end = |c: char| match quote {
            Some(quote) => c == quote || c == '\\' || c == '\n',
            None => c.is_whitespace() || ",}])\"'".contains(c),
        };
        let end = opened.find(is_end).unwrap_or(opened.len());
        let is_none = ["", "null", "true", "false", "…", "="].contains(&&opened[..end]);
        if is_none || opened.starts_with(['/', '(', '[', '{', '-']) {
            continue;
        }
        out.push_str(&text[written..start]);
        out.push_str(REMOVED);
        written = start + end;
        from = written;
    }
    out + &text[written..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_removed_and_everything_else_stays() {
        let mut redactor = Redactor::default();
        redactor.knows("opensesame");
        for (text, shown) in [
            ("said opensesame!", "said (removed)!"),
            (
                r#"{"token": "abc def", "a": 1}"#,
                r#"{"token": "(removed)", "a": 1}"#,
            ),
            (
                r#"{\"password\":\"x\",\"b\":2}"#,
                r#"{\"password\":\"(removed)\",\"b\":2}"#,
            ),
            ("k8s-token = 's3'\n", "k8s-token = '(removed)'\n"),
            ("K8S_TOKEN=abc NEXT=1", "K8S_TOKEN=(removed) NEXT=1"),
            (
                "podwire agent --k8s-token abc --mtu 1",
                "podwire agent --k8s-token (removed) --mtu 1",
            ),
            (
                "client-key-data: QUJD\nserver: x",
                "client-key-data: (removed)\nserver: x",
            ),
            (
                "options {psk=swordfish, remote_ip=1.2.3.4}",
                "options {psk=(removed), remote_ip=1.2.3.4}",
            ),
            (
                "Authorization: Bearer abc.def",
                "Authorization: Bearer (removed)",
            ),
            ("got eyJhbGciOi.eyJpc3M.sig-_1, then", "got (removed), then"),
            ("https://me:pw@host:6443/x", "https://(removed)@host:6443/x"),
            (
                "a\n-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----\nb",
                "a\n(removed)\nb",
            ),
            ("-----BEGIN PRIVATE KEY-----\nMII", "(removed)"),
            (
                "RSA: LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVktLS0tLQo=, and EC:
                LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0tCg==
                LS0tLS1CRUdJTiBPUEVOU1NIIFBSSVZBVEUgS0VZLS0tLS0K",
                "RSA: (removed), and EC:
                (removed)
                (removed)",
            ),
            (
                "AWS_SECRET_ACCESS_KEY=abc",
                "AWS_SECRET_ACCESS_KEY=(removed)",
            ),
        ] {
            assert_eq!(redactor.text(text), shown);
        }
        for harmless in [
            "k8s-token-file = /run/token",
            "token: /run/secrets/token",
            "# k8s-token = … # $K8S_TOKEN (secret)",
            "https://host:6443/a@b",
            "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n",
            "client-certificate-data: LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCk1J",
            "reads the token of the pod, mac=0a:58:0a:ba:00:02 eyJ",
            r#""secret": null, "tokens": 3"#,
            "",
        ] {
            assert_eq!(redactor.text(harmless), harmless);
        }
    }
}
