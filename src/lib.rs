//! The Oncewire gateway as a library. The binary is `main.rs`: flags and file to configuration to run.

pub mod auth;
pub mod config;
