//! How fast a table of small rows is: batches of 256 from a million, with and without priorities.

#![expect(clippy::print_stdout, reason = "a program that prints")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use echoic_replay::limiter::Limiter;
use echoic_replay::selectors::SelectorKind;
use echoic_replay::table::{Form, Table, TableConfig};
use echoic_replay::{Dtype, Leaf, Spec};

const ITEMS: usize = 1_000_000;
const BATCH: usize = 256;
const ROUNDS: usize = 2_000;

fn main() {
    let leaves = [("action", 1), ("discount", 1), ("next_obs", 4), ("obs", 4), ("reward", 2)];
    let leaves = leaves.map(|(path, length)| Leaf {
        path: path.into(),
        dtype: Dtype::Float(4),
        shape: vec![length],
    });
    for sampler in [SelectorKind::Uniform, SelectorKind::Prioritized { exponent: 0.6 }] {
        let table = Arc::new(
            Table::new(TableConfig {
                name: "t".into(),
                form: Form::Rows(Spec::new(leaves.to_vec()).expect("a spec")),
                structure: String::new(),
                sampler,
                remover: SelectorKind::Fifo,
                limiter: Limiter::min_size(1).expect("a limiter"),
                max_size: ITEMS as u32,
                max_times_sampled: 0,
                seed: 1,
            })
            .expect("a table"),
        );
        let mut done = 0;
        while done < ITEMS {
            let mut insertion = table.try_reserve(4096.min(ITEMS - done)).expect("room");
            let count = insertion.len();
            for index in 0..count {
                insertion.row_mut(index).fill((done + index) as u8);
            }
            let priorities: Vec<f64> = (0..count).map(|index| (index % 100) as f64 + 1.0).collect();
            insertion.commit(&priorities, None).expect("an insert");
            done += count;
        }
        let mut columns: Vec<Vec<u8>> =
            leaves.iter().map(|leaf| vec![0; leaf.shape[0] * 4 * BATCH]).collect();
        let mut targets: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
        let mut times = [Vec::new(), Vec::new(), Vec::new()];
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let sampled = table.try_sample(BATCH).expect("a sample");
            times[0].push(start.elapsed());
            let start = Instant::now();
            sampled.gather(&mut targets);
            times[1].push(start.elapsed());
            let infos = sampled.into_infos();
            let start = Instant::now();
            table.update_priorities(&infos.keys, &infos.priorities).expect("an update");
            times[2].push(start.elapsed());
            black_box(&targets);
        }
        for (what, times) in ["draw", "gather", "update"].iter().zip(&mut times) {
            times.sort_unstable();
            println!("{sampler} {what} {BATCH}: {:?}", times[ROUNDS / 2]);
        }
    }
}
