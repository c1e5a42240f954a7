//! Answers about routes.

use std::net::IpAddr;

use ipnet::IpNet;

use super::Response;
use crate::config::Config;
use crate::route::NodeId;
use crate::routes::{ChangeError, Lookup, Origin, Route, Routes};

/// Bytes of a piece of a list at most, apart from its last line.
const PIECE: usize = 32 << 10;

/// Lists routes within a prefix, a piece after this route.
pub fn list(
    config: &Config,
    routes: &Routes,
    within: Option<IpNet>,
    after: Option<(IpNet, Origin)>,
) -> Response {
    let mut text = String::new();
    for route in routes.within(within, after) {
        text += &line(config, &route);
        text.push('\n');
        if text.len() >= PIECE {
            return Response::Part(text, (route.prefix, route.origin));
        }
    }
    Response::Done(text)
}

/// Finds the route of an address, and the next hop of a flow.
pub fn find(config: &Config, routes: &Routes, address: IpAddr, flow: u32) -> Response {
    let Some(route) = routes.find(address) else {
        return Response::Error(format!("no route to {address}"));
    };
    let hop = match routes.lookup(address, flow) {
        Lookup::Via(hop) => config.hop_text(&hop),
        Lookup::Unreachable | Lookup::NoRoute => "unreachable".to_owned(),
    };
    Response::Done(format!("{}\nnow {hop}\n", line(config, &route)))
}

/// Answers about changes that were to be made, all or none: their outcome, and their number.
pub fn changed(outcome: Result<(), ChangeError>, changes: usize) -> Response {
    match outcome {
        Ok(()) => Response::Done(String::new()),
        Err(ChangeError { refusal, .. }) if changes == 1 => Response::Error(refusal.to_string()),
        Err(ChangeError { position, refusal }) => {
            let line = position + 1;
            Response::Error(format!("nothing is changed: line {line} of the batch: {refusal}"))
        }
    }
}

fn line(config: &Config, route: &Route<'_>) -> String {
    let origin = match route.origin {
        Origin::Node(node) => format!("node {}", name(config, node)),
        other => other.to_string(),
    };
    let hidden = if route.is_used { "" } else { ", hidden" };
    format!("{} # {origin}{hidden}", config.route_text(route.prefix, route.members))
}

fn name(config: &Config, node: NodeId) -> &str {
    config.nodes.get(usize::from(node)).map_or("?", |node| &node.name)
}
