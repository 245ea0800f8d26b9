//! The settings of the xDS client, from variables.

use std::time::Duration;

use http::uri::Authority;
use tonic::metadata::{Ascii, MetadataKey, MetadataValue};

use super::environment;
use super::variables::{Reader, VariableError};
use crate::xds::{BackoffSettings, XdsFile, XdsSettings, XdsTls};

/// The largest message if `XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES` is not set: the default of gRPC.
const DEFAULT_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The shortest pause between attempts to connect, so that a client never retries without end.
const MIN_PAUSE: Duration = Duration::from_millis(100);

const ADDRESS: &str = "CONFIG_GRPC_XDS_SERVER_URL";
const MAX_BYTES: &str = "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES";
const HEADERS: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";

/// Reads the settings of a client of the control plane at `address` from the environment.
///
/// # Errors
/// When a value is invalid.
pub fn xds_settings(address: &XdsAddress) -> Result<XdsSettings, VariableError> {
    let others = environment().filter(|(name, _)| name != ADDRESS);
    read(&Reader::new(others.chain([(ADDRESS.to_owned(), address.0.clone())])))
}

/// The address of a control plane: `host:port`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdsAddress(String);

impl std::str::FromStr for XdsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // gRPC libraries accept a name of the resolver before the address.
        let bare = text.strip_prefix("dns:///").unwrap_or(text);
        let authority = bare.parse::<Authority>().ok();
        let is_address = authority
            .is_some_and(|a| a.port_u16().is_some_and(|port| port > 0) && !bare.contains('@'));
        match is_address {
            true => Ok(XdsAddress(bare.to_owned())),
            false => Err("write the control plane as host:port".to_owned()),
        }
    }
}

/// Reads the settings.
pub(super) fn read(reader: &Reader) -> Result<XdsSettings, VariableError> {
    let address: Result<XdsAddress, String> = reader.text(ADDRESS).parse();
    let headers = reader.pairs(HEADERS, ':')?;
    let is_valid = |(name, value): &(String, String)| {
        let (name, value) = (name.to_ascii_lowercase(), value);
        name.parse::<MetadataKey<Ascii>>().is_ok() && value.parse::<MetadataValue<Ascii>>().is_ok()
    };
    if !headers.iter().all(is_valid) {
        return Err(reader.error(HEADERS, "a name or value cannot be sent as metadata of gRPC"));
    }
    let max_message_bytes = match reader.is_set(MAX_BYTES) {
        true => reader.number(MAX_BYTES)?,
        false => 0,
    };
    Ok(XdsSettings {
        address: address.map_err(|help| reader.error(ADDRESS, help))?.0,
        node_id: reader.text("CONFIG_GRPC_XDS_NODE_ID").to_owned(),
        node_metadata: reader.pairs("CONFIG_GRPC_XDS_NODE_METADATA", '=')?,
        headers: headers
            .into_iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .collect(),
        tls: tls(reader)?,
        backoff: BackoffSettings {
            first: reader.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL")?.max(MIN_PAUSE),
            max: reader.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL")?.max(MIN_PAUSE),
            jitter: reader.boolean("XDS_CLIENT_BACKOFF_JITTER")?,
        },
        max_message_bytes: match max_message_bytes {
            0 => DEFAULT_MESSAGE_BYTES,
            bytes => bytes,
        },
    })
}

fn tls(reader: &Reader) -> Result<Option<XdsTls>, VariableError> {
    if !reader.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS")? {
        return Ok(None);
    }
    let file =
        |variable| reader.non_empty(variable).map(|path| XdsFile { variable, path: path.into() });
    let (certificate, key) = ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY");
    reader.both_or_neither(certificate, key)?;
    Ok(Some(XdsTls {
        ca: file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT"),
        identity: file(certificate).zip(file(key)),
        server_name: reader.server_name("CONFIG_GRPC_XDS_SERVER_TLS_SAN")?,
    }))
}
