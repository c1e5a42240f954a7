//! openraft's own tests of a runtime and of a store, and the order in which a watch wakes.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::Local;
use courser_example_openraft_sim::Types;
use courser_example_openraft_sim::runtime::Runtime;
use courser_example_openraft_sim::store::{Disk, StateMachine};
use openraft::async_runtime::{Watch, WatchReceiver, WatchSender};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::{AsyncRuntime, StorageError};

struct Builder;

impl StoreBuilder<Types, Disk, StateMachine> for Builder {
    async fn build(&self) -> Result<((), Disk, StateMachine), StorageError<Types>> {
        let disk = Disk::default();
        let state = StateMachine::open(disk.clone()).expect("an empty disk");
        Ok(((), disk, state))
    }
}

#[test]
fn the_runtime_passes_the_suite_of_openraft() {
    openraft_rt::testing::Suite::<Runtime>::test_all();
}

#[test]
fn the_store_passes_the_suite_of_openraft() {
    Runtime::run(Suite::test_all(Builder)).unwrap();
}

#[test]
fn a_watch_wakes_its_receivers_in_the_order_of_their_waits() {
    const RECEIVERS: u32 = 30;
    let woken = Runtime::run(async {
        let (sender, receiver) = <Runtime as AsyncRuntime>::Watch::channel(0);
        let woken = Rc::new(RefCell::new(Vec::new()));
        let wait = |number| {
            let (mut receiver, woken) = (receiver.clone(), woken.clone());
            Runtime::spawn(async move {
                receiver.changed().await.unwrap();
                woken.borrow_mut().push(number);
            })
        };
        let tasks: Vec<_> = (0..RECEIVERS).map(wait).collect();
        Local::current().unwrap().sleep(Duration::from_millis(1)).await;
        sender.send(1).unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        woken.take()
    });
    assert_eq!(woken, (0..RECEIVERS).collect::<Vec<_>>());
}
