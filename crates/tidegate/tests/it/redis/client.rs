//! A plain client that sends one call at a time and waits for its reply.

use redis::{ConnectionLike, Value};
use tidegate::unstable::redis::{
    CounterEntry, CounterReply, FastCheck, KeyNames, Script, ScriptCall, ScriptMode, ScriptPlan,
    counter_call, decode_counter_reply, fast_verdict, permit_call, was_held,
};
use tidegate::{
    Check, Cost, Decision, Failure, Limit, PermitId, PermitOperation, Request, StoreError,
    Timestamp, Verdict,
};

use super::servers::Server;

/// A connection, and the names of its keys.
pub struct Client {
    pub connection: redis::Connection,
    pub names: KeyNames,
}

impl Client {
    pub fn new(server: &Server, prefix: &str) -> Self {
        let mut connection = server.connection().expect("a server that has answered");
        for script in Script::ALL {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(script.source()).clone();
            let sha: String = load.query(&mut connection).expect("a script that compiles");
            assert_eq!(sha, script.sha());
        }
        Client { connection, names: KeyNames::new(prefix) }
    }

    pub fn run(&mut self, call: &ScriptCall) -> Result<Value, StoreError> {
        let reply = self.connection.req_command(&call.cmd()).and_then(Value::extract_error);
        reply.map_err(|error| Failure::Refused(error.to_string().into()).into())
    }

    /// Returns the reply and the values at these names after the call. All is done in one
    /// transaction, so that no key expires in between.
    pub fn run_and_read(&mut self, call: &ScriptCall, names: &[&[u8]]) -> (Value, Vec<Kept>) {
        let mut all = redis::pipe();
        all.atomic().add_command(call.cmd());
        for name in names {
            all.cmd("GET").arg(name).cmd("PTTL").arg(name);
        }
        let mut replies = all.query::<Vec<Value>>(&mut self.connection).expect("sound").into_iter();
        let reply = replies.next().expect("the call's");
        let kept = std::iter::from_fn(|| Some((replies.next()?, replies.next()?)));
        let kept = kept.map(|(value, ttl)| Kept {
            value: redis::from_redis_value(value).expect("a string, or none"),
            ttl_ms: redis::from_redis_value(ttl).expect("a number"),
        });
        (reply, kept.collect())
    }

    /// The value at a name, and its TTL.
    pub fn stored(&mut self, name: &[u8]) -> Kept {
        Kept { value: self.get(name), ttl_ms: self.ttl(name) }
    }

    /// Decides a request with `request.lua`.
    pub fn decide(
        &mut self,
        request: &Request<'_>,
        now: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        self.decide_in_mode(request, ScriptMode::Decide, now)
    }

    pub fn decide_in_mode(
        &mut self,
        request: &Request<'_>,
        mode: ScriptMode,
        now: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        let plan = ScriptPlan::new(request, &self.names)?;
        let reply = self.run(&plan.call(mode, now))?;
        Ok(plan.verdict(request.checks, &plan.decode_reply(&reply)?))
    }

    /// Decides a request with `counter.lua` where possible, as the store does.
    pub fn decide_quickly(
        &mut self,
        request: &Request<'_>,
        now: Option<Timestamp>,
    ) -> Result<Verdict, StoreError> {
        if let Some(quick) = FastCheck::of(request, &self.names) {
            let entry = CounterEntry { key: quick.key, units: quick.units, times: 1 };
            let reply = self.run(&counter_call(&quick.limit, std::slice::from_ref(&entry), now))?;
            let replies = decode_counter_reply(&quick.limit, &[entry], &reply)?;
            if let [CounterReply::Decided(decisions)] = &replies[..] {
                return Ok(fast_verdict(request.checks, decisions[0]));
            }
        }
        self.decide(request, now)
    }

    pub fn check(
        &mut self,
        key: impl AsRef<[u8]>,
        limit: &Limit,
        cost: impl Into<Cost>,
        now: Option<Timestamp>,
    ) -> Decision {
        let checks = [Check::new(key.as_ref(), limit, cost)];
        self.decide(&Request::new(&checks), now).expect("a sound check").decisions()[0]
    }

    pub fn permit(
        &mut self,
        key: &str,
        limit: &Limit,
        operation: PermitOperation,
        now: Option<Timestamp>,
    ) -> bool {
        let call = permit_call(&self.names, key.as_bytes(), limit, operation, now);
        was_held(&self.run(&call).expect("a sound act")).expect("a sound reply")
    }

    pub fn get(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        redis::cmd("GET").arg(name).query(&mut self.connection).expect("a string, or none")
    }

    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        let set = redis::cmd("SET").arg(name).arg(value).clone();
        set.exec(&mut self.connection).expect("room for a value");
    }

    /// All keys of the server.
    pub fn keys(&mut self) -> Vec<Vec<u8>> {
        redis::cmd("KEYS").arg("*").query(&mut self.connection).expect("a list")
    }

    /// The milliseconds until a key expires; -1 for never, -2 if the key does not exist.
    pub fn ttl(&mut self, name: &[u8]) -> i64 {
        redis::cmd("PTTL").arg(name).query(&mut self.connection).expect("a number")
    }
}

/// A value in Redis, and the milliseconds until it expires.
pub struct Kept {
    pub value: Option<Vec<u8>>,
    pub ttl_ms: i64,
}

/// The id of a permit that is named by a letter.
pub fn letter(permit: char) -> PermitId {
    PermitId(u64::from(permit))
}
