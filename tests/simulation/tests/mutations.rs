//! Each deliberate fault is caught within a stated number of worlds. One that is not means that the world never comes
//! where it matters, or that the checker does not look there. That the same worlds pass without a fault is
//! the test in `seeds.rs`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncewire_protocol::mutation::Mutation::*;
use oncewire_simulation::DriverMutation::*;
use oncewire_simulation::Fault::{self, Core, Driver};
use oncewire_simulation::{Trace, run};

/// Within how many worlds, from seed 0 on, a fault is caught.
const CAUGHT_WITHIN: &[(Fault, u64)] = &[
    (Core(IdsReboundAtBoot), 20),
    (Core(SequenceIdGivenTwice), 10),
    (Core(IdsRestartAtBoot), 20),
    (Core(AckBeforeAppend), 10),
    (Core(FailedAckIdRemembered), 20),
    (Core(MismatchAsDuplicate), 20),
    (Core(WindowNotConsulted), 10),
    (Core(OverflowDropsOldest), 100),
    (Core(OldSocketCounts), 20),
    (Core(StaleRequestsCounted), 300),
    (Core(AppendWhileUnsettled), 20),
    (Core(RepeatTakenForDuplicate), 20),
    (Core(AcksOutOfOrder), 10),
    (Core(WindowLostAtAttach), 10),
    (Core(TwinApplied), 20),
    (Core(LateTwinApplied), 20),
    (Core(DoubtTakenForFailure), 60),
    (Core(DoubtForgottenAtRetry), 200),
    (Core(RequestsNotConsulted), 20),
    (Core(RequestsNotRestored), 100),
    (Core(MarksNotRestored), 40),
    (Core(MarkFreesOneMore), 40),
    (Core(RestoredCountsAgainstBound), 200),
    (Core(RefusedWhileBooting), 100),
    (Core(ExpiresWhileAttached), 20),
    (Core(OffsetNotCompared), 150),
    (Core(DeliverySkipped), 10),
    (Core(LeaveIgnored), 10),
    (Core(NoEchoIgnored), 10),
    (Core(FilterIgnored), 20),
    (Core(CloseIgnored), 20),
    (Core(CoversTooMuch), 20),
    (Core(CoversOneLess), 60),
    (Core(CoveredWindowConsulted), 20),
    (Core(ChunkTakenForClean), 20),
    (Core(RepeatsNotRestored), 800),
    (Core(WindowNotRestored), 30),
    (Core(JumpCountersNotRestored), 500),
    (Core(CopySkipped), 30),
    (Core(TrimmedByOneRoundMore), 20),
    (Core(AckBeforeHandled), 10),
    (Core(EventHandledAgain), 10),
    (Core(EventOvertaken), 10),
    (Core(HandlerStateIgnored), 10),
    (Core(HandlerReplyIgnored), 10),
    (Core(UntoldNotRestored), 20),
    (Core(OutboxLostAtDetach), 10),
    (Core(NoRewindAtAttach), 10),
    (Core(SequenceAckFreesOneMore), 10),
    (Core(AckBeforeOwnMessage), 10),
    (Core(RewindForgetsFrame), 20),
    (Core(RewindRepeatsFrame), 20),
    (Core(WriterNotWoken), 20),
    (Core(BootAtWallClock), 60),
    (Driver(LiveBeforeDurable), 100),
    (Driver(EpochForgotten), 50),
    (Driver(WallClockWithinBoot), 30),
];

#[test]
fn every_fault_is_caught_within_its_number_of_worlds() {
    let next = AtomicUsize::new(0);
    let missed = Mutex::new(Vec::new());
    let work = || {
        while let Some((fault, bound)) = CAUGHT_WITHIN.get(next.fetch_add(1, Ordering::Relaxed)) {
            let caught = (0..*bound).find_map(|seed| {
                let failure = run(seed, Some(*fault), Trace::default()).failure?;
                Some((seed, failure.to_string()))
            });
            let name = fault.name();
            match caught {
                Some((seed, how)) => {
                    println!("{name:26} {seed:4}  {:.120}", how.lines().next().unwrap_or_default())
                }
                None => missed.lock().unwrap().push(name),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
            scope.spawn(work);
        }
    });
    assert_eq!(missed.into_inner().unwrap(), Vec::<String>::new(), "these were not caught");
}

#[test]
fn the_table_has_every_fault_once() {
    let mut all: Vec<_> = Fault::all().map(Fault::name).collect();
    let mut listed: Vec<_> = CAUGHT_WITHIN.iter().map(|(fault, _)| fault.name()).collect();
    all.sort();
    listed.sort();
    assert_eq!(all, listed);
}
