//! What several files of tests share: certificates, made again for each test.

use std::fs;
use std::path::{Path, PathBuf};

use echoic_net::transport::TlsFiles;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

/// A certificate, or an authority's, and its key, as files.
pub struct TlsIdentity {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// An authority, and a folder for what it signs.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub identity: TlsIdentity,
    folder: TempDir,
}

fn write(folder: &Path, name: &str, certificate: &str, key: &KeyPair) -> TlsIdentity {
    let file = |ending| folder.join(format!("{name}.{ending}"));
    let identity = TlsIdentity { certificate: file("crt"), key: file("key") };
    fs::write(&identity.certificate, certificate).unwrap();
    fs::write(&identity.key, key.serialize_pem()).unwrap();
    identity
}

impl Authority {
    pub fn new() -> Self {
        let (folder, key) = (TempDir::new().unwrap(), KeyPair::generate().unwrap());
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        let identity = write(folder.path(), "authority", &certificate.pem(), &key);
        Self { issuer: Issuer::new(params, key), identity, folder }
    }

    /// A certificate and key for this name.
    pub fn sign(&self, name: &str) -> TlsIdentity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        write(self.folder.path(), name, &certificate.pem(), &key)
    }
}

/// What a side uses: its identity if it has some, and the authority that it believes.
pub fn files(own: Option<&TlsIdentity>, believed: Option<&Authority>) -> TlsFiles {
    TlsFiles {
        certificate: own.map(|own| own.certificate.clone()),
        key: own.map(|own| own.key.clone()),
        authority: believed.map(|authority| authority.identity.certificate.clone()),
        server_name: None,
    }
}
