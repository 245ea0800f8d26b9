//! What reflection tells: the files that describe the front's services.
//!
//! `descriptors.binpb` is a `FileDescriptorSet` of the services and every message they use,
//! without options and comments; `scripts/lib/envoy/descriptors.py` makes it from the
//! packages the tests use, which hold it against the real ones.

use std::sync::OnceLock;

use crate::fronts::grpc::envoy::{Fields, Malformed, SERVICE};

/// The services, as `list` tells them.
pub const SERVICES: [&str; 4] = [
    SERVICE,
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

const DESCRIPTORS: &[u8] = include_bytes!("descriptors.binpb");

/// One file.
#[derive(Debug, Default)]
pub struct File {
    /// Its name, as others import it.
    pub name: &'static str,
    /// It, as a `FileDescriptorProto`.
    pub bytes: &'static [u8],
    package: &'static str,
    /// The full names of its messages, enums, services and methods.
    symbols: Vec<String>,
}

/// All of them.
pub fn files() -> &'static [File] {
    static FILES: OnceLock<Vec<File>> = OnceLock::new();
    FILES.get_or_init(|| {
        let files = Fields::new(DESCRIPTORS);
        let files = files.flatten().filter_map(|(_, value)| File::read(value.bytes().ok()?).ok());
        files.collect()
    })
}

/// The file that defines a symbol.
pub fn defining(symbol: &str) -> Option<&'static File> {
    files().iter().find(|file| file.symbols.iter().any(|known| known == symbol))
}

/// Names and what lies in them, by field: messages in files, fields in messages and so on.
impl File {
    fn read(bytes: &'static [u8]) -> Result<Self, Malformed> {
        let mut file = File { bytes, ..File::default() };
        for field in Fields::new(bytes) {
            match field? {
                (1, value) => file.name = text(value.bytes()?),
                (2, value) => file.package = text(value.bytes()?),
                _ => {}
            }
        }
        for field in Fields::new(bytes) {
            let package = file.package;
            match field? {
                (4, value) => file.message(package, value.bytes()?)?,
                // Enums have nothing in them that is asked for by name; services have methods.
                (5, value) => drop(file.named(package, value.bytes()?)?),
                (6, value) => {
                    let service = value.bytes()?;
                    let name = file.named(package, service)?;
                    for field in Fields::new(service) {
                        if let (2, value) = field? {
                            file.named(&name, value.bytes()?)?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(file)
    }

    fn message(&mut self, outer: &str, message: &'static [u8]) -> Result<(), Malformed> {
        let name = self.named(outer, message)?;
        for field in Fields::new(message) {
            match field? {
                (3, value) => self.message(&name, value.bytes()?)?,
                (4, value) => drop(self.named(&name, value.bytes()?)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// Notes the full name of something whose first field is its name.
    fn named(&mut self, outer: &str, what: &'static [u8]) -> Result<String, Malformed> {
        let mut name = String::new();
        for field in Fields::new(what) {
            if let (1, value) = field? {
                name = format!("{outer}.{}", text(value.bytes()?));
            }
        }
        self.symbols.push(name.clone());
        Ok(name)
    }
}

fn text(bytes: &'static [u8]) -> &'static str {
    std::str::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_symbol_has_its_file() {
        let rls = "envoy/service/ratelimit/v3/rls.proto";
        let rows = [
            (SERVICE, Some(rls)),
            ("envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit", Some(rls)),
            ("envoy.service.ratelimit.v3.RateLimitResponse.DescriptorStatus", Some(rls)),
            ("envoy.service.ratelimit.v3.RateLimitResponse.Code", Some(rls)),
            ("envoy.type.v3.RateLimitUnit", Some("envoy/type/v3/ratelimit_unit.proto")),
            ("google.protobuf.Struct", Some("google/protobuf/struct.proto")),
            ("google.protobuf", None),
            ("", None),
        ];
        for (symbol, file) in rows {
            assert_eq!(defining(symbol).map(|file| file.name), file, "{symbol}");
        }
        for service in SERVICES {
            assert!(defining(service).is_some(), "{service}");
        }
        assert_eq!(files().len(), 11);
    }
}
