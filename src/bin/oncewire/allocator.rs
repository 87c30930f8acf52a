//! The allocator, and how soon it gives memory back.

/// Many small objects that live as long as a session: the system's allocator would use more memory for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` in `mimalloc.h`; the library's crate has no name for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// For so long the allocator keeps what was freed before the system gets it back, in milliseconds. With its usual second a
/// flood of large messages that are given up takes some hundred MiB beyond all bounds.
const KEPT_FREE_MS: std::ffi::c_long = 100;

/// Has the allocator give memory back sooner, unless `MIMALLOC_PURGE_DELAY` says when.
pub fn shorten_purge_delay() {
    #[expect(unsafe_code, reason = "there is no safe way to set an option of the allocator")]
    // SAFETY: takes two numbers and checks the first; nothing else is touched.
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, KEPT_FREE_MS);
    }
}
