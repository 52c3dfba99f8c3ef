//! Where a server is: `tcp://host:port`, `tls://host:port`, `unix:///path`, `shm://name`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// A place to listen at or to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A socket of the network.
    Tcp {
        /// Name or number of the host.
        host: String,
        /// 0 to have one chosen.
        port: u16,
    },
    /// A socket of the network, encrypted.
    Tls {
        /// Name or number of the host.
        host: String,
        /// 0 to have one chosen.
        port: u16,
    },
    /// A socket in the file system of one machine.
    Unix {
        /// Its absolute path.
        path: PathBuf,
    },
    /// The ring's own memory, on one machine.
    Shm {
        /// Chosen by the user that started the server.
        name: String,
    },
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{problem} in the address {text:?}; expected tcp://HOST:PORT, tls://HOST:PORT, \
     unix:///PATH or shm://NAME"
)]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = |problem| AddressError { text: text.to_owned(), problem };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| error("no scheme"))?;
        match scheme {
            "tcp" | "tls" => {
                let (host, port) = rest.rsplit_once(':').ok_or_else(|| error("no port"))?;
                let port = port.parse().map_err(|_| error("no port from 0 to 65535"))?;
                // IPv6 numbers have colons, and stand in brackets.
                let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
                    Some(number) => number,
                    None if host.contains(':') => return Err(error("an IPv6 number without []")),
                    None => host,
                };
                if host.is_empty() {
                    return Err(error("no host"));
                }
                let host = host.to_owned();
                Ok(if scheme == "tcp" {
                    Self::Tcp { host, port }
                } else {
                    Self::Tls { host, port }
                })
            }
            "unix" if rest.len() > 1 && rest.starts_with('/') => {
                Ok(Self::Unix { path: PathBuf::from(rest) })
            }
            "unix" => Err(error("no absolute path")),
            "shm" => {
                let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
                if rest.is_empty() || rest.starts_with('.') || !rest.chars().all(plain) {
                    return Err(error("no name of letters, digits, '-', '_' and '.'"));
                }
                Ok(Self::Shm { name: rest.to_owned() })
            }
            _ => Err(error("an unknown scheme")),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let network = |f: &mut fmt::Formatter<'_>, scheme, host: &str, port| {
            if host.contains(':') {
                write!(f, "{scheme}://[{host}]:{port}")
            } else {
                write!(f, "{scheme}://{host}:{port}")
            }
        };
        match self {
            Self::Tcp { host, port } => network(f, "tcp", host, port),
            Self::Tls { host, port } => network(f, "tls", host, port),
            Self::Unix { path } => write!(f, "unix://{}", path.display()),
            Self::Shm { name } => write!(f, "shm://{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written_alike() {
        for text in [
            "tcp://localhost:50051",
            "tcp://[::1]:0",
            "tls://learner.example:443",
            "unix:///run/echoic.sock",
            "shm://cart-pole_1",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_reason() {
        for (text, problem) in [
            ("localhost:1", "no scheme"),
            ("http://a:1", "unknown scheme"),
            ("tcp://localhost", "no port"),
            ("tcp://localhost:70000", "no port"),
            ("tcp://:1", "no host"),
            ("tcp://::1:1", "without []"),
            ("unix://relative", "absolute"),
            ("unix:///", "absolute"),
            ("shm://", "no name"),
            ("shm://../x", "no name"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains(text), "{text}: {error}");
        }
    }
}
