//! Server and client in one process, over sockets and in a simulated datacenter.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::grpc::{Code, Status};
use courser::service::Channel;
use courser::{Nexus, Server, Serving};
use courser_example_route_guide::notes::{Memory, Notes};
use courser_example_route_guide::routeguide::{
    Feature, Point, Rectangle, RouteGuideClient, RouteGuideServer, RouteNote,
};
use courser_example_route_guide::{RouteGuideService, data};
use courser_sim::fabric::Topology;
use courser_sim::{World, WorldConfig};

fn guide() -> RouteGuideService {
    RouteGuideService::new(data::load().unwrap())
}

async fn start() -> (Serving, RouteGuideClient) {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(RouteGuideServer::new(guide())).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    (serving, RouteGuideClient::connect(&uri).await.unwrap())
}

fn point(latitude: i32, longitude: i32) -> Point {
    Point { latitude, longitude }
}

fn note(latitude: i32, message: &str) -> RouteNote {
    RouteNote { location: Some(point(latitude, 1)), message: message.to_owned() }
}

/// Uses the four methods, and returns a text about each.
async fn visit<C: Channel>(guide: &RouteGuideClient<C>) -> [String; 4] {
    let feature = guide.get_feature(point(407_838_351, -746_143_763)).await.unwrap();
    let nowhere = guide.get_feature(point(0, 0)).await.unwrap();
    assert_eq!(nowhere, Feature::default());

    let hi = point(410_000_000, -740_000_000);
    let rectangle = Rectangle { lo: Some(point(400_000_000, -750_000_000)), hi: Some(hi) };
    let mut features = guide.list_features(rectangle).await.unwrap();
    let mut count = 0;
    while let Some(feature) = features.next().await {
        let location = feature.unwrap().location.unwrap();
        assert!(data::is_within(&location, &rectangle));
        count += 1;
    }

    let mut points = guide.record_route().await.unwrap();
    for at in [point(0, 0), point(10_000_000, 0), point(407_838_351, -746_143_763)] {
        points.send(&at).await.unwrap();
    }
    let summary = points.finish().await.unwrap();
    let (from, to) = (point(10_000_000, 0), point(407_838_351, -746_143_763));
    let metres = 111_194.9 + data::distance(&from, &to);
    assert!((f64::from(summary.distance) - metres).abs() < 2.0, "{summary:?}");

    let mut chat = guide.route_chat().await.unwrap();
    let mut received = Vec::new();
    for (sent, answers) in [(note(1, "a"), 1), (note(2, "b"), 1), (note(1, "c"), 2)] {
        chat.send(&sent).await.unwrap();
        for _ in 0..answers {
            received.push(chat.next().await.unwrap().unwrap().message);
        }
    }
    assert!(chat.finish().next().await.is_none());
    [
        feature.name,
        format!("{count} features"),
        format!("{} points, {} features", summary.point_count, summary.feature_count),
        received.join(" "),
    ]
}

