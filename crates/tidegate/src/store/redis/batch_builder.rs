//! Assembles the jobs of one write into calls.
//!
//! Requests under the same limits share a group of a call, and all groups that fit share a call.
//! Jobs that touch the same key keep their order: a request joins an entry or a group only if no
//! later one of the write touches one of its keys. `queue.rs` keeps the order between writes, and
//! decides which requests share an entry.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use tidegate_core::Timestamp;

use super::batch::{AwaitedEntry, BatchedCommand, Waiter, Waiters};
use super::cluster::slot_of;
use super::entry::{CallBuilder, Entry};
use super::key_names::slot_key;
use super::plan::{ScriptMode, ScriptPlan};
use super::server::SendMode;
use super::url::Deployment;

/// The maximum number of states in one call, unless a single request has more. Larger calls gain
/// little, and other clients of the server wait while they run.
const MAX_STATES: usize = 128;

/// The commands of a batch that is being assembled, in the order in which they will be sent.
pub(super) struct BatchBuilder {
    deployment: Deployment,
    commands: Vec<BatchItem>,
    /// The newest call that others can join, by the time and the slot of its requests.
    open: HashMap<(Option<Timestamp>, u16), usize, RandomState>,
    /// The entries, by their first job; see `queue.rs`.
    entries: HashMap<usize, Place, RandomState>,
    /// The last place that touches a key, by the key's hash.
    last: HashMap<u64, Place, RandomState>,
}

/// One command of a batch.
enum BatchItem {
    Command(BatchedCommand),
    Call(EntryCall),
}

/// A call that is being assembled.
struct EntryCall {
    at: Option<Timestamp>,
    send_mode: SendMode,
    groups: Vec<Vec<AwaitedEntry>>,
    states: usize,
}

/// The indexes of a command, of a group in it and of an entry in that. Places are in the order in
/// which the server carries them out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    command: usize,
    group: usize,
    entry: usize,
}

impl BatchBuilder {
    pub(super) fn new(deployment: Deployment) -> Self {
        let (open, entries, last) = Default::default();
        BatchBuilder { deployment, commands: Vec::new(), open, entries, last }
    }

    /// Adds a separate command.
    pub(super) fn send(&mut self, command: BatchedCommand, keys: &[u64]) {
        let place = Place { command: self.commands.len(), group: 0, entry: 0 };
        self.commands.push(BatchItem::Command(command));
        self.last.extend(keys.iter().map(|key| (*key, place)));
    }

    /// Adds a request to the entry of its first job. Returns whether the entry existed.
    pub(super) fn decide(
        &mut self,
        request: BatchedRequest,
        keys: &[u64],
        first_job: usize,
    ) -> bool {
        let BatchedRequest { mut plan, mode, at, send_mode, waiter } = request;
        if send_mode == SendMode::Batched
            && let Some(&place) = self.entries.get(&first_job)
            && let BatchItem::Call(call) = &mut self.commands[place.command]
        {
            let awaited = &mut call.groups[place.group][place.entry];
            // Requests whose hashes collide are on other states, and do not join.
            match awaited.entry.join(plan, mode) {
                None => {
                    awaited.waiters.push(waiter);
                    return true;
                }
                Some(other) => plan = other,
            }
        }
        let entry = Entry::new(plan, mode);
        let command = self.call_for(&entry, at, send_mode, keys);
        let after = keys.iter().filter_map(|key| self.last.get(key)).max();
        let first_group = after.filter(|after| after.command == command).map_or(0, |it| it.group);
        let BatchItem::Call(call) = &mut self.commands[command] else { return false };
        let awaited = AwaitedEntry { entry, waiters: vec![waiter] };
        let (index, entry) = call.push(awaited, first_group);
        let place = Place { command, group: index, entry };
        self.entries.insert(first_job, place);
        self.last.extend(keys.iter().map(|key| (*key, place)));
        false
    }

    /// The index of the call that an entry is added to.
    fn call_for(
        &mut self,
        entry: &Entry,
        at: Option<Timestamp>,
        send_mode: SendMode,
        keys: &[u64],
    ) -> usize {
        let slot = match entry.states().first() {
            Some(state) if self.deployment == Deployment::Cluster => slot_of(slot_key(&state.key)),
            _ => 0,
        };
        let after = keys.iter().filter_map(|key| self.last.get(key)).max();
        if send_mode == SendMode::Batched
            && let Some(&command) = self.open.get(&(at, slot))
            && after.is_none_or(|after| after.command <= command)
            && let BatchItem::Call(call) = &self.commands[command]
            && call.states + entry.states().len() <= MAX_STATES
        {
            return command;
        }
        let command = self.commands.len();
        self.commands.push(BatchItem::Call(EntryCall {
            at,
            send_mode,
            groups: Vec::new(),
            states: 0,
        }));
        if send_mode == SendMode::Batched {
            self.open.insert((at, slot), command);
        }
        command
    }

    pub(super) fn finish(self) -> Vec<BatchedCommand> {
        let finish = |item| match item {
            BatchItem::Command(command) => command,
            BatchItem::Call(call) => call.finish(),
        };
        self.commands.into_iter().map(finish).collect()
    }
}

/// A request, and the caller that waits for its reply.
pub(super) struct BatchedRequest {
    pub(super) plan: ScriptPlan,
    pub(super) mode: ScriptMode,
    pub(super) at: Option<Timestamp>,
    pub(super) send_mode: SendMode,
    pub(super) waiter: Waiter,
}

impl EntryCall {
    /// Adds an entry to a group from `first_group` on, or to a new one. Returns the indexes of the
    /// group and of the entry in it.
    fn push(&mut self, awaited: AwaitedEntry, first_group: usize) -> (usize, usize) {
        self.states += awaited.entry.states().len();
        let shares = |group: &&Vec<AwaitedEntry>| group[0].entry.shares_group(&awaited.entry);
        let known = self.groups.iter().skip(first_group).position(|group| shares(&group));
        let group = match known {
            Some(offset) => first_group + offset,
            None => {
                self.groups.push(Vec::new());
                self.groups.len() - 1
            }
        };
        self.groups[group].push(awaited);
        (group, self.groups[group].len() - 1)
    }

    fn finish(self) -> BatchedCommand {
        let mut call = CallBuilder::new(self.at);
        for group in &self.groups {
            let entries: Vec<&Entry> = group.iter().map(|awaited| &awaited.entry).collect();
            call.push(&entries);
        }
        let entries = self.groups.into_iter().flatten().collect();
        BatchedCommand::new(call.finish().cmd(), self.send_mode, Waiters::Entries(entries))
    }
}
