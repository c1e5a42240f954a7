//! Typed services over a network within a thread.

#![allow(unreachable_pub)]

mod access;
mod attributes;
mod calls;
mod changes;
mod chat;
mod chats;
mod chats_live;
mod chats_peers;
mod codecs;
mod connecting;
mod context;
mod decoding;
mod draining;
mod ends;
mod evolution;
mod forms;
mod greedy;
mod hostile;
mod kv;
mod layers;
mod layers_turns;
mod limits;
mod metadata;
mod method_stats;
mod middleware;
mod mutated;
mod named;
mod numbers;
mod openings;
mod panics;
mod protobuf;
mod ready;
mod replaced;
mod retries;
mod running;
mod standard;
mod statuses;
mod stopping;
mod streams;
mod threads;
mod unsent;
mod uploads;
mod verdicts;
mod world;
