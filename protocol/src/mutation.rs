//! Deliberate faults of the core, switched on at run time in the one build that the simulator uses. The checker has to
//! catch each of them; without the feature `mutations` none of this is compiled in.

/// A deliberate fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Placeholder
    AckBeforeAppend,
}

#[cfg(feature = "mutations")]
mod switch {
    use std::cell::Cell;

    use super::Mutation;

    thread_local! {
        static ON: Cell<Option<Mutation>> = const { Cell::new(None) };
    }

    /// Switches one fault on for this thread, and every other off.
    pub fn switch_on(mutation: Option<Mutation>) {
        ON.set(mutation);
    }

    pub(crate) fn is_on(mutation: Mutation) -> bool {
        ON.get() == Some(mutation)
    }
}

#[cfg(feature = "mutations")]
pub(crate) use switch::is_on;
#[cfg(feature = "mutations")]
pub use switch::switch_on;

/// Whether a fault is on; never without the feature.
#[cfg(not(feature = "mutations"))]
pub(crate) const fn is_on(_: Mutation) -> bool {
    false
}
