//! The crate from the outside: real sockets, real folders, a bucket that speaks S3, the real media tools.

mod ffmpeg;
mod objects;
mod render;
mod stubs;
mod support;
mod transfers;
