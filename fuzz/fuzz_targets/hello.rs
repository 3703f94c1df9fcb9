//! The first message of a connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bonfire_comm::fuzzing::hello(bytes));
