//! The `oncewire` command.
fn main() {}
