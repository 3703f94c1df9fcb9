//! The frames of a connection to the store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bonfire_comm::fuzzing::frames(bytes));
