#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| courser_fuzz::codecs::run(bytes));
