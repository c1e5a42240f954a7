//! Changes of members and addresses.

use super::*;

fn change(cluster: &mut Cluster, change: MemberChange) -> Result<(), MemberError> {
    let (sender, mut result) = oneshot::channel();
    let leader = cluster.leader();
    cluster.node(leader).change_members(&change, sender)?;
    cluster.settle();
    assert_eq!(result.try_recv(), Ok(Some(Ok(Applied::Done))));
    Ok(())
}

#[test]
fn a_node_is_added_catches_up_is_promoted_and_another_removed() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    cluster.put((session, 1), "a", "1");
    let early = change(&mut cluster, MemberChange::Promote { id: 4 });
    assert_eq!(early, Err(MemberError::NoMember(4)));
    change(&mut cluster, MemberChange::Add { id: 4, uri: "n4".to_owned() }).unwrap();
    let again = change(&mut cluster, MemberChange::Add { id: 4, uri: "n4".to_owned() });
    assert_eq!(again, Err(MemberError::Member(4)));
    let node = Core::new(settings(4), Log::default(), Store::default(), None, cluster.now_ns);
    cluster.nodes.insert(4, node.unwrap());
    cluster.ticks(20);
    cluster.agree();
    assert_eq!(cluster.node(4).status().role, "learner");
    change(&mut cluster, MemberChange::Promote { id: 4 }).unwrap();
    let leader = cluster.leader();
    let refused = change(&mut cluster, MemberChange::Remove { id: leader });
    assert_eq!(refused, Err(MemberError::Leader(leader)));
    let gone = if leader == 1 { 2 } else { 1 };
    change(&mut cluster, MemberChange::Remove { id: gone }).unwrap();
    cluster.nodes.remove(&gone);
    cluster.put((session, 2), "a", "2");
    cluster.agree();
    let members = cluster.node(leader).status().members;
    let voters: Vec<_> = (1..=4).filter(|id| *id != gone).collect();
    assert_eq!(members.iter().map(|member| member.id).collect::<Vec<_>>(), voters);
    assert!(members.iter().all(|member| member.votes && member.uri == format!("n{}", member.id)));
    // The quorum is two of these three.
    cluster.cut = vec![4];
    cluster.put((session, 3), "a", "3");
}

#[test]
fn the_first_leader_gives_the_cluster_its_number_for_good() {
    let mut cluster = Cluster::new(3, |settings| settings.cluster = 70 + settings.id);
    let leader = cluster.leader();
    let identity = cluster.node(leader).store().identity();
    assert_eq!(identity.cluster, 70 + leader);
    assert_ne!(identity.founders, 0);
    cluster.cut = vec![leader];
    cluster.ticks(60);
    assert_ne!(cluster.leader(), leader);
    cluster.cut.clear();
    cluster.agree();
    assert_eq!(cluster.node(leader).store().identity(), identity);
    let other = Cluster::new(2, |_| {}).node(1).store().identity();
    assert!(!other.fits(identity) && identity.fits(Default::default()));
}

#[test]
fn an_announced_address_goes_through_the_log() {
    let mut cluster = Cluster::new(3, |_| {});
    let leader = cluster.leader();
    for (id, uri) in [(2, "n2"), (2, "moved"), (2, "moved"), (7, "stranger")] {
        cluster.node(leader).announce(id, uri);
        cluster.settle();
    }
    cluster.agree();
    let addresses = cluster.node(1).store().addresses();
    let known: Vec<_> = addresses.values().map(String::as_str).collect();
    assert_eq!(known, ["n1", "moved", "n3"]);
}
