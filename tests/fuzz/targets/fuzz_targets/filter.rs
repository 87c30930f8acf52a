#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| oncewire_fuzz::filter(data));
