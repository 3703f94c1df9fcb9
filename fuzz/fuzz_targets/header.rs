//! The header of a transfer.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bonfire_comm::fuzzing::header(bytes));
