//! Looking at items of several servers, which draws none.

use echoic_replay::WaitReason;
use echoic_replay::stream::Wait;
use echoic_replay::table::Infos;

use super::{
    Gathered, Owner, Shard, Shards, ShardsError, at, incarnation, is_absence, of_all, owner,
};
use crate::client::tables::{Requests, TablesError};

/// Asks a shard that is there; `None` when it was not, or was restarted meanwhile.
fn ask<T>(
    shards: &[Option<Shard<'_>>],
    number: usize,
    wait: &mut Wait<'_>,
    ask: impl FnOnce(&Requests, u32, Wait<'_>) -> Result<T, TablesError>,
) -> Result<Option<(u64, T)>, ShardsError> {
    let (Some(Some(shard)), Some(before)) = (shards.get(number), incarnation(shards, number))
    else {
        return Ok(None);
    };
    let Wait { deadline, tick, .. } = *wait;
    let wait = Wait { deadline, tick, on_tick: &mut *wait.on_tick };
    match ask(shard.requests, shard.table, wait) {
        Ok(answer) => Ok((incarnation(shards, number) == Some(before)).then_some((before, answer))),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(at(number)(error)),
    }
}

impl Shards {
    /// What is known about items of the shards that are there, `most` at most, one shard after the other.
    pub fn list(
        &self,
        shards: &[Option<Shard<'_>>],
        most: usize,
        mut wait: Wait<'_>,
    ) -> Result<Infos, ShardsError> {
        let mut infos = Infos::default();
        for number in 0..shards.len() {
            let (mut size, mut weight, mut place) = (0, 0.0, Some(0));
            while let Some(first) = place
                && infos.keys.len() < most
            {
                let left = most - infos.keys.len();
                let listed = ask(shards, number, &mut wait, |requests, table, wait| {
                    requests.list(table, first, left, wait)
                })?;
                let Some((incarnation, mut listed)) = listed else { break };
                let prefix = self.labels().prefix(number, incarnation);
                listed.infos.keys.iter_mut().for_each(|key| *key |= prefix);
                (size, weight) = (listed.infos.table_size, listed.infos.total_weight);
                let (whole_size, whole_weight) = (infos.table_size, infos.total_weight);
                infos.append(listed.infos);
                (infos.table_size, infos.total_weight) = (whole_size, whole_weight);
                // A place that does not move would have no end.
                place = listed.next.filter(|next| *next > first);
            }
            infos.table_size = infos.table_size.saturating_add(size);
            infos.total_weight = (infos.total_weight + weight).min(f64::MAX);
        }
        Ok(infos)
    }

    /// Reads the items of these names that are there, in the order of the shards; they do not count as
    /// sampled.
    pub fn get(
        &self,
        shards: &[Option<Shard<'_>>],
        keys: &[u64],
        mut wait: Wait<'_>,
    ) -> Result<Gathered, ShardsError> {
        let mut own: Vec<Vec<u64>> = vec![Vec::new(); shards.len()];
        let labels = self.labels();
        for key in keys {
            if let Owner::Shard(shard, key) = owner(labels, shards, *key) {
                own[shard].push(key);
            }
        }
        let mut gathered = Gathered { parts: Vec::new(), infos: Infos::default() };
        for (number, keys) in own.iter().enumerate() {
            // Of items that are nowhere the last shard still has their form.
            let last = number + 1 == own.len() && gathered.parts.is_empty();
            if keys.is_empty() && !last {
                continue;
            }
            let read = ask(shards, number, &mut wait, |requests, table, wait| {
                requests.get(table, keys, wait)
            })?;
            let Some((incarnation, batch)) = read else { continue };
            let mut infos = batch.infos().clone();
            let prefix = labels.prefix(number, incarnation);
            infos.keys.iter_mut().for_each(|key| *key |= prefix);
            let (size, weight) = (gathered.infos.table_size, gathered.infos.total_weight);
            gathered.infos.append(infos);
            gathered.infos.table_size = gathered.infos.table_size.saturating_add(size);
            gathered.infos.total_weight = (gathered.infos.total_weight + weight).min(f64::MAX);
            gathered.parts.push(batch);
        }
        if gathered.parts.is_empty() {
            return Err(of_all(TablesError::TimedOut(WaitReason::Away)));
        }
        Ok(gathered)
    }
}
