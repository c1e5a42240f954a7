//! openraft's own tests of a store.

use courser_example_openraft::Types;
use courser_example_openraft::store::{Log, StateMachine};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};

struct Builder;

impl StoreBuilder<Types, Log, StateMachine> for Builder {
    async fn build(&self) -> Result<((), Log, StateMachine), StorageError<u64>> {
        Ok(((), Log::default(), StateMachine::default()))
    }
}

#[test]
fn the_store_passes_the_suite_of_openraft() {
    Suite::test_all(Builder).unwrap();
}
