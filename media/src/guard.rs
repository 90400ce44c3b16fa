//! Which addresses a download may reach. Provider output URLs come from outside: they must not lead inside.
//!
//! The check happens in the resolver that the HTTP client connects with, on the very addresses it connects to. There is no
//! second resolution that could answer differently (DNS rebinding). Addresses written into the URL never reach a resolver
//! and are checked before.

use futures_util::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// How host names become addresses. Replaced in tests only.
pub trait Lookup: Send + Sync + 'static {
    /// All addresses of `host`.
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemLookup;

impl Lookup for SystemLookup {
    fn lookup(&self, host: String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// A host that has an address inside. Found again in the client's error by its type.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the host has an address that is not public")]
pub(crate) struct NotPublic;

/// The resolver of the HTTP clients.
pub(crate) struct GuardedResolver {
    pub lookup: Arc<dyn Lookup>,
    /// Whether addresses that are not public are refused.
    pub public_only: bool,
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.lookup.lookup(name.as_str().to_owned());
        let public_only = self.public_only;
        Box::pin(async move {
            let found = found.await?;
            // One inside address among public ones is refused as a whole: an honest host does not have such a mix.
            if public_only && !found.iter().copied().all(is_public) {
                return Err(NotPublic.into());
            }
            // Port 0 stands for the port of the URL.
            let addresses: Addrs = Box::new(found.into_iter().map(|ip| SocketAddr::new(ip, 0)));
            Ok(addresses)
        })
    }
}

/// Whether an address belongs to the public internet: not loopback, private, link-local, shared (CGNAT), multicast,
/// reserved or for documentation, nor an IPv6 form that carries an IPv4 address (IANA special-purpose registries).
#[must_use]
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let inside = match address.octets() {
        // This network, private, loopback, multicast (224/4) and reserved with broadcast (240/4).
        [0 | 10 | 127 | 224..=255, ..] => true,
        // Shared address space of carriers, 100.64/10.
        [100, second, ..] => (64..128).contains(&second),
        // Link-local, where clouds keep their metadata service.
        [169, 254, ..] => true,
        [172, second, ..] => (16..32).contains(&second),
        [192, 168, ..] => true,
        // IETF assignments, documentation, 6to4 relays.
        [192, 0, 0 | 2, _] | [192, 88, 99, _] => true,
        // Benchmarking, 198.18/15, and two more for documentation.
        [198, 18 | 19, ..] | [198, 51, 100, _] | [203, 0, 113, _] => true,
        _ => false,
    };
    !inside
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // Only 2000::/3 is handed out as global unicast. What lies outside (loopback, mapped and compatible IPv4, NAT64, unique
    // local, link-local, multicast) needs no list. Within it: IETF assignments with Teredo, documentation, 6to4.
    match address.segments() {
        [0x2001, second, ..] if second < 0x200 => false,
        [0x2001, 0xdb8, ..] | [0x2002, ..] => false,
        [0x3fff, second, ..] if second < 0x1000 => false,
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inside_addresses_are_refused() -> Result<(), std::net::AddrParseError> {
        let v4 = "0.0.0.0 10.1.2.3 100.64.0.1 100.127.255.255 127.0.0.1 127.8.8.8 169.254.169.254 172.16.0.1 172.31.255.255 \
                  192.0.0.8 192.0.2.1 192.88.99.1 192.168.1.1 198.18.0.1 198.19.255.255 198.51.100.7 203.0.113.9 224.0.0.1 \
                  239.255.255.255 240.0.0.1 255.255.255.255";
        let v6 = ":: ::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b:1::1 100::1 2001::1 2001:1::1 \
                  2001:db8::1 2002:7f00:1::1 3fff::1 fc00::1 fd12::1 fe80::1 fec0::1 ff02::1 5f00::1";
        for text in v4.split_whitespace().chain(v6.split_whitespace()) {
            assert!(!is_public(text.parse()?), "{text}");
        }
        Ok(())
    }

    #[test]
    fn public_addresses_pass() -> Result<(), std::net::AddrParseError> {
        let public = "1.1.1.1 8.8.8.8 100.63.255.255 100.128.0.1 172.15.0.1 172.32.0.1 192.167.0.1 198.20.0.1 223.255.255.1 \
                      2606:4700::1111 2001:4860:4860::8888 2a00:1450::1 3ffe::1";
        for text in public.split_whitespace() {
            assert!(is_public(text.parse()?), "{text}");
        }
        Ok(())
    }
}
