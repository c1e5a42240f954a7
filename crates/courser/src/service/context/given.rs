//! The metadata that calls are given.

use courser_buf::MsgBuf;

use super::metadata::{Metadata, MetadataError, MetadataValue};
use super::{current, trailer};
use crate::error::service::EncodeError;
use crate::service::writer::Memory;

/// Metadata of a call, or why it is refused.
#[derive(Clone, Debug, Default)]
pub(crate) struct Given(Metadata, Option<MetadataError>);

impl Given {
    pub(crate) fn insert<'v>(&mut self, key: &str, value: impl Into<MetadataValue<'v>>) {
        if let Err(e) = self.0.insert(key, value) {
            self.1.get_or_insert(e);
        }
    }

    pub(crate) fn extend(&mut self, metadata: &Metadata) {
        metadata.iter().for_each(|(key, value)| self.insert(key, value));
    }

    /// The metadata of a call: its own, then that of its client. With what there is room for of the
    /// call that it is a part of.
    pub(crate) fn complete(
        self,
        defaults: Option<&Result<Metadata, MetadataError>>,
    ) -> Result<Complete, EncodeError> {
        let Given(mut own, error) = self;
        let refused = |e: MetadataError| {
            let detail = e.to_string().into();
            EncodeError::Codec { codec: "metadata", detail }
        };
        error.map_or(Ok(()), Err).map_err(refused)?;
        if let Some(defaults) = defaults {
            let defaults = defaults.as_ref().map_err(|e| refused(e.clone()))?;
            own.fill_from(defaults).map_err(refused)?;
        }
        let inherited = current::passed().map(|passed| {
            let mut all = own.clone();
            // A client does not make the calls of a handler fail by large baggage.
            let _ = all.fill_from(&passed);
            all
        });
        Ok(Complete { own, inherited })
    }
}

/// The metadata of a call.
pub(crate) struct Complete {
    /// Without it the call is not made.
    own: Metadata,
    /// Also what it inherits. Left out if there is no room or no memory for it.
    inherited: Option<Metadata>,
}

impl Complete {
    /// The pairs that are sent, those that are inherited included.
    pub(crate) fn metadata(&self) -> &Metadata {
        self.inherited.as_ref().unwrap_or(&self.own)
    }

    /// Adds a pair of its own.
    pub(crate) fn insert(
        &mut self,
        key: &str,
        value: MetadataValue<'_>,
    ) -> Result<(), MetadataError> {
        self.own.insert(key, value.clone())?;
        if let Some(all) = &mut self.inherited
            && all.insert(key, value).is_err()
        {
            self.inherited = None; // there is no room for all of it
        }
        Ok(())
    }

    /// A request with a trailer behind it, and whether it has one.
    ///
    /// # Errors
    /// There is no room or no memory for its own metadata.
    pub(crate) fn append_to(
        &self,
        mut request: MsgBuf,
        flags: u8,
        memory: &dyn Memory,
    ) -> Result<(MsgBuf, bool), EncodeError> {
        let is_needed = |metadata: &Metadata| !metadata.is_empty() || flags != 0;
        let alloc = |len| memory.alloc(len);
        if let Some(all) = self.inherited.as_ref().filter(|all| is_needed(all)) {
            match trailer::append(request, &trailer::of_request(all, flags), memory.limit(), alloc)
            {
                Ok(longer) => return Ok((longer, true)),
                Err((before, _)) => request = before,
            }
        }
        if !is_needed(&self.own) {
            return Ok((request, false));
        }
        let trailer = trailer::of_request(&self.own, flags);
        match trailer::append(request, &trailer, memory.limit(), alloc) {
            Ok(longer) => Ok((longer, true)),
            Err((_, e)) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests;
