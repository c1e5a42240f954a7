//! The copy of a received packet.

use courser_buf::AllocError;

use crate::endpoint::copy_of;
use crate::event::Body;
use crate::io::Io;

impl Io {
    /// The body of a request of one packet with [`Factors::zero_copy_rx`] off.
    ///
    /// [`Factors::zero_copy_rx`]: crate::factors::Factors::zero_copy_rx
    pub(crate) fn copied_body<'f>(&self, data: &'f [u8]) -> Result<Body<'f>, AllocError> {
        copy_of(&self.arena, data).map(Body::Owned)
    }
}
