//! Text from users: addresses of servers, transports to open, sizes and times on the command line.
//! Parsed values that can be written survive writing and parsing.

use courser::Uri;

#[allow(dead_code)] // a part of the program, used as it stands there
#[path = "../../crates/kit/src/units.rs"]
mod units;

pub fn run(text: &str) {
    if let Ok(uri) = text.parse::<Uri>() {
        let written = uri.to_string();
        assert_eq!(written.parse::<Uri>().as_ref(), Ok(&uri), "{written}");
    }
    let _ = units::bytes(text);
    let _ = units::message_size(text);
    let _ = units::time(text);
}