const VISIT: [&str; 4] =
    ["Patriots Path, Mendham, NJ 07945, USA", "4 features", "3 points, 1 features", "a b a c"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_four_methods_answer_over_sockets() {
    let (_serving, guide) = start().await;
    assert_eq!(visit(&guide).await, VISIT);
}

#[test]
fn all_four_methods_answer_in_the_simulator() {
    let mut world = World::new(WorldConfig::new(1, Topology::one_switch(2))).unwrap();
    let [server, client] = world.hosts().collect::<Vec<_>>()[..] else { unreachable!() };
    let setup = |nexus: &Nexus| {
        let mut rpc = nexus.endpoint()?;
        rpc.add_service(RouteGuideServer::local(guide()))?;
        anyhow::Ok(rpc)
    };
    world.start(server, setup).unwrap();
    world.start(client, Nexus::endpoint).unwrap();
    let (uri, local) = (world.uri(server), world.rpc(client).local());
    let texts = Rc::new(RefCell::new(None));
    let result = texts.clone();
    drop(local.clone().spawn(async move {
        let session = local.connect(&uri).await.unwrap();
        let guide = RouteGuideClient::new(session).await.unwrap();
        *result.borrow_mut() = Some(visit(&guide).await);
    }));
    world.rpc(client).handle().wake();
    world.run_until(Duration::from_secs(10), |_| texts.borrow().is_some());
    assert_eq!(texts.take().expect("it ends"), VISIT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_ends_with_the_status_of_a_wrong_note() {
    let (_serving, guide) = start().await;
    let mut chat = guide.route_chat().await.unwrap();
    chat.send(&RouteNote::default()).await.unwrap();
    let error = chat.next().await.unwrap().unwrap_err();
    assert_eq!(Status::from(error).code(), Code::InvalidArgument);
}

#[test]
fn a_chat_keeps_a_bounded_number_of_notes() {
    let mut notes = Notes::default();
    for n in 0..20 {
        let all = notes.add(note(1, &n.to_string())).unwrap();
        assert_eq!(all.len(), 8.min(n + 1));
        assert_eq!(all.last().unwrap().message, n.to_string());
    }
    for latitude in 2..1_025 {
        notes.add(note(latitude, "")).unwrap();
    }
    assert_eq!(notes.add(note(0, "")).unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(notes.add(note(1, "x")).unwrap().len(), 8);
    let long = notes.add(note(1, &"x".repeat(5_000))).unwrap_err();
    assert_eq!(long.code(), Code::InvalidArgument);
}

#[test]
fn the_notes_of_a_client_and_of_all_clients_are_bounded() {
    let memory = Memory::with_limits(20_000, 10_000);
    let mut chats: Vec<_> = (0..9).map(|n| Notes::new(memory.clone(), n / 3)).collect();
    let mut kept = [0_usize; 3];
    for n in 0..90 {
        let chat = n % 9;
        match chats[chat].add(note(1_000 + n as i32, &"x".repeat(744))) {
            Ok(_) => kept[chat / 3] += 1,
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted),
        }
    }
    // Each note takes 1,000 bytes.
    assert_eq!((kept.iter().sum::<usize>(), memory.held()), (20, 20_000));
    assert!(kept.iter().all(|kept| *kept <= 10), "{kept:?}");
    chats.truncate(3);
    assert_eq!(memory.held(), 1_000 * kept[0]);
    // The notes of another client have room again, and the oldest of a place makes room.
    let mut other = Notes::new(memory.clone(), 7);
    for n in 0..20 {
        assert_eq!(other.add(note(1, "text")).unwrap().len(), 8.min(n + 1));
    }
    drop((chats, other));
    assert_eq!(memory.held(), 0);
}

#[test]
fn a_note_takes_the_memory_of_the_oldest_one_of_its_place() {
    // Eight notes of 300 bytes.
    let memory = Memory::with_limits(2_400, 2_400);
    let mut notes = Notes::new(memory.clone(), 1);
    for n in 0..20 {
        assert_eq!(notes.add(note(1, &"x".repeat(44))).unwrap().len(), 8.min(n + 1));
    }
    assert_eq!(memory.held(), 2_400);
    let full = notes.add(note(1, &"x".repeat(45))).unwrap_err();
    assert_eq!((full.code(), memory.held()), (Code::ResourceExhausted, 2_400));
    assert_eq!(notes.add(note(1, "")).unwrap().len(), 8, "the oldest one was kept");
    assert_eq!(memory.held(), 2_356);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_chats_of_a_server_share_its_memory_which_is_free_at_their_end() {
    let memory = Memory::with_limits(2_000, 2_000);
    let guide = guide().with_memory(memory.clone());
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(RouteGuideServer::new(guide)).unwrap();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    let guide = RouteGuideClient::connect(&uri).await.unwrap();
    let mut one = guide.route_chat().await.unwrap();
    one.send(&note(1, &"x".repeat(1_200))).await.unwrap();
    assert!(one.next().await.unwrap().is_ok());
    let mut two = guide.route_chat().await.unwrap();
    two.send(&note(1, &"x".repeat(1_200))).await.unwrap();
    let error = two.next().await.unwrap().unwrap_err();
    assert_eq!(Status::from(error).code(), Code::ResourceExhausted);
    drop((one, two));
    while memory.held() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
