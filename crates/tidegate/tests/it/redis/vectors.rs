//! The golden vectors, decided by servers.

use std::cell::RefCell;
use std::rc::Rc;

use tidegate::unstable::redis::KeyNames;
use tidegate::{Check, Cost, Decision, Limit, PermitOperation, Request};

use super::client::{Client, letter};
use super::servers::on_each;
use crate::common::at;
use crate::vectors::{Host, run};

struct Redis {
    limit: Limit,
    client: Rc<RefCell<Client>>,
}

impl Host for Redis {
    fn decide_step(&mut self, at_us: u64, cost: Cost, permit: char) -> Decision {
        let checks = [Check::new("key", &self.limit, cost)];
        let request = Request::new(&checks).with_permit(letter(permit));
        let (mut client, now) = (self.client.borrow_mut(), Some(at(at_us)));
        client.decide(&request, now).expect("a sound request").decisions()[0]
    }

    fn release(&mut self, at_us: u64, permit: char) -> bool {
        let operation = PermitOperation::Release(letter(permit));
        self.client.borrow_mut().permit("key", &self.limit, operation, Some(at(at_us)))
    }

    fn renew(&mut self, at_us: u64, permit: char) -> bool {
        let operation = PermitOperation::Renew(letter(permit));
        self.client.borrow_mut().permit("key", &self.limit, operation, Some(at(at_us)))
    }
}

#[test]
fn scripts_agree_with_the_vectors_on_redis_and_valkey() {
    on_each(|engine, server| {
        let client = Rc::new(RefCell::new(Client::new(server, "")));
        let case = RefCell::new(0);
        run(engine, |limit| {
            *case.borrow_mut() += 1;
            client.borrow_mut().names = KeyNames::new(&case.borrow().to_string());
            Box::new(Redis { limit, client: Rc::clone(&client) })
        });
    });
}
