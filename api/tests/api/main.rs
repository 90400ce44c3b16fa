//! The API in this process, on a real PostgreSQL (`DATABASE_URL`; `./dev test` starts one).

mod again;
mod audit;
mod callbacks;
mod conformance;
mod contract;
mod doubles;
mod guards;
mod limits;
mod lists;
mod live;
mod objects;
mod reads;
mod schema;
mod statements;
mod submit;
mod subscribe;
mod walls;
mod world;
