//! A TCP proxy that cuts, stalls and half-opens.
