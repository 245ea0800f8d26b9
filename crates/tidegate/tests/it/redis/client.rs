//! A plain client that sends one call at a time and waits for its reply.

use redis::{ConnectionLike, Value};
use tidegate::unstable::redis::{
    CallBuilder, Entry, KeyNames, Script, ScriptCall, ScriptMode, ScriptPlan, ScriptReply,
    permit_call, was_held,
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
        match self.connection.req_command(&call.cmd()).expect("a connection") {
            Value::ServerError(error) => Err(Failure::Refused(error.to_string().into()).into()),
            reply => Ok(reply),
        }
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
        Ok(plan.verdict(request.checks, &plan.decode_reply(mode, &reply)?))
    }

    /// Decides groups of entries in one call. Returns for every entry the replies to its requests,
    /// or why it failed.
    pub fn decide_entries(
        &mut self,
        groups: &[Vec<Entry>],
        now: Option<Timestamp>,
    ) -> Vec<Result<Vec<ScriptReply>, StoreError>> {
        let mut call = CallBuilder::new(now);
        for group in groups {
            call.push(&group.iter().collect::<Vec<_>>());
        }
        let reply = self.run(&call.finish()).expect("a reply");
        let replies = CallBuilder::decode(&reply, groups.iter().flatten());
        let replies = replies.expect("a reply for every entry").into_iter();
        replies.map(|replies| replies.map_err(StoreError::from)).collect()
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
