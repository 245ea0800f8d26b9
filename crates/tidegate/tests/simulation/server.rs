//! A simulated Redis server: the commands that a store sends, and its replication.

use std::collections::BTreeSet;

use tidegate::unstable::redis::Script;

use super::scripts::{Database, Interpreter, StoredValue, encode_bulk};

const INFO: &[u8] = b"redis_version:7.2.4\r\nredis_mode:standalone\r\nrole:master\r\nloading:0\r\n\
                      maxmemory_policy:noeviction\r\n";

/// A write that the replica does not have yet.
struct UnreplicatedWrite {
    /// The true time at which the replica has it.
    at: u64,
    key: Vec<u8>,
    value: Option<StoredValue>,
}

/// The server, and its replica.
pub struct Server<'i> {
    interpreter: &'i Interpreter,
    loaded: BTreeSet<&'static str>,
    replica: Database,
    unreplicated: Vec<UnreplicatedWrite>,
    /// The time that a write takes to the replica, in microseconds.
    replication_us: u64,
    /// The number of scripts that were run.
    pub scripts_run: u64,
}

impl<'i> Server<'i> {
    pub fn new(interpreter: &'i Interpreter, replication_us: u64) -> Self {
        *interpreter.database().borrow_mut() = Database::default();
        Server {
            interpreter,
            loaded: BTreeSet::new(),
            replica: Database::default(),
            unreplicated: Vec::new(),
            replication_us,
            scripts_run: 0,
        }
    }

    /// Carries out the complete commands at the beginning of `received`, and removes them. Returns
    /// the replies. `at` is the true time, and `clock_us` the clock of the server.
    pub fn execute(&mut self, received: &mut Vec<u8>, at: u64, clock_us: u64) -> Vec<u8> {
        let (mut replies, mut done) = (Vec::new(), 0);
        while let Some((words, length)) = decode_command(&received[done..]) {
            done += length;
            self.execute_command(&words, clock_us, &mut replies);
        }
        received.drain(..done);
        for (key, value) in self.interpreter.database().borrow_mut().take_written() {
            let at = at + self.replication_us;
            self.unreplicated.push(UnreplicatedWrite { at, key, value });
        }
        replies
    }

    fn execute_command(&mut self, words: &[Vec<u8>], clock_us: u64, replies: &mut Vec<u8>) {
        let names: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match names.as_slice() {
            [b"INFO", ..] => encode_bulk(INFO, replies),
            [b"SCRIPT", b"LOAD", source] => {
                let is_source = |script: &Script| script.source().as_bytes() == *source;
                let script = Script::ALL.into_iter().find(is_source).expect("a script");
                self.loaded.insert(script.sha());
                encode_bulk(script.sha().as_bytes(), replies);
            }
            [b"EVALSHA", sha, keys, ..] => {
                let text = |bytes| std::str::from_utf8(bytes).expect("ASCII");
                let sha = text(sha);
                if !self.loaded.contains(sha) {
                    replies.extend_from_slice(b"-NOSCRIPT No matching script\r\n");
                    return;
                }
                self.scripts_run += 1;
                let keys: usize = text(keys).parse().expect("a number");
                let (keys, args) = words[3..].split_at(keys);
                replies.extend(self.interpreter.run(sha, keys, args, clock_us));
            }
            other => panic!("an unknown command: {:?}", other.first()),
        }
    }

    /// Forgets the scripts.
    pub fn flush_scripts(&mut self) {
        self.loaded.clear();
    }

    /// Forgets all keys.
    pub fn flush_keys(&mut self) {
        *self.interpreter.database().borrow_mut() = Database::default();
        self.replica = Database::default();
        self.unreplicated.clear();
    }

    /// The replica takes over. Writes that it does not have are lost.
    pub fn fail_over(&mut self, now: u64) {
        for write in self.unreplicated.drain(..).take_while(|write| write.at <= now) {
            self.replica.replicate(write.key, write.value);
        }
        *self.interpreter.database().borrow_mut() = self.replica.clone();
        // A replica has the scripts that were loaded there, which are none.
        self.loaded.clear();
    }
}

/// Decodes the command at the beginning of `bytes`. Returns its words and its length; `None` if it
/// is not complete.
fn decode_command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let number = |kind: u8, at: &mut usize| -> Option<usize> {
        let line = &bytes[*at..];
        let end = line.windows(2).position(|pair| pair == b"\r\n")?;
        assert_eq!(line[0], kind, "the Redis protocol");
        *at += end + 2;
        std::str::from_utf8(&line[1..end]).ok()?.parse().ok()
    };
    let words = number(b'*', &mut at)?;
    let mut command = Vec::with_capacity(words);
    for _ in 0..words {
        let length = number(b'$', &mut at)?;
        let word = bytes.get(at..at + length)?;
        bytes.get(at + length..at + length + 2)?;
        command.push(word.to_vec());
        at += length + 2;
    }
    Some((command, at))
}
