//! Logs with columns that are known from the format, or that a directive names.
//!
//! ```text
//! Envoy  [2016-04-15T20:17:00.310Z] "POST /v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" ...
//! ALB    http 2018-07-02T22:23:00.186641Z app/web/50dc6c49 192.168.131.39:2817 10.0.0.1:80 0.000 ...
//! W3C    #Fields: date time c-ip cs-method ...      CloudFront, IIS
//!        2019-12-04 21:02:31 192.0.2.100 GET ...
//! ```

use super::Format;
use super::columns::{Columns, Splitter};

/// The default format of Envoy.
const ENVOY: &str = "time request status response_flags bytes_received bytes_sent duration \
                     upstream_service_time x-forwarded-for user_agent request_id authority \
                     upstream_host";

/// The default format of Envoy in Istio.
const ISTIO: &str = "time request status response_flags response_code_details \
                     connection_termination_details upstream_transport_failure_reason \
                     bytes_received bytes_sent duration upstream_service_time x-forwarded-for \
                     user_agent request_id authority upstream_host upstream_cluster \
                     upstream_local_address downstream_local_address downstream_remote_address \
                     requested_server_name route_name";

/// The columns of an AWS Application Load Balancer. Later versions append further ones.
const ALB: &str = "type time elb client_ip target request_processing_time target_processing_time \
                   response_processing_time status target_status received_bytes sent_bytes request \
                   user_agent ssl_cipher ssl_protocol target_group_arn trace_id host \
                   chosen_cert_arn matched_rule_priority request_creation_time actions_executed \
                   redirect_url error_reason target_list target_status_list classification \
                   classification_reason conn_trace_id";

/// The number of columns of an ALB line up to the request and the agent, in every version.
const ALB_LEAST: usize = 14;

/// The first field of an ALB line.
const ALB_TYPES: [&[u8]; 6] = [b"http ", b"https ", b"h2 ", b"grpcs ", b"ws ", b"wss "];

/// Returns the columns of a directive `#Fields: date time c-ip`.
pub fn fields_directive(line: &[u8]) -> Option<Columns> {
    let names = String::from_utf8_lossy(line.strip_prefix(b"#Fields:")?).into_owned();
    let names: Vec<String> = names.split_ascii_whitespace().map(String::from).collect();
    let width = 1..=names.len();
    Some(Columns { names, splitter: Splitter::W3c, width })
}

/// Returns whether a line is a directive of a W3C log.
pub fn is_directive(line: &[u8]) -> bool {
    line.first() == Some(&b'#')
}

/// Returns whether a line can be of this format, judging by its first field.
pub fn begins_as(format: Format, line: &[u8]) -> bool {
    match format {
        Format::Envoy => line.first() == Some(&b'['),
        Format::Alb => ALB_TYPES.iter().any(|name| line.starts_with(name)),
        Format::W3c => fields_directive(line).is_some(),
        _ => false,
    }
}

/// Returns the columns of a file that begins with these lines, or `None` for a W3C log that does
/// not name them.
pub fn columns<'l>(format: Format, mut lines: impl Iterator<Item = &'l [u8]>) -> Option<Columns> {
    let words = |names: &str, least: Option<usize>| {
        let names: Vec<String> = names.split_ascii_whitespace().map(String::from).collect();
        let width = least.unwrap_or(names.len())..=usize::MAX;
        Columns { names, splitter: Splitter::Words, width }
    };
    match format {
        Format::W3c => lines.find_map(fields_directive),
        Format::Alb => Some(words(ALB, Some(ALB_LEAST))),
        _ => {
            let istio = words(ISTIO, None);
            let fits =
                |line| Splitter::Words.split(line).is_ok_and(|it| it.len() >= istio.names.len());
            Some(if lines.next().is_some_and(fits) { istio } else { words(ENVOY, None) })
        }
    }
}
