//! The commands: flags to plans to reports.

pub mod accept;
pub mod beside;
pub mod events;
pub mod fanout;
pub mod floods;
pub mod generator;
pub mod idle_memory;
pub mod joins;
pub mod publish;
pub mod rest;
pub mod restart;
pub mod store;
