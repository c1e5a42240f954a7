//! Consequences for other sessions of what a flow has done.

use crate::endpoint::Endpoint;

impl<C> Endpoint<C> {
    /// Applies what flows have left ([`crate::admission::Effects`]).
    #[inline]
    pub(crate) fn apply_effects(&mut self) {
        if !self.admission.effects.is_empty() {
            self.apply();
        }
    }

    #[cold]
    fn apply(&mut self) {
        let effects = std::mem::take(&mut self.admission.effects);
        if effects.limits {
            self.limit_messages();
        }
        let shares = effects.shares || !effects.waiting.is_empty();
        for (at, owner) in effects.waiting {
            self.admission.budget.enqueue(at, &owner);
        }
        if effects.silent {
            self.reclaim_grants();
        } else if (shares || effects.freed) && self.admission.budget.is_in_force() {
            self.share_out();
        }
        if self.admission.budget.is_over(self.io.now_ns) {
            self.lift_limits();
        }
        if let Some(id) = effects.arrived
            && let Some(mut flow) = self.request_flow(id)
        {
            flow.return_credit(id.slot());
        }
        for peer in effects.answered {
            self.send_oldest_held(peer);
        }
    }
}
