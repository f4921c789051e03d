//! Providers on real databases: SQLite in a file, a PostgreSQL server, and a MariaDB server.
//!
//! Real databases take real time. Nothing here asserts how fast anything is: conditions are waited
//! for, with bounds that only a hang reaches.

#![allow(clippy::significant_drop_tightening, reason = "a job keeps its session while it works")]

mod ambient;
mod attack;
mod contract;
mod frozen;
mod havoc;
mod hooks;
mod jobs;
mod killed;
mod levels;
mod mysql;
mod postgres;
mod restart;
mod sea_orm;
mod sqlite;
mod sqlx;
mod storm;
mod streams;
