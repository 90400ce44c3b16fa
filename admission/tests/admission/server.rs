//! A Redis of a test's own, that can be killed and comes back empty.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub type Anyhow<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

pub struct Server {
    folder: tempfile::TempDir,
    port: u16,
    child: Option<Child>,
}

impl Server {
    pub fn start() -> Anyhow<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = Self { folder: tempfile::tempdir()?, port, child: None };
        server.come_back()?;
        Ok(server)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Starts it, with nothing of before.
    pub fn come_back(&mut self) -> Anyhow {
        let started = Command::new("redis-server")
            .args([
                "--port",
                &self.port.to_string(),
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--dir",
            ])
            .arg(self.folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.child = Some(started.map_err(|error| {
            format!("these tests need the program redis-server ({error}): ./dev up --only redis or apt-get install redis-server brings it")
        })?);
        let began = Instant::now();
        while self.say(&["PING"]).is_err() {
            if began.elapsed() > Duration::from_secs(20) {
                return Err("redis-server does not answer 20 s after its start".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }

    /// A command, in a connection of its own.
    pub fn say(&self, words: &[&str]) -> Anyhow<redis::Value> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        let mut command = redis::cmd(words.first().copied().unwrap_or("PING"));
        for word in words.iter().skip(1) {
            command.arg(*word);
        }
        Ok(command.query(&mut connection)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
