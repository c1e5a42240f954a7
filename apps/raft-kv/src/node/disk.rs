//! Writes to the disk.

use std::rc::Rc;
use std::time::Duration;

use super::Node;
use crate::core::{Core, Making};
use crate::journal::{Durable, Journal, JournalError, save_snapshot};
use crate::store::Image;

/// Pause between two slices of an image: a part of the time that a slice takes.
const PAUSE: Duration = Duration::from_micros(200);

/// Pause before a write is tried again for which the queue of the disk had no room.
const BUSY: Duration = Duration::from_millis(1);

impl Node {
    /// Writes the frames of the core, one at a time. It ends when the disk fails, and stops the node.
    pub(super) async fn write_frames(self: Rc<Self>, mut journal: Journal) {
        loop {
            self.disk.wait().await;
            if let Err(error) = self.write_all(&mut journal).await {
                self.with(|core| core.fail(error.to_string()));
                return;
            }
        }
    }

    async fn write_all(&self, journal: &mut Journal) -> Result<(), JournalError> {
        let pause = async || self.local.sleep(BUSY).await;
        loop {
            let frame = self.core.borrow_mut().take_frame();
            let Some(frame) = frame else { break };
            if let Some(image) = frame.image.clone() {
                self.save(image).await?;
                self.is_dirty.set(true);
            }
            if !frame.records.is_empty()
                && let Err(error) = journal.write(&frame, &pause).await
            {
                return Err(journal.failed(error));
            }
            self.with(|core| core.persisted(frame.number()));
            // Under load there is always another frame.
            self.tidy(journal).await?;
        }
        self.tidy(journal).await
    }

    /// Writes down the cluster when it is known, begins another segment when the present one is full or a
    /// snapshot was made, and removes files that are not needed.
    async fn tidy(&self, journal: &mut Journal) -> Result<(), JournalError> {
        let pause = async || self.local.sleep(BUSY).await;
        let identity = self.core.borrow().store().identity();
        if identity.cluster != 0 && identity != journal.identity() {
            journal.identify(identity, &pause).await?;
            self.belong(identity);
        }
        if !self.is_dirty.get() && !journal.is_full() {
            return Ok(());
        }
        let (hard, durable) = {
            let core = self.core.borrow();
            // A node that has failed may have a frame that is not on disk.
            if core.failed().is_some() {
                return Ok(());
            }
            (core.log().hard().clone(), core.has_durable_begin().then(|| Durable::of(core.log())))
        };
        self.is_dirty.set(durable.is_none());
        if durable.is_none() && !journal.is_full() {
            return Ok(());
        }
        journal.rotate(hard, &pause).await?;
        durable.map_or(Ok(()), |durable| journal.clean(durable))
    }

    async fn save(&self, image: Image) -> Result<(), JournalError> {
        let Some(storage) = &self.storage else { return Ok(()) };
        let _one = self.saving.lock().await;
        save_snapshot(storage.clone(), image, &async || self.local.sleep(BUSY).await).await
    }

    /// Makes an image in slices, between which the event loop goes on: heartbeats are sent meanwhile.
    /// `None`: it is not time for one, or a received snapshot took its place.
    async fn make_image(&self) -> Option<Image> {
        loop {
            let made = self.core.borrow_mut().make_snapshot();
            match made {
                Making::Idle => return None,
                Making::Begun => self.local.sleep(PAUSE).await,
                Making::Done(image) => return Some(image),
            }
        }
    }

    /// Makes a snapshot of the state whenever it is time.
    pub(super) async fn save_snapshots(self: Rc<Self>) {
        loop {
            self.snapshot.wait().await;
            let Some(image) = self.make_image().await else { continue };
            match self.save(image.clone()).await {
                Ok(()) => {
                    self.with(|core| core.snapshot_made(image));
                    self.is_dirty.set(true);
                }
                Err(error) => {
                    self.with(|core: &mut Core| core.fail(error.to_string()));
                    return;
                }
            }
        }
    }
}
