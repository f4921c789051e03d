//! Providers on real databases: SQLite in a file, and a PostgreSQL server.
//!
//! Real databases take real time. Nothing here asserts how fast anything is: conditions are waited
//! for, with bounds that only a hang reaches.

mod ambient;
mod contract;
mod jobs;
mod postgres;
mod restart;
mod sea_orm;
mod sqlite;
mod sqlx;
mod storm;
