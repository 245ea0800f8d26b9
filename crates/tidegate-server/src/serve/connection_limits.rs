//! Divides the available file descriptors between the fronts.
//!
//! Every connection needs a descriptor, and the operating system limits their number. If the fronts
//! shared them, idle connections to one front would block all others, and probes would not reach
//! `/healthz`. Therefore some are reserved for the server itself, the admin front and the shared
//! store, and the fronts that decide get equal shares of the rest.

use super::error::ServeError;

/// The maximum number of connections to a front that decides: a thousand gateways with a pool each.
const MAX_CONNECTIONS: usize = 16_384;

/// The minimum number of connections to a front that decides: the pool of one gateway.
const MIN_CONNECTIONS: usize = 4;

/// The maximum number of connections to the admin front: scrapers, probes and a few people.
const MAX_ADMIN_CONNECTIONS: usize = 256;

/// The minimum number of connections to the admin front: a probe, a scraper and a dashboard.
const MIN_ADMIN_CONNECTIONS: usize = 8;

/// Descriptors for everything else. A server that watches its config has 18 open, and reading files
/// (a new config, `/proc` for the metrics) briefly takes a few more.
const OTHER_FILES: usize = 24;

/// Descriptors for connections to a shared store: one per Redis server, another while a connection
/// is replaced, and some for name resolution.
const MIN_STORE_FILES: usize = 16;
const MAX_STORE_FILES: usize = 256;

/// The admin front and the store each get `1 / RESERVED_PART` of all descriptors, within their
/// bounds.
const RESERVED_PART: usize = 8;

/// The users of file descriptors.
#[derive(Clone, Copy, Debug)]
pub struct DescriptorUsers {
    /// The number of fronts that decide.
    pub fronts: usize,
    pub admin: bool,
    /// Whether a store is shared by nodes.
    pub store: bool,
}

/// The maximum number of concurrent connections to each front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub front: usize,
    pub admin: usize,
}

impl DescriptorUsers {
    /// Raises the limit on open files as far as needed and allowed, and divides it.
    ///
    /// # Errors
    /// When the limit is too low.
    pub fn limits(self) -> Result<ConnectionLimits, ServeError> {
        let wanted = self.wanted() as u64;
        let files = rlimit::increase_nofile_limit(wanted).map_err(ServeError::System)?;
        self.divide(usize::try_from(files).unwrap_or(usize::MAX))
    }

    /// Divides `files` descriptors.
    fn divide(self, files: usize) -> Result<ConnectionLimits, ServeError> {
        let needed = self.needed();
        if files < needed {
            return Err(ServeError::TooFewFiles { limit: files, needed });
        }
        let [admin, store] = self.reserved(files / RESERVED_PART);
        let rest = files - OTHER_FILES - admin - store;
        let front = (rest / self.fronts.max(1)).min(MAX_CONNECTIONS);
        Ok(ConnectionLimits { front, admin })
    }

    /// The descriptors of the admin front and of the store: `each`, within their bounds.
    fn reserved(self, each: usize) -> [usize; 2] {
        let admin = each.clamp(MIN_ADMIN_CONNECTIONS, MAX_ADMIN_CONNECTIONS);
        let store = each.clamp(MIN_STORE_FILES, MAX_STORE_FILES);
        [admin * usize::from(self.admin), store * usize::from(self.store)]
    }

    /// The minimum number of descriptors.
    fn needed(self) -> usize {
        OTHER_FILES + self.reserved(0).iter().sum::<usize>() + self.fronts * MIN_CONNECTIONS
    }

    /// The number of descriptors that all fronts together can use.
    fn wanted(self) -> usize {
        let aside: usize = self.reserved(usize::MAX).iter().sum();
        OTHER_FILES + aside + self.fronts * MAX_CONNECTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_descriptors_within_the_limit() {
        let all = DescriptorUsers { fronts: 3, admin: true, store: false };
        let shared = DescriptorUsers { store: true, ..all };
        let alone = DescriptorUsers { fronts: 1, admin: false, store: false };
        let rows = [
            (all, 44, Some((4, 8))),
            (all, 43, None),
            (all, 64, Some((10, 8))),
            (all, 256, Some((66, 32))),
            (all, 1_024, Some((290, 128))),
            (all, 1_000_000, Some((16_384, 256))),
            (shared, 60, Some((4, 8))),
            (shared, 59, None),
            (shared, 1_024, Some((248, 128))),
            (alone, 28, Some((4, 0))),
            (alone, 27, None),
        ];
        for (users, files, expected) in rows {
            let limits = users.divide(files).ok().map(|limits| (limits.front, limits.admin));
            assert_eq!(limits, expected, "{users:?} with {files} files");
        }
        for files in 44..5_000 {
            let limits = all.divide(files).expect("enough");
            let used = OTHER_FILES + limits.admin + 3 * limits.front;
            assert!(used <= files && limits.front >= MIN_CONNECTIONS, "{files}: {limits:?}");
        }
    }
}
