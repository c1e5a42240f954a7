//! gRPC's route guide: a server, and a client that calls its four methods.
//!
//! ```sh
//! cargo run -p courser-example-route-guide serve udp://127.0.0.1:31850
//! cargo run -p courser-example-route-guide visit udp://127.0.0.1:31850
//! ```

use anyhow::{Result, bail};
use courser::Server;
use courser_example_route_guide::routeguide::{
    Point, Rectangle, RouteGuideClient, RouteGuideServer, RouteNote,
};
use courser_example_route_guide::{RouteGuideService, data};

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", uri] => {
            let guide = RouteGuideService::new(data::load()?);
            let server = Server::bind(uri)?.add_service(RouteGuideServer::new(guide))?;
            let (uri, serving) = (server.local_uri(), server.serve()?);
            println!("serving {uri}");
            serving.await?;
        }
        ["visit", uri] => {
            let guide = RouteGuideClient::connect(uri).await?;
            let patriots_path = Point { latitude: 407_838_351, longitude: -746_143_763 };
            let feature = guide.get_feature(patriots_path).await?;
            println!("feature: {}", feature.name);
            list_features(&guide).await?;
            record_route(&guide).await?;
            chat(&guide).await?;
        }
        _ => bail!("usage: route-guide serve URI | route-guide visit URI"),
    }
    Ok(())
}

async fn list_features(guide: &RouteGuideClient) -> Result<()> {
    let rectangle = Rectangle {
        lo: Some(Point { latitude: 400_000_000, longitude: -750_000_000 }),
        hi: Some(Point { latitude: 420_000_000, longitude: -730_000_000 }),
    };
    let mut features = guide.list_features(rectangle).await?;
    let mut count = 0;
    while let Some(feature) = features.next().await {
        println!("in the rectangle: {}", feature?.name);
        count += 1;
    }
    println!("{count} features in the rectangle");
    Ok(())
}

async fn record_route(guide: &RouteGuideClient) -> Result<()> {
    let mut points = guide.record_route().await?;
    for point in data::load()?.iter().filter_map(|feature| feature.location.as_ref()) {
        points.send(point).await?;
    }
    let summary = points.finish().await?;
    println!(
        "route: {} points, {} features, {} m",
        summary.point_count, summary.feature_count, summary.distance
    );
    Ok(())
}

async fn chat(guide: &RouteGuideClient) -> Result<()> {
    let mut chat = guide.route_chat().await?;
    for n in 0..4 {
        let location = Some(Point { latitude: 409_146_138 + n % 2, longitude: -746_188_906 });
        chat.send(&RouteNote { location, message: format!("note {n}") }).await?;
    }
    let mut notes = chat.finish();
    while let Some(note) = notes.next().await {
        println!("chat: {}", note?.message);
    }
    Ok(())
}
