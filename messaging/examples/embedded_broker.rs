//! Runs the embedded broker for tests: `embedded_broker NAME_SERVER_PORT BROKER_PORT STORE_DIR`.
//!
//! It ends when its standard input does, so that it never outlives the test process that started it.

use std::io::Read;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name_server_port, broker_port, store_dir] = arguments.as_slice() else {
        return Err("usage: embedded_broker NAME_SERVER_PORT BROKER_PORT STORE_DIR".into());
    };
    let config = messaging::embedded::EmbeddedConfig {
        name_server_port: name_server_port.parse()?,
        broker_port: broker_port.parse()?,
        store_dir: store_dir.into(),
    };
    std::thread::spawn(|| {
        // Reading to the end is the wait; what is read, and whether reading failed, does not matter.
        drop(std::io::stdin().read_to_end(&mut Vec::new()));
        std::process::exit(0);
    });
    messaging::embedded::run(&config)?;
    Ok(())
}
