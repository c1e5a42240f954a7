//! gRPC's route guide: the service is generated from `proto/route_guide.proto` by the build script.

use std::sync::Arc;
use std::time::Instant;

use courser::grpc::Status;
use courser::service::{CallContext, Incoming, Stream};
use futures::{StreamExt, stream};

pub mod data;
pub mod notes;

/// The generated service and its messages.
#[allow(missing_docs)]
pub mod routeguide {
    courser::include_proto!("routeguide");
}

use notes::{Memory, Notes};
use routeguide::{Feature, Point, Rectangle, RouteGuide, RouteNote, RouteSummary};

/// A server's implementation.
#[derive(Debug)]
pub struct RouteGuideService {
    features: Arc<Vec<Feature>>,
    memory: Memory,
}

impl RouteGuideService {
    /// A guide to these features.
    pub fn new(features: Vec<Feature>) -> Self {
        RouteGuideService { features: Arc::new(features), memory: Memory::default() }
    }

    /// The memory for the notes of all chats, in place of 64 MiB, of which a client gets 16.
    #[must_use]
    pub fn with_memory(mut self, memory: Memory) -> Self {
        self.memory = memory;
        self
    }

    fn at(&self, point: &Point) -> Option<&Feature> {
        self.features.iter().find(|feature| feature.location.as_ref() == Some(point))
    }
}

impl RouteGuide for RouteGuideService {
    async fn get_feature(&self, request: Point) -> Result<Feature, Status> {
        Ok(self.at(&request).cloned().unwrap_or_default())
    }

    fn list_features(&self, request: Rectangle) -> impl Stream<Item = Result<Feature, Status>> {
        let features = self.features.clone();
        let found = (0..features.len()).filter_map(move |i| {
            let feature = &features[i];
            let location = feature.location.as_ref()?;
            data::is_within(location, &request).then(|| Ok(feature.clone()))
        });
        stream::iter(found)
    }

    async fn record_route(&self, mut requests: Incoming<Point>) -> Result<RouteSummary, Status> {
        let (mut summary, mut distance) = (RouteSummary::default(), 0.0);
        let (mut last, start) = (None, Instant::now());
        while let Some(point) = requests.next().await {
            let point = point?;
            summary.point_count = summary.point_count.saturating_add(1);
            if self.at(&point).is_some() {
                summary.feature_count = summary.feature_count.saturating_add(1);
            }
            if let Some(last) = last.replace(point) {
                distance += data::distance(&last, &point);
            }
        }
        // Conversions of floating-point numbers saturate.
        summary.distance = distance as i32;
        summary.elapsed_time = start.elapsed().as_secs().try_into().unwrap_or(i32::MAX);
        Ok(summary)
    }

    fn route_chat(
        &self,
        cx: CallContext,
        requests: Incoming<RouteNote>,
    ) -> impl Stream<Item = Result<RouteNote, Status>> {
        let client = cx.peer().map_or(0, |peer| peer.addr().host);
        let mut notes = Notes::new(self.memory.clone(), client);
        requests.flat_map(move |note| {
            let answers = match note.map_err(Status::from).and_then(|note| notes.add(note)) {
                Ok(all) => all.into_iter().map(Ok).collect(),
                Err(status) => vec![Err(status)],
            };
            stream::iter(answers)
        })
    }
}
