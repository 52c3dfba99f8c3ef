//! What is told of producers by name: who was admitted when, whose groups are delivered, who waits.

mod rollouts;

use echoic_replay::limiter::Reason;
use echoic_replay::rollouts::RolloutTable;
use echoic_replay::rollouts::ledger::{Admit, Change};
use echoic_replay::rollouts::table::Side;
use rollouts::{Table, config, groups};

fn admit(source: &str) -> Admit {
    Admit { count: 1, source: source.into(), ..Admit::default() }
}

#[test]
fn what_is_admitted_and_delivered_is_counted_for_its_source() {
    let mut table = Table::new(config());
    for (at, source) in [(5, "one"), (7, "one"), (9, "other")] {
        table.now = at;
        let hold = table.admit_as(admit(source)).expect("room")[0].hold;
        table.complete(hold, 0);
    }
    table.sample(groups(2)).expect("a batch");
    let told = |source: usize| {
        let source = &table.ledger.sources()[source];
        (source.name.as_str(), source.accepted, source.delivered, source.last_admitted)
    };
    assert_eq!((told(0), told(1)), (("one", 2, 2, Some(7)), ("other", 1, 0, Some(9))));
}

#[test]
fn a_source_that_waits_is_told_of_with_what_others_got_meanwhile() {
    let table = RolloutTable::new(config()).expect("a table");
    assert_eq!(table.info().hunger, []);
    let change = Change::Admit(admit("hungry"));
    let waiting = table.begin_wait(Side::Producers, change.applicant(), Reason::Capacity);
    table.apply(&Change::Admit(admit("other"))).expect("room");
    let hunger = table.info().hunger;
    let told: Vec<_> = hunger.iter().map(|one| (&*one.source, one.waiting, one.passed)).collect();
    assert_eq!(told, [("hungry", 1, 1)]);
    assert!(!hunger[0].is_starving, "it has not waited for long");
    drop(waiting);
    let hunger = table.info().hunger;
    assert_eq!((hunger[0].waiting, hunger[0].passed, hunger[0].oldest_ms), (0, 0, 0));
}
