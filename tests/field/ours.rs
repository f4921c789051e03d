//! Variations of our own on every kind of case: combinations of kinds, the instants at a boundary,
//! limits that change under a reservation. Kinds that have ten elsewhere are not here.

mod a;
mod b;
mod c;
mod e;
mod f;
mod g;
mod h;
mod i;
mod l;
mod m;

use std::sync::Arc;
use std::time::Duration;

use admit::{Demand, ElasticWindow};

use crate::windows::window_builder;

fn window(max: u32, per: Duration) -> Arc<ElasticWindow> {
    window_builder(max, per).build().expect("positive numbers")
}

fn slots(window: &Arc<ElasticWindow>, n: u32) -> Demand {
    Demand::new().permits(window, n)
}
