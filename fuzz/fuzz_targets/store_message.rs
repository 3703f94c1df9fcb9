//! Requests, answers and notes of the store.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bonfire_comm::fuzzing::store_message(bytes));
