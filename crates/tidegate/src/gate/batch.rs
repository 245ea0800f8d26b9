//! Decides a pipeline of requests one after the other.
//!
//! Most requests name a policy or limits, and a key. Their states are prefetched for many requests
//! together, before the first is decided, because beyond a few thousand keys most of the time is
//! spent on cache misses. All other requests are planned one by one.

use std::ops::Range;
use std::slice;
use std::time::Instant;

use smallvec::SmallVec;
use tidegate_core::{Cost, Decision, Limit};

use super::decide::{DecideOptions, GateCall};
use super::plan::{KeyStart, SimpleCheck, write_policy};
use super::record::RequestContext;
use super::{ActivePolicies, Gate, GateError, GateRequest, GateVerdict, LimitResult, Subject};
use crate::Check;
use crate::policy::{CostSource, MAX_KEY_BYTES, Mode, is_concurrency};
use crate::request::consumed_if_denied;
use crate::stats::{self, Counting, Decided, RequestRecord, is_sampled};
use crate::store::BATCH;

/// The keys of a batch. The inline capacity is 32 bytes per request.
type Keys = SmallVec<[u8; 32 * BATCH]>;

/// A request whose limits are known, and the range of its key, including the name of the policy.
type ResolvedCheck<'a> = (SimpleCheck<'a>, Range<usize>);

impl Gate {
    /// Decides requests one by one, in order, as [`Gate::check`] does. Calls `on_verdict` with the
    /// index and the verdict of each request.
    pub fn check_each<'a>(
        &'a self,
        active: &'a ActivePolicies,
        requests: &[GateRequest<'a>],
        mut on_verdict: impl FnMut(usize, Result<&GateVerdict<'a>, GateError>),
    ) {
        // This call is used for all requests whose limits are known, because a call is large.
        let mut call = GateCall::default();
        for (round, chunk) in requests.chunks(BATCH).enumerate() {
            let mut keys = Keys::new();
            let mut resolved = SmallVec::<[Option<ResolvedCheck<'a>>; BATCH]>::new();
            for request in chunk {
                resolved.push(self.resolve(active, request, &mut keys));
            }
            if chunk.len() > 1 {
                self.prefetch(&resolved, &keys);
            }
            for (index, (request, resolved)) in chunk.iter().zip(&resolved).enumerate() {
                let number = round * BATCH + index;
                if let Some((simple, key)) = resolved {
                    let key = &keys[key.clone()];
                    let checked = self.check_resolved(*simple, key, request, &mut call);
                    on_verdict(number, checked.map(|()| &call.verdict));
                } else {
                    let mut call = GateCall::default();
                    let request = slice::from_ref(request);
                    let checked = self.poll_now(self.check_into(&mut call, active, request));
                    on_verdict(number, checked.map(|()| &call.verdict));
                }
            }
        }
    }

    /// Prefetches the states of these requests.
    fn prefetch(&self, resolved: &[Option<ResolvedCheck<'_>>], keys: &[u8]) {
        let states = resolved.iter().flatten().flat_map(|(simple, key)| {
            let key = &keys[key.clone()];
            simple.limits.iter().map(move |limit| (key, limit))
        });
        let states: SmallVec<[(&[u8], &Limit); 2 * BATCH]> = states.collect();
        for states in states.chunks(BATCH) {
            self.limiter.store().prefetch(states.iter().copied());
        }
    }

    /// The limits of a request that names them or their policy, and its key as the store sees it.
    /// Returns `None` if the request has to be planned.
    #[inline(always)]
    fn resolve<'a>(
        &'a self,
        active: &'a ActivePolicies,
        request: &GateRequest<'a>,
        keys: &mut Keys,
    ) -> Option<ResolvedCheck<'a>> {
        if self.is_shared() || request.max_wait.is_some() {
            return None;
        }
        let (policy, key, limits, prepared, units, overflow) = match request.subject {
            Subject::Key { policy, key, attributes: None } => {
                let (policy, prepared) = active.find(policy)?;
                let variant = &policy.variants()[0];
                let CostSource::Fixed(units) = *variant.cost() else { return None };
                if variant.mode() != Mode::Enforce || !is_verbatim_key(key) {
                    return None;
                }
                (Some(policy.name()), key, variant.limits(), prepared, units, variant.overflow())
            }
            Subject::Limits { key, limits } => (None, key, limits, active.caller_limits(), 1, None),
            _ => return None,
        };
        if limits.is_empty() || limits.iter().any(is_concurrency) {
            return None;
        }
        let start = keys.len();
        write_policy(policy.unwrap_or_default(), |bytes| keys.extend_from_slice(bytes));
        keys.extend_from_slice(key);
        let overflow = overflow.unwrap_or(request.overflow);
        let simple = SimpleCheck { policy, limits, cost: request.cost(units), overflow, prepared };
        Some((simple, start..keys.len()))
    }

    /// Decides a request whose limits are known and records the decision. The call holds the
    /// verdict.
    #[inline]
    fn check_resolved<'a>(
        &self,
        simple: SimpleCheck<'a>,
        key: &[u8],
        request: &GateRequest<'_>,
        call: &mut GateCall<'a>,
    ) -> Result<(), GateError> {
        let prefix = simple.policy.unwrap_or_default().len() + 1;
        if let ([limit], None) = (simple.limits, request.id)
            && consumed_if_denied(simple.overflow, limit, simple.cost) == 0
        {
            return self.check_single(simple, (key, &key[prefix..]), request, &mut call.verdict);
        }
        call.plan.clear();
        call.plan.keys.extend_from_slice(key);
        call.plan.push_simple(simple, KeyStart { start: 0, key_offset: prefix });
        let route = || request.subject.route();
        let context = RequestContext::of(slice::from_ref(request), &route);
        self.check_in_memory(
            call,
            &context,
            DecideOptions { id: context.id, ..DecideOptions::CHECK },
        )?;
        Ok(())
    }

