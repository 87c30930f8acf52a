//! What the fuzz targets do with the bytes that they are given. None of it may panic, whatever the bytes; each target
//! also checks what has to hold for all inputs.
//!
//! The targets proper, in `targets/`, are one line each and hand libFuzzer's bytes to these functions; a test of this
//! crate hands every file of `corpus/` to the same functions, so that nothing found once comes back.
//!
//! | file | holds |
//! |---|---|
//! | `codecs.rs` | the JSON and protobuf decoders and the raw frames, both directions |
//! | `records.rs` | the encodings of records and checkpoints, filters, and logs of any records |
//! | `hub/` | a shard driven by any inputs over a log that loses, delays and repeats appends |

//!
//! To look for more, with cargo-fuzz and a C++ compiler; `RUSTC_BOOTSTRAP` spares the nightly toolchain:
//!
//! ```sh
//! mkdir -p target/fuzz && cargo run -p oncewire-fuzz --example seeds -- target/fuzz
//! RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir tests/fuzz/targets hub target/fuzz/hub tests/fuzz/corpus/hub -- -max_len=2500
//! ```
//!
//! The decoders of JSON do better with `-dict=tests/fuzz/dictionaries/json.dict`. What is committed of a corpus is a
//! small part that covers much.

mod codecs;
mod frames;
mod hub;
mod records;

pub use codecs::{json_downstream, json_upstream, protobuf_downstream, protobuf_upstream, raw};
pub use hub::hub;
pub use records::{checkpoint, filter, log, record};

/// A target by its name, which is also its folder's in `corpus/`.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 10] = [
    ("json_upstream", json_upstream),
    ("json_downstream", json_downstream),
    ("protobuf_upstream", protobuf_upstream),
    ("protobuf_downstream", protobuf_downstream),
    ("raw", raw),
    ("record", record),
    ("checkpoint", checkpoint),
    ("filter", filter),
    ("log", log),
    ("hub", hub),
];
