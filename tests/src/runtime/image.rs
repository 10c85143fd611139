//! The image that sandboxes and containers run, made by hand: a static busybox that sleeps. No
//! registry is asked for anything.

use serde_json::json;

use crate::TestNode;
use crate::failure::{Failure, Step};

/// The image's name; `.test` is nobody's (RFC 6761).
pub const IMAGE: &str = "podwire.test/sleeper:1";

/// Debian's busybox-static.
const BUSYBOX: &str = "/bin/busybox";
const DIRECTORY: &str = "/run/image";

/// Writes the image on a node in the format of `docker save`, and returns the archive's path.
pub(crate) fn write(node: &TestNode) -> Result<String, Failure> {
    let layer = format!("{DIRECTORY}/layer");
    let content = node.path(&layer);
    for directory in ["bin", "tmp"] {
        std::fs::create_dir_all(content.join(directory))
            .step(|| format!("make the image's /{directory}"))?;
    }
    std::fs::copy(BUSYBOX, content.join("bin/busybox"))
        .step(|| format!("copy {BUSYBOX}, of busybox-static"))?;
    for applet in ["sh", "sleep", "ping", "ip", "nc"] {
        std::os::unix::fs::symlink("busybox", content.join("bin").join(applet))
            .step(|| format!("link {applet}"))?;
    }
    let tar = format!("{DIRECTORY}/layer.tar");
    node.run("tar", format!("-C {layer} -cf {tar} bin tmp"));
    let sum = node.run("sha256sum", tar);
    let digest = sum.split(' ').next().unwrap_or_default();

    let config = json!({
        "architecture": "amd64", "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest = json!([{"Config": "config.json", "RepoTags": [IMAGE], "Layers": ["layer.tar"]}]);
    for (name, text) in [("config.json", config), ("manifest.json", manifest)] {
        std::fs::write(node.path(DIRECTORY).join(name), text.to_string())
            .step(|| format!("write {name}"))?;
    }
    let archive = format!("{DIRECTORY}/image.tar");
    node.run(
        "tar",
        format!("-C {DIRECTORY} -cf {archive} manifest.json config.json layer.tar"),
    );
    Ok(archive)
}
