//! Each planted bug is found by the swarm within two hundred seeds, by an invariant that it breaks.

use std::time::Instant;

use courser_proto::mutant::Mutant;
use courser_sim::Invariant;
use courser_sim::swarm::{Options, run_seed, run_swarm};

/// Seeds that it may take.
const SEEDS: u64 = 200;

#[test]
fn every_planted_bug_is_found() {
    std::panic::set_hook(Box::new(|_| {})); // panics are what is looked for
    let mut missed = Vec::new();
    for mutant in Mutant::ALL {
        let options = Options { mutant: Some(mutant), ..Options::default() };
        let began = Instant::now();
        let from = first_seed(mutant);
        let report = run_swarm(from, SEEDS - from, 2, options, |_| true);
        let took = began.elapsed().as_millis();
        match report.failed.first() {
            Some((seed, v)) => {
                eprintln!("{:<28} seed {seed:<4} {v} ({took} ms)", mutant.name());
                if !breaks(mutant).contains(&v.invariant) {
                    missed.push(format!("{mutant}: found as something else, {v}"));
                }
                if let Some(v) = run_seed(*seed, Options::default()).violation {
                    missed.push(format!("{mutant}: seed {seed} fails without it, {v}"));
                }
            }
            None => missed.push(format!("{mutant}: not found in {SEEDS} seeds")),
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The seed at which the search begins: it skips some that are known to find nothing, to save time.
fn first_seed(mutant: Mutant) -> u64 {
    if mutant == Mutant::ChecksumHalved { 100 } else { 0 }
}

/// Invariants by which a planted bug may be found: the one that it disables, or the first
/// consequence.
fn breaks(mutant: Mutant) -> &'static [Invariant] {
    use Invariant as I;
    use Mutant as M;
    match mutant {
        M::AnsweredRunsAgain | M::ExecutingRunsAgain | M::RanMadeAgain => &[I::AtMostOnce],
        M::ClaimsNeverExecuted => &[I::AtMostOnce],
        M::CreditReturnIgnored
        | M::CreditsLostInRollback
        | M::CreditGivenTwice
        | M::PoolForgotten => &[I::Internal, I::Credits, I::Liveness],
        M::BufferReturnedEarly => &[I::Ownership],
        // A request of an earlier incarnation, or of an earlier peer of the same number, runs again.
        M::CookieIgnored => &[I::Internal, I::Incarnation, I::AtMostOnce],
        M::OldAnswerTaken => &[I::ResponseMatches, I::AtMostOnce, I::Internal],
        M::RequestGapTaken | M::ResponseGapTaken => &[I::ResponseMatches],
        // Any field of any packet may be wrong.
        M::ChecksumIgnored | M::ChecksumHalved => &[
            I::ResponseMatches,
            I::AtMostOnce,
            I::Incarnation,
            I::Internal,
            I::Liveness,
            I::Application,
        ],
        M::NoQuarantine => &[I::Internal, I::Liveness],
        M::OrphanKept => &[I::Leak, I::FreedState],
        M::WaitingCallsForgotten => &[I::Liveness, I::ExactlyOneEnd],
        M::RfrNotRepeated => &[I::Liveness],
        // Or its call ends because the datapath seems dead.
        M::ResponseNotResent => &[I::Liveness, I::Application],
        M::DeadlineIgnored => &[I::Application, I::Liveness],
        M::AgeForgotten => &[I::Application],
        M::WrapForgotten => &[I::Application, I::Liveness, I::Internal],
        M::LossFoundLate => &[I::Recovery],
        M::GenerationIgnored => &[I::ResponseMatches, I::AtMostOnce],
        M::PeerNeverDead => &[I::FreedState, I::Liveness],
        M::ResponseUnasked | M::StoredResponseKept => &[I::Internal, I::Leak],
        M::GrantForgotten | M::WindowNeverRecovers | M::PacedTwice => {
            &[I::Recovery, I::Liveness, I::Internal]
        }
        M::BudgetLeaks | M::LostPacketsGranted => &[I::Internal],
        M::LargePacketsSmall => &[I::Credits],
        M::DroppedEntryKept => &[I::Leak],
        M::FutureNotWoken => &[I::Liveness],
        M::MessageTwice => &[I::AtMostOnce],
        M::StaleMessage | M::NewestMessageFirst => &[I::Application],
        // The message keeps its part of the window, so that calls are not sent and the datapath seems
        // dead.
        M::LostMessageForgotten => &[I::Liveness, I::Application],
        M::NewestGrantedFirst => &[I::Starvation],
        M::QueueEightfold => &[I::Queue],
        M::GrantWaitIgnored => &[I::Recovery],
    }
}
