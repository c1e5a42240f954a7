//! Property tests against plain bitmaps.

mod end_to_end;
mod model;
mod pool;
mod receiver;
mod sender;
