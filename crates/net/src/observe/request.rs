//! The little of HTTP that a scrape needs.

/// The most bytes of a request's head.
pub const MAX_HEAD: usize = 8 << 10;

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where.
    pub path: String,
    /// Whether the body is wanted, and not only what would be said of it.
    pub body: bool,
    /// The token that came along.
    pub bearer: Option<Vec<u8>>,
}

/// Why a request can't be answered, as HTTP has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HttpError {
    /// The number.
    pub code: u16,
    /// What it means.
    pub text: &'static str,
}

impl HttpError {
    /// It is invalid.
    pub const MALFORMED: Self = Self { code: 400, text: "Bad Request" };
    /// The token is missing, or another.
    pub const UNAUTHORIZED: Self = Self { code: 401, text: "Unauthorized" };
    /// There is no such thing.
    pub const NOT_FOUND: Self = Self { code: 404, text: "Not Found" };
    /// Nothing can be changed here.
    pub const METHOD: Self = Self { code: 405, text: "Method Not Allowed" };
    /// It never came to an end.
    pub const TIMEOUT: Self = Self { code: 408, text: "Request Timeout" };
    /// It is too long.
    pub const TOO_LONG: Self = Self { code: 431, text: "Request Header Fields Too Large" };
}

/// Where a head ends in these bytes, if it does.
pub fn end_of_head(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Reads a head, with the empty line behind it.
pub fn parse(head: &[u8]) -> Result<Request, HttpError> {
    let text = std::str::from_utf8(head).map_err(|_| HttpError::MALFORMED)?;
    let mut lines = text.strip_suffix("\r\n\r\n").ok_or(HttpError::MALFORMED)?.split("\r\n");
    let first: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, version] = first[..] else { return Err(HttpError::MALFORMED) };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(HttpError::MALFORMED);
    }
    let body = match method {
        "GET" => true,
        "HEAD" => false,
        _ => return Err(HttpError::METHOD),
    };
    let mut bearer = None;
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(HttpError::MALFORMED)?;
        if name.eq_ignore_ascii_case("authorization") {
            let scheme = value.trim().split_once(' ');
            bearer = scheme
                .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
                .map(|(_, token)| token.trim().as_bytes().to_vec());
        }
    }
    let path = target.split('?').next().unwrap_or_default().to_owned();
    Ok(Request { path, body, bearer })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn requests_of_usual_clients_are_understood() {
        let head = b"GET /metrics?x=1 HTTP/1.1\r\nHost: here\r\nAuthorization: Bearer s e\r\n\r\n";
        let request =
            Request { path: "/metrics".into(), body: true, bearer: Some(b"s e".to_vec()) };
        assert_eq!(parse(head), Ok(request));
        let head = b"HEAD / HTTP/1.0\r\n\r\n";
        assert_eq!(parse(head), Ok(Request { path: "/".into(), body: false, bearer: None }));
    }

    #[test]
    fn what_can_not_be_answered_is_told_why() {
        for (head, expected) in [
            (&b"POST /metrics HTTP/1.1\r\n\r\n"[..], HttpError::METHOD),
            (b"GET /metrics\r\n\r\n", HttpError::MALFORMED),
            (b"GET  /metrics HTTP/1.1\r\n\r\n", HttpError::MALFORMED),
            (b"GET http://x/ HTTP/1.1\r\n\r\n", HttpError::MALFORMED),
            (b"GET / SPDY\r\n\r\n", HttpError::MALFORMED),
            (b"GET / HTTP/1.1\r\nnonsense\r\n\r\n", HttpError::MALFORMED),
            (b"GET / HTTP/1.1\r\nx: \xff\r\n\r\n", HttpError::MALFORMED),
        ] {
            assert_eq!(parse(head), Err(expected), "{}", String::from_utf8_lossy(head));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_confuse_it(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let end = end_of_head(&bytes);
            prop_assert!(end.is_none_or(|end| end <= bytes.len()));
        }

        #[test]
        fn no_header_confuses_it(line in "[ -~]{0,60}") {
            let head = format!("GET / HTTP/1.1\r\n{line}\r\n\r\n");
            if let Ok(request) = parse(head.as_bytes()) {
                prop_assert_eq!(request.path, "/");
            }
        }
    }
}
