//! Messages between two ranks: a header, then the data, a span at a time.

use std::time::Instant;

use super::lane::{Lane, expect, spans};
use super::loan::Target;
use super::wait::{Halt, Wait};
use crate::Result;
use crate::header::{HEADER_BYTES, Header};

/// Most bytes of a message that go at once.
const MESSAGE_BYTES: usize = 1 << 20;

impl Lane {
    pub(super) async fn send(
        &self,
        target: &Target,
        header: Header,
        to: usize,
        wait: Wait,
        deadline: Instant,
    ) -> Result<(), Halt> {
        let _waiting = self.session.context.pace.waiting();
        let mut memory = self.take(HEADER_BYTES);
        memory.bytes_mut()[..HEADER_BYTES].copy_from_slice(&header.encode());
        let mut memory =
            self.until(deadline, wait, self.comm.send(memory, HEADER_BYTES, to)).await?;
        for span in spans(target.len(), MESSAGE_BYTES) {
            let len = span.len();
            memory.reserve(len);
            target.load(span, &mut memory.bytes_mut()[..len])?;
            memory = self.until(deadline, wait, self.comm.send(memory, len, to)).await?;
        }
        self.add_sent(target.len());
        self.give_back([memory]);
        Ok(())
    }

    pub(super) async fn receive(
        &self,
        target: &mut Target,
        header: Header,
        from: usize,
        wait: Wait,
        deadline: Instant,
    ) -> Result<(), Halt> {
        let waiting = self.session.context.pace.waiting();
        let memory = self.take(HEADER_BYTES);
        let received = self.comm.receive(memory, HEADER_BYTES, Some(from));
        let mut memory = self.until(deadline, wait, received).await?;
        let bytes = memory.bytes().first_chunk::<HEADER_BYTES>();
        expect(bytes.ok_or(Halt::Malformed { peer: from })?, &header, from)?;
        drop(waiting);
        let _moving = self.session.context.pace.moving();
        for span in spans(target.len(), MESSAGE_BYTES) {
            let len = span.len();
            memory.reserve(len);
            let received = self.comm.receive(memory, len, Some(from));
            memory = self.until(deadline, wait, received).await?;
            target.store(span.start, &memory.bytes()[..len])?;
        }
        self.give_back([memory]);
        Ok(())
    }
}
