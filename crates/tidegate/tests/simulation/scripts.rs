//! The scripts of the store, run by the Lua interpreter that Redis also uses (Lua 5.1), and the few
//! commands and functions that they call.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};
use tidegate::unstable::redis::Script;

/// The keys of a server, with the time at which they expire in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Database {
    keys: BTreeMap<Vec<u8>, StoredValue>,
    /// The clock of the server in microseconds. It stands still while a script runs.
    now_us: u64,
    /// The keys that were written since [`Database::take_written`].
    written: Vec<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct StoredValue {
    bytes: Vec<u8>,
    expires_ms: Option<u64>,
}

impl Database {
    /// Returns the keys that were written since the last call, with their values.
    pub fn take_written(&mut self) -> Vec<(Vec<u8>, Option<StoredValue>)> {
        let written = std::mem::take(&mut self.written);
        written.into_iter().map(|key| (key.clone(), self.keys.get(&key).cloned())).collect()
    }

    /// Sets or deletes a key, as a replica does.
    pub fn replicate(&mut self, key: Vec<u8>, value: Option<StoredValue>) {
        match value {
            Some(value) => self.keys.insert(key, value),
            None => self.keys.remove(&key),
        };
    }

    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let now_ms = self.now_us / 1_000;
        let is_expired = |value: &StoredValue| value.expires_ms.is_some_and(|at| now_ms > at);
        if self.keys.get(key).is_some_and(is_expired) {
            self.delete(key);
        }
        self.keys.get(key).map(|value| value.bytes.clone())
    }

    fn delete(&mut self, key: &[u8]) -> bool {
        self.written.push(key.to_vec());
        self.keys.remove(key).is_some()
    }

    fn set(&mut self, key: &[u8], bytes: Vec<u8>, expires_ms: Option<u64>) {
        self.written.push(key.to_vec());
        self.keys.insert(key.to_vec(), StoredValue { bytes, expires_ms });
    }

    fn expiry(&self, key: &[u8]) -> Option<u64> {
        self.keys.get(key).and_then(|value| value.expires_ms)
    }

    /// Carries out a command of a script.
    fn call(&mut self, lua: &Lua, words: &[Vec<u8>]) -> mlua::Result<Value> {
        let number = |bytes: &[u8]| -> f64 {
            let text = std::str::from_utf8(bytes).expect("a number in ASCII");
            text.parse().expect("a number")
        };
        let text = |bytes: Option<Vec<u8>>| match bytes {
            Some(bytes) => lua.create_string(bytes).map(Value::String),
            None => Ok(Value::Boolean(false)),
        };
        let (name, rest) = words.split_first().expect("the name of a command");
        match (name.as_slice(), rest) {
            (b"TIME", []) => {
                let (seconds, micros) = (self.now_us / 1_000_000, self.now_us % 1_000_000);
                let parts = [seconds.to_string(), micros.to_string()];
                lua.create_sequence_from(parts).map(Value::Table)
            }
            (b"GET", [key]) => text(self.get(key)),
            (b"MGET", keys) => {
                let values: mlua::Result<Vec<Value>> =
                    keys.iter().map(|key| text(self.get(key))).collect();
                lua.create_sequence_from(values?).map(Value::Table)
            }
            (b"SET", [key, value, option, rest @ ..]) => {
                let expires_ms = match (option.as_slice(), rest) {
                    (b"KEEPTTL", []) => self.expiry(key),
                    (b"PX", [ms]) => Some(self.now_us / 1_000 + number(ms) as u64),
                    _ => panic!("an unknown option of SET"),
                };
                self.set(key, value.clone(), expires_ms);
                Ok(Value::Boolean(true))
            }
            (b"SETRANGE", [key, offset, part]) => {
                let mut value = self.get(key).unwrap_or_default();
                let from = number(offset) as usize;
                value.resize(value.len().max(from + part.len()), 0);
                value[from..from + part.len()].copy_from_slice(part);
                let length = value.len();
                self.set(key, value, self.expiry(key));
                Ok(Value::Number(length as f64))
            }
            (b"INCRBY", [key, by]) => {
                let value = self.get(key).map_or(0.0, |value| number(&value)) + number(by);
                self.set(key, format!("{value:.0}").into_bytes(), self.expiry(key));
                Ok(Value::Number(value))
            }
            (b"DEL", [key]) => Ok(Value::Number(f64::from(u8::from(self.delete(key))))),
            _ => panic!("an unknown command: {}", String::from_utf8_lossy(name)),
        }
    }
}

/// The interpreter with all scripts. It can serve one simulation after another.
pub struct Interpreter {
    lua: Lua,
    scripts: HashMap<&'static str, Function>,
    database: Rc<RefCell<Database>>,
}

/// A deliberate mistake in the scripts: the text of a correct line, and what it is replaced by.
pub type Mistake = (&'static str, &'static str);

impl Interpreter {
    pub fn new(mistake: Option<Mistake>) -> Self {
        let (lua, database) = (Lua::new(), Rc::<RefCell<Database>>::default());
        let (right, wrong) = mistake.unwrap_or_default();
        assert!(Script::Request.source().contains(right), "`{right}` is not in the script");
        let scripts = Script::ALL.into_iter().map(|script| {
            let source = match mistake {
                Some(_) => script.source().replace(right, wrong),
                None => script.source().to_owned(),
            };
            let function = lua.load(source).into_function();
            (script.sha(), function.expect("a script that compiles"))
        });
        let scripts = scripts.collect();
        define_libraries(&lua, &database).expect("functions");
        Interpreter { lua, scripts, database }
    }

