use std::collections::HashSet;
use tokio::sync::Semaphore;

use super::super::reaper::{self, Reaper};
use super::*;

#[test]
fn a_deleted_link_is_gone_at_both_ends_when_that_is_told() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let (host, _) = netlink.attached(&pod, spec("a1")).await.unwrap();
        netlink.delete(vec![host.link.clone()]).await.unwrap();
        assert!(veth_names().is_empty());
        assert_eq!(pod.json("link show type veth"), Value::Array(vec![]));
        // And again, as a repeated DEL does.
        netlink.delete(vec![host.link]).await.unwrap();
    });
}

#[test]
fn the_same_link_may_be_deleted_by_two_at_once() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let (host, _) = netlink.attached(&pod, spec("a1")).await.unwrap();
        let (one, other) = tokio::join!(
            netlink.delete(vec![host.link.clone(), host.link.clone()]),
            netlink.delete(vec![host.link.clone()]),
        );
        assert_eq!((one, other), (Ok(()), Ok(())));
    });
}

#[test]
fn a_link_is_left_alone_unless_name_index_and_kind_agree() {
    on_own_host(async |netlink| {
        run("ip link add bridge type bridge");
        run("ip link add foreign type veth peer foreignp");
        let index = |name: &str| {
            json(&format!("link show {name}"))[0]["ifindex"]
                .as_u64()
                .unwrap()
        };
        let (bridge, foreign) = (index("bridge") as u32, index("foreign") as u32);
        let link = |ifindex, name: &str| HostLink {
            ifindex,
            name: name.to_owned(),
        };

        let others = vec![
            link(foreign, "a1"),
            link(foreign + 1000, "foreign"),
            link(bridge, "foreign"),
            link(bridge, "bridge"),
        ];
        netlink.delete(others).await.unwrap();
        assert_eq!(veth_names(), ["foreign", "foreignp"]);
        assert_eq!(index("bridge"), u64::from(bridge));

        // Together with one that does agree, too.
        let pod = Pod::new();
        let (host, _) = netlink.attached(&pod, spec("a1")).await.unwrap();
        netlink
            .delete(vec![link(foreign, "a2"), host.link, link(bridge, "a3")])
            .await
            .unwrap();
        assert_eq!(veth_names(), ["foreign", "foreignp"]);
    });
}

#[test]
fn a_burst_of_200_deleted_16_at_a_time_leaves_only_foreign_links() {
    on_own_host(async |netlink| {
        run("ip link add foreign type veth peer foreignp");
        let pods: Vec<Pod> = (0..10).map(|_| Pod::new()).collect();
        let mut links = Vec::new();
        for number in 0..200 {
            let own = LinkSpec {
                pod_name: format!("eth{number}"),
                addresses: Vec::new(),
                ..spec(&format!("b{number}"))
            };
            let (host, _) = netlink
                .attached(&pods[number % pods.len()], own)
                .await
                .unwrap();
            links.push(host.link);
        }
        let indexes: HashSet<u32> = links.iter().map(|link| link.ifindex).collect();
        assert_eq!(indexes.len(), 200);
        assert_eq!(netlink.list_veths().await.unwrap().len(), 202);

        let at_once = Arc::new(Semaphore::new(16));
        let deletions: Vec<_> = links
            .into_iter()
            .map(|link| {
                let (netlink, at_once) = (netlink.clone(), at_once.clone());
                tokio::spawn(async move {
                    let _turn = at_once.acquire().await.unwrap();
                    netlink.delete(vec![link]).await
                })
            })
            .collect();
        for deletion in deletions {
            deletion.await.unwrap().unwrap();
        }
        assert_eq!(veth_names(), ["foreign", "foreignp"]);
        for pod in &pods {
            assert_eq!(pod.json("link show type veth"), Value::Array(vec![]));
        }
    });
}

#[test]
fn a_link_whose_namespace_is_gone_is_deleted_or_found_gone() {
    on_own_host(async |netlink| {
        let pod = Pod::new();
        let (host, end) = netlink.attached(&pod, spec("a1")).await.unwrap();
        drop((pod, end));
        netlink.delete(vec![host.link]).await.unwrap();
        assert!(veth_names().is_empty());
    });
}

#[test]
fn where_notifications_are_lost_the_kernels_answer_is_enough() {
    on_own_thread(|| {
        for number in 0..3 {
            run(&format!("ip link add v{number} type veth peer p{number}"));
        }
        // No monitor keeps these links current.
        let reaper = Reaper::new(Arc::default());
        let socket = reaper::sockets().unwrap().pop().unwrap();
        let gone: Vec<_> = (0..3)
            .map(|number| {
                let name = format!("v{number}");
                let ifindex = json(&format!("link show {name}"))[0]["ifindex"]
                    .as_u64()
                    .unwrap();
                reaper.submit(HostLink {
                    ifindex: ifindex as u32,
                    name,
                })
            })
            .collect();
        reaper.close();
        let thread = thread::spawn({
            let reaper = reaper.clone();
            // A thread inherits the namespace of the one that starts it.
            move || reaper.run(socket)
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        for told in gone {
            let told = async { tokio::time::timeout(Duration::from_secs(30), told).await };
            runtime
                .block_on(told)
                .expect("not told for 30 s")
                .unwrap()
                .unwrap();
        }
        thread.join().unwrap();
        assert!(veth_names().is_empty());
    });
}

#[test]
fn dropping_the_last_handle_ends_every_thread() {
    on_own_thread(|| {
        let netlink = Netlink::start(None).unwrap();
        let links = netlink.watch_link("any");
        assert!(links.has_changed().is_ok());
        drop(netlink);
        // The watch ends with the monitor, the last of whatever holds the links.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut links = links;
        let ended = runtime.block_on(async {
            tokio::time::timeout(Duration::from_secs(30), links.changed()).await
        });
        assert!(ended.expect("threads still run after 30 s").is_err());
    });
}
