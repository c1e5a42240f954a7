//! Features of the map, and distances.

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::routeguide::{Feature, Point, Rectangle};

/// A feature of the file.
#[derive(Deserialize)]
struct Entry {
    name: String,
    latitude: i32,
    longitude: i32,
}

/// The features of `data/features.json`.
///
/// # Errors
/// The file is not what it should be.
pub fn load() -> Result<Vec<Feature>> {
    let text = include_str!("../data/features.json");
    let entries: Vec<Entry> = serde_json::from_str(text).context("data/features.json")?;
    let feature = |Entry { name, latitude, longitude }| Feature {
        name,
        location: Some(Point { latitude, longitude }),
    };
    Ok(entries.into_iter().map(feature).collect())
}

/// Returns whether a point is within a rectangle, or on its border. Any two opposite corners make one.
pub fn is_within(point: &Point, rectangle: &Rectangle) -> bool {
    let (lo, hi) = (rectangle.lo.unwrap_or_default(), rectangle.hi.unwrap_or_default());
    let between = |x: i32, a: i32, b: i32| a.min(b) <= x && x <= a.max(b);
    between(point.latitude, lo.latitude, hi.latitude)
        && between(point.longitude, lo.longitude, hi.longitude)
}

/// Metres between two points on a sphere, by the haversine formula.
pub fn distance(from: &Point, to: &Point) -> f64 {
    const RADIUS: f64 = 6_371_000.0;
    const DEGREES: f64 = 1e7;
    let radians = |e7: i32| (f64::from(e7) / DEGREES).to_radians();
    let (a, b) = (radians(from.latitude), radians(to.latitude));
    let half_latitude = ((b - a) / 2.0).sin();
    let half_longitude = ((radians(to.longitude) - radians(from.longitude)) / 2.0).sin();
    let h = half_latitude.powi(2) + a.cos() * b.cos() * half_longitude.powi(2);
    2.0 * RADIUS * h.sqrt().clamp(0.0, 1.0).asin()
}
