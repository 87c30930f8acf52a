//! Judges histories of publishers and subscribers.
