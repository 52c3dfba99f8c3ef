//! Proving that one has the token without sending it.

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

use crate::wire::handshake::{Nonce, Proof};

/// A shared secret. It is never printed.
#[derive(Clone)]
pub struct Token(hmac::Key);

/// Why bytes are no token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There are none.
    #[error("the token is empty")]
    Empty,
    /// HMAC fills up a short key with zeros, so a proof would also hold for a token without them.
    #[error(
        "the token ends with a zero byte, which does not count; remove it, or take another token"
    )]
    Zero,
}

/// Which side proves. The name is part of what is proven, so that a proof can't be sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that connects.
    Client,
    /// The one that listens.
    Server,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// A token of any bytes that do not end with a zero.
    pub fn new(secret: &[u8]) -> Result<Self, TokenError> {
        match secret {
            [] => Err(TokenError::Empty),
            [.., 0] => Err(TokenError::Zero),
            _ => Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, secret))),
        }
    }

    /// Whether these bytes are the token, in a time that does not depend on how wrong they are.
    pub fn is(&self, secret: &[u8]) -> bool {
        let Ok(other) = Self::new(secret) else { return false };
        let nonce = Nonce::default();
        let proof = other.prove(Side::Client, &nonce, &nonce, b"the same");
        self.verify(Side::Client, &nonce, &nonce, b"the same", &proof)
    }

    /// The proof that `side` said `message` in the conversation with these nonces.
    pub fn prove(&self, side: Side, client: &Nonce, server: &Nonce, message: &[u8]) -> Proof {
        let tag = hmac::sign(&self.0, &transcript(side, client, server, message));
        let mut proof = [0; 32];
        proof.copy_from_slice(tag.as_ref());
        proof
    }

    /// Whether a proof is right, in a time that does not depend on how wrong it is.
    pub fn verify(
        &self,
        side: Side,
        client: &Nonce,
        server: &Nonce,
        message: &[u8],
        proof: &Proof,
    ) -> bool {
        hmac::verify(&self.0, &transcript(side, client, server, message), proof).is_ok()
    }
}

fn transcript(side: Side, client: &Nonce, server: &Nonce, message: &[u8]) -> Vec<u8> {
    let label: &[u8] = match side {
        Side::Client => b"echoic/1 client",
        Side::Server => b"echoic/1 server",
    };
    [label, client, server, message].concat()
}

/// Bytes that can't be guessed.
///
/// # Errors
///
/// When the system gives none.
pub fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| std::io::Error::other("the system gives no random bytes"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_bytes_are_the_token() {
        let token = Token::new(b"secret").unwrap();
        assert!(token.is(b"secret"));
        assert!(
            ![&b"secre"[..], b"secret ", b"Secret", b"", b"secret\0"]
                .into_iter()
                .any(|other| token.is(other))
        );
        assert_eq!(Token::new(b"secret\0").unwrap_err(), TokenError::Zero);
        assert!(Token::new(b"sec\0ret").is_ok());
    }

    #[test]
    fn a_proof_holds_for_its_side_nonces_and_message_only() {
        let token = Token::new(b"secret").unwrap();
        let (a, b) = ([1; 32], [2; 32]);
        let proof = token.prove(Side::Client, &a, &b, b"hello");
        let holds = |token: &Token, side, a, b, message| token.verify(side, a, b, message, &proof);
        assert!(holds(&token, Side::Client, &a, &b, b"hello"));
        assert!(!holds(&token, Side::Server, &a, &b, b"hello"));
        assert!(!holds(&token, Side::Client, &b, &a, b"hello"));
        assert!(!holds(&token, Side::Client, &a, &b, b"hullo"));
        assert!(!holds(&Token::new(b"other").unwrap(), Side::Client, &a, &b, b"hello"));
    }

    #[test]
    fn an_empty_token_is_none_and_none_is_printed() {
        assert_eq!(Token::new(b"").unwrap_err(), TokenError::Empty);
        assert!(!format!("{:?}", Token::new(b"secret")).contains("secret"));
    }
}
