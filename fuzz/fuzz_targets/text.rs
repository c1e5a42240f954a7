#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| courser_fuzz::text::run(text));
