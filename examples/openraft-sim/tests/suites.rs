//! openraft's own tests of a runtime and of a store.

use courser_example_openraft_sim::Types;
use courser_example_openraft_sim::runtime::Runtime;
use courser_example_openraft_sim::store::{Disk, StateMachine};
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