    pub fn database(&self) -> &RefCell<Database> {
        &self.database
    }

    /// Runs a script, and returns the reply in the Redis protocol.
    pub fn run(&self, sha: &str, keys: &[Vec<u8>], args: &[Vec<u8>], now_us: u64) -> Vec<u8> {
        self.database.borrow_mut().now_us = now_us;
        let set = |name: &str, words: &[Vec<u8>]| {
            let words: mlua::Result<Vec<_>> =
                words.iter().map(|word| self.lua.create_string(word)).collect();
            let words = self.lua.create_sequence_from(words?)?;
            self.lua.globals().set(name, words)
        };
        set("KEYS", keys).and_then(|()| set("ARGV", args)).expect("arguments");
        let mut reply = Vec::new();
        match self.scripts[sha].call::<Value>(()) {
            Ok(value) => encode(&value, &mut reply),
            Err(error) => panic!("a script failed: {error}"),
        }
        reply
    }
}

/// Defines `redis` and `struct`, as far as the scripts use them.
fn define_libraries(lua: &Lua, database: &Rc<RefCell<Database>>) -> mlua::Result<()> {
    let redis = lua.create_table()?;
    for name in ["call", "pcall"] {
        let database = Rc::clone(database);
        let call = lua.create_function(move |lua, words: MultiValue| {
            let words: Vec<Vec<u8>> = words.iter().map(word).collect();
            database.borrow_mut().call(lua, &words)
        })?;
        redis.set(name, call)?;
    }
    let error_reply = lua.create_function(|lua, text: mlua::String| {
        let reply = lua.create_table()?;
        reply.set("err", text)?;
        Ok(reply)
    })?;
    redis.set("error_reply", error_reply)?;
    lua.globals().set("redis", redis)?;
    let library = lua.create_table()?;
    library.set("pack", lua.create_function(pack)?)?;
    library.set("unpack", lua.create_function(unpack)?)?;
    lua.globals().set("struct", library)
}

/// An argument of a command. Redis formats numbers as integers if they are.
fn word(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => format!("{number:.0}").into_bytes(),
        other => panic!("not an argument of a command: {other:?}"),
    }
}

/// The sizes of the integers of a format such as `<BI7I2`.
fn sizes(format: &[u8]) -> Vec<usize> {
    let mut sizes = Vec::new();
    for &character in format {
        match character {
            b'<' => {}
            b'B' => sizes.push(1),
            b'I' => sizes.push(4),
            digit @ b'1'..=b'8' => *sizes.last_mut().expect("a type") = usize::from(digit - b'0'),
            other => panic!("not in a format: {}", char::from(other)),
        }
    }
    sizes
}

fn pack(lua: &Lua, arguments: MultiValue) -> mlua::Result<mlua::String> {
    let mut arguments = arguments.iter();
    let format = word(arguments.next().expect("a format"));
    let mut bytes = Vec::new();
    for size in sizes(&format) {
        let number = match arguments.next() {
            Some(Value::Integer(number)) => u64::try_from(*number).expect("a positive number"),
            Some(Value::Number(number)) => *number as u64,
            other => panic!("not a number: {other:?}"),
        };
        bytes.extend_from_slice(&number.to_le_bytes()[..size]);
    }
    lua.create_string(bytes)
}

/// Returns the numbers, and the position behind them.
fn unpack(
    _: &Lua,
    arguments: (mlua::String, mlua::String, Option<usize>),
) -> mlua::Result<MultiValue> {
    let (format, data, position) = arguments;
    let (data, mut at) = (data.as_bytes(), position.unwrap_or(1) - 1);
    let mut values = MultiValue::new();
    for size in sizes(&format.as_bytes()) {
        let Some(part) = data.get(at..at + size) else {
            return Err(mlua::Error::runtime("data string too short"));
        };
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(part);
        values.push_back(Value::Number(u64::from_le_bytes(bytes) as f64));
        at += size;
    }
    values.push_back(Value::Number((at + 1) as f64));
    Ok(values)
}

/// Encodes a result as Redis does.
fn encode(value: &Value, reply: &mut Vec<u8>) {
    match value {
        Value::Nil | Value::Boolean(false) => reply.extend_from_slice(b"$-1\r\n"),
        Value::Boolean(true) => reply.extend_from_slice(b":1\r\n"),
        Value::Integer(number) => reply.extend_from_slice(format!(":{number}\r\n").as_bytes()),
        Value::Number(number) => {
            reply.extend_from_slice(format!(":{}\r\n", *number as i64).as_bytes());
        }
        Value::String(text) => encode_bulk(&text.as_bytes(), reply),
        Value::Table(table) => encode_table(table, reply),
        other => panic!("not a reply: {other:?}"),
    }
}

pub fn encode_bulk(bytes: &[u8], reply: &mut Vec<u8>) {
    reply.extend_from_slice(format!("${}\r\n", bytes.len()).as_bytes());
    reply.extend_from_slice(bytes);
    reply.extend_from_slice(b"\r\n");
}

fn encode_table(table: &Table, reply: &mut Vec<u8>) {
    if let Ok(Some(error)) = table.get::<Option<mlua::String>>("err") {
        reply.push(b'-');
        reply.extend_from_slice(&error.as_bytes());
        reply.extend_from_slice(b"\r\n");
        return;
    }
    let values: Vec<Value> =
        table.sequence_values::<Value>().collect::<mlua::Result<_>>().expect("values");
    reply.extend_from_slice(format!("*{}\r\n", values.len()).as_bytes());
    values.iter().for_each(|value| encode(value, reply));
}
