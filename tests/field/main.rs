//! Situations in which admission and rate limiting fail in use, each cut down to its smallest
//! scenario. Every test ends with the invariants an [`Observer`](support::Observer) reads.

mod a;
mod b;
mod c;
mod d;
mod e;
mod f;
mod g;
mod h;
mod i;
mod k;
mod l;
mod m;
mod ours;
mod own;
mod support;
mod windows;
