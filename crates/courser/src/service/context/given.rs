//! The metadata that calls are given.

use courser_buf::MsgBuf;

use super::metadata::{Metadata, MetadataError, MetadataValue};
use super::{current, trailer};
use crate::error::service::EncodeError;
use crate::service::binding::Binding;
use crate::service::stream::with_trailer;
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

    /// The metadata of a call: its own, then that of its client, then what there is room for of the call
    /// that it is a part of.
    pub(crate) fn complete(self, service: &Binding) -> Result<Metadata, EncodeError> {
        let Given(mut all, error) = self;
        let refused = |e: MetadataError| {
            let detail = e.to_string().into();
            EncodeError::Codec { codec: "metadata", detail }
        };
        error.map_or(Ok(()), Err).map_err(refused)?;
        if let Some(defaults) = service.defaults() {
            let defaults = defaults.as_ref().map_err(|e| refused(e.clone()))?;
            all.fill_from(defaults).map_err(refused)?;
        }
        if let Some(passed) = current::passed() {
            // A client does not make the calls of a handler fail by large baggage.
            let _ = all.fill_from(&passed);
        }
        Ok(all)
    }
}

/// A request with a trailer behind it.
pub(crate) fn append(
    request: MsgBuf,
    metadata: &Metadata,
    flags: u8,
    memory: &dyn Memory,
) -> Result<MsgBuf, EncodeError> {
    let trailer = trailer::of_request(metadata, flags);
    with_trailer(Some(request), &trailer, memory)
}
