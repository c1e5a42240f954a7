//! Changes of members and addresses.

use super::*;

/// Changes the members. Returns false if they were so already.
fn change(cluster: &mut Cluster, change: MemberChange) -> Result<bool, MemberError> {
    let (sender, mut result) = oneshot::channel();
    let leader = cluster.leader();
    if !cluster.node(leader).change_members(&change, sender)? {
        return Ok(false);
    }
    cluster.settle();
    assert_eq!(result.try_recv(), Ok(Some(Ok(Applied::Done))));
    Ok(true)
}

#[test]
fn a_node_is_added_catches_up_is_promoted_and_another_removed() {
    let mut cluster = Cluster::new(3, |_| {});
    let session = cluster.open();
    cluster.put((session, 1), "a", "1");
    let early = change(&mut cluster, MemberChange::Promote { id: 4 });
    assert_eq!(early, Err(MemberError::NoMember(4)));
    assert_eq!(change(&mut cluster, add("n4")), Ok(true));
    assert_eq!(change(&mut cluster, add("other")), Err(MemberError::Member(4)));
    let node = Core::new(settings(4), Log::default(), Store::default(), None, cluster.now_ns);
    cluster.nodes.insert(4, node.unwrap());
    cluster.ticks(20);
    cluster.agree();
    assert_eq!(cluster.node(4).status().role, "learner");
    assert_eq!(change(&mut cluster, MemberChange::Promote { id: 4 }), Ok(true));
    let leader = cluster.leader();
    let refused = change(&mut cluster, remove(leader));
    assert_eq!(refused, Err(MemberError::Leader(leader)));
    let gone = if leader == 1 { 2 } else { 1 };
    assert_eq!(change(&mut cluster, remove(gone)), Ok(true));
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

fn remove(id: u64) -> MemberChange {
    MemberChange::Remove { id, force: false }
}

fn add(uri: &str) -> MemberChange {
    MemberChange::Add { id: 4, uri: uri.to_owned() }
}

#[test]
fn a_change_that_is_repeated_after_a_lost_answer_has_nothing_to_do() {
    let mut cluster = Cluster::new(3, |_| {});
    assert_eq!(change(&mut cluster, add("n4")), Ok(true));
    assert_eq!(change(&mut cluster, add("n4")), Ok(false));
    let node = Core::new(settings(4), Log::default(), Store::default(), None, cluster.now_ns);
    cluster.nodes.insert(4, node.unwrap());
    cluster.ticks(20);
    for is_new in [true, false] {
        assert_eq!(change(&mut cluster, MemberChange::Promote { id: 4 }), Ok(is_new));
        assert_eq!(change(&mut cluster, add("n4")), Ok(false));
    }
    assert_eq!(change(&mut cluster, add("other")), Err(MemberError::Member(4)));
    for is_new in [true, false] {
        assert_eq!(change(&mut cluster, remove(4)), Ok(is_new));
    }
    let zero = MemberChange::Add { id: 0, uri: "n0".to_owned() };
    assert_eq!(change(&mut cluster, zero), Err(MemberError::Number));
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

#[test]
fn a_removal_that_would_leave_no_quorum_is_refused_unless_forced() {
    let mut cluster = Cluster::new(3, |_| {});
    let leader = cluster.leader();
    let (dead, live) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    cluster.cut = vec![dead];
    cluster.ticks(20);
    let refused = change(&mut cluster, remove(live)).unwrap_err();
    assert_eq!(refused, MemberError::Quorum { reachable: vec![leader], silent: vec![dead] });
    let text = refused.to_string();
    assert!(text.contains(&format!("{leader} answer, and {dead} do not")), "{text}");
    // The dead one can be removed, and then the last but one.
    assert_eq!(change(&mut cluster, remove(dead)), Ok(true));
    assert_eq!(change(&mut cluster, remove(live)), Ok(true));
    assert_eq!(cluster.node(leader).status().members.len(), 1);
}

#[test]
fn a_forced_removal_is_proposed_and_a_silent_learner_is_not_promoted() {
    let mut cluster = Cluster::new(3, |_| {});
    let leader = cluster.leader();
    let (dead, live) = (leader % 3 + 1, (leader + 1) % 3 + 1);
    assert_eq!(change(&mut cluster, add("n4")), Ok(true));
    let node = Core::new(settings(4), Log::default(), Store::default(), None, cluster.now_ns);
    cluster.nodes.insert(4, node.unwrap());
    cluster.ticks(20);
    cluster.cut = vec![dead, 4];
    cluster.ticks(20);
    let refused = change(&mut cluster, MemberChange::Promote { id: 4 });
    let mut silent = vec![dead, 4];
    silent.sort_unstable();
    assert!(matches!(refused, Err(MemberError::Quorum { silent: found, .. }) if found == silent));
    assert!(change(&mut cluster, remove(live)).is_err());
    let (sender, _result) = oneshot::channel();
    let forced = MemberChange::Remove { id: live, force: true };
    assert_eq!(cluster.node(leader).change_members(&forced, sender), Ok(true));
    cluster.settle();
    assert_eq!(cluster.node(leader).status().members.len(), 3);
}