    /// Decides a request under a single limit. A plan takes 10 % more instructions. The steps are
    /// those of [`Gate::decide_single`] and [`Gate::record`], and must stay equal to them.
    #[inline]
    fn check_single<'a>(
        &self,
        simple: SimpleCheck<'a>,
        (key, short_key): (&[u8], &[u8]),
        request: &GateRequest<'_>,
        verdict: &mut GateVerdict<'a>,
    ) -> Result<(), GateError> {
        let (limit, stats) = (&simple.limits[0], &simple.prepared.stats[0]);
        let started = is_sampled().then(Instant::now);
        let result = LimitResult {
            policy: simple.policy,
            code_policy: None,
            request_index: 0,
            limit,
            prerendered: simple.prepared.prerendered.as_ref(),
            mode: Mode::Enforce,
            decision: Decision::default(),
            decided: Decided::Exact,
            exceeds_node_share: false,
        };
        self.decide_one(verdict, result, &Check::new(key, limit, simple.cost))?;
        if matches!(simple.cost, Cost::Ask(1..)) {
            let result =
                stats::LimitRecord::exact(stats, limit, short_key, &verdict.results[0].decision);
            let elapsed = started.map(|started| started.elapsed());
            let mut counting = Counting::new(result.allowed);
            counting.add(result.stats, result.counted(), true);
            self.stats.count_request(&counting, None);
            if self.stats.add(&mut counting, elapsed) {
                let (route, request_id) = (request.subject.route(), request.request_id);
                let (limits, allowed) = (&[result], result.allowed);
                let record = RequestRecord {
                    limits,
                    allowed,
                    route,
                    request_id,
                    elapsed,
                    ..RequestRecord::default()
                };
                self.stats.record_notable(&record, &counting);
            }
        }
        Ok(())
    }
}

/// Whether a key is used as it is, without being truncated or escaped.
fn is_verbatim_key(key: &[u8]) -> bool {
    key.len() <= MAX_KEY_BYTES && key.first() != Some(&0)
}
