//! Drives one socket: a reader and a writer, joined by a small shared state.

pub mod frames;
mod link;
mod reader;
mod writer;

pub use link::{GatewayEnd, Link, PeerClose, ReaderGuard, WeakLink, WriterGuard};
pub use reader::{Batch, End, SocketReader, Telling, submit};
pub use writer::{CLOSE_WAIT_MS, Connection, Ending, Goodbye, Scratch, SocketWriter, WRITE_BYTES_MAX};
