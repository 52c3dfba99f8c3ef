//! Which transitions follow each other, where several environments write between each other.
//!
//! # Invariants
//!
//! 1. Every position in the window is a step of just one episode, at the place that `places` has for its
//!    slot.
//! 2. Steps of an episode are in the order in which they were pushed; those that fell out of the window are
//!    missing at its front.

use std::collections::{HashMap, VecDeque};

/// See the [module](self).
///
/// ```
/// use echoic_buffers::episodes::Episodes;
///
/// let mut episodes = Episodes::new(8);
/// // Environments 0 and 1 take turns; the episode of 0 ends at position 2.
/// for (position, env, ended) in [(0, 0, false), (1, 1, false), (2, 0, true), (3, 1, false), (4, 0, false)] {
///     episodes.push(position, env, ended);
/// }
/// let steps = episodes.of(0).expect("position 0 is there");
/// assert_eq!(steps.iter().collect::<Vec<_>>(), [0, 2]);
/// assert_eq!(episodes.of(3).expect("position 3 is there").at(), 1);
/// ```
#[derive(Debug)]
pub struct Episodes {
    slots: u64,
    places: Vec<EpisodeStep>,
    episodes: Vec<Episode>,
    /// Which of `episodes` can be used for others.
    free: Vec<u32>,
    /// The episode that each environment is in.
    open: HashMap<u32, u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct EpisodeStep {
    episode: u32,
    /// How many steps of the episode were before this one, ever.
    step: u32,
}

#[derive(Debug, Default)]
struct Episode {
    env: u32,
    /// How many steps are missing at the front.
    missing: u32,
    steps: VecDeque<u64>,
    ended: bool,
}

/// The episode of a position.
#[derive(Debug, Clone, Copy)]
pub struct Steps<'a> {
    episode: &'a Episode,
    at: usize,
}

impl Episodes {
    /// For positions whose slots are below `slots`.
    pub fn new(slots: u64) -> Self {
        Self {
            slots,
            places: Vec::new(),
            episodes: Vec::new(),
            free: Vec::new(),
            open: HashMap::new(),
        }
    }

    /// The next step of an environment.
    pub fn push(&mut self, position: u64, env: u32, ended: bool) {
        let number = match self.open.get(&env) {
            Some(number) => *number,
            None => {
                let number = self.free.pop().unwrap_or_else(|| {
                    self.episodes.push(Episode::default());
                    (self.episodes.len() - 1) as u32
                });
                self.episodes[number as usize] = Episode { env, ..Episode::default() };
                self.open.insert(env, number);
                number
            }
        };
        let episode = &mut self.episodes[number as usize];
        let slot = (position % self.slots) as usize;
        if self.places.len() <= slot {
            self.places.resize(slot + 1, EpisodeStep::default());
        }
        self.places[slot] = EpisodeStep {
            episode: number,
            step: episode.missing.wrapping_add(episode.steps.len() as u32),
        };
        episode.steps.push_back(position);
        if ended {
            self.end(env);
        }
    }

    /// Ends the episode of an environment: what it pushes next begins another.
    pub fn end(&mut self, env: u32) {
        if let Some(number) = self.open.remove(&env) {
            let episode = &mut self.episodes[number as usize];
            episode.ended = true;
            if episode.steps.is_empty() {
                self.free.push(number);
            }
        }
    }

    /// Ends the episodes of all environments.
    pub fn end_all(&mut self) {
        let envs: Vec<u32> = self.open.keys().copied().collect();
        envs.into_iter().for_each(|env| self.end(env));
    }

    /// Forgets a position that fell out of the window. They do so in their order.
    pub fn evict(&mut self, position: u64) {
        let Some(place) = self.places.get((position % self.slots) as usize) else { return };
        let episode = &mut self.episodes[place.episode as usize];
        if episode.steps.front() != Some(&position) {
            // Its writer died before it could say whose step it was.
            return;
        }
        episode.steps.pop_front();
        episode.missing = episode.missing.wrapping_add(1);
        if episode.steps.is_empty() && episode.ended {
            self.free.push(place.episode);
        }
    }

    /// The episode of a position in the window.
    pub fn of(&self, position: u64) -> Option<Steps<'_>> {
        let place = self.places.get((position % self.slots) as usize)?;
        let episode = self.episodes.get(place.episode as usize)?;
        let at = place.step.wrapping_sub(episode.missing) as usize;
        (episode.steps.get(at) == Some(&position)).then_some(Steps { episode, at })
    }

    /// How many episodes have steps in the window.
    pub fn len(&self) -> usize {
        self.episodes.iter().filter(|episode| !episode.steps.is_empty()).count()
    }

    /// Whether no episode has a step in the window.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> Steps<'a> {
    /// Which of the steps in the window it is.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many steps are in the window.
    pub fn len(&self) -> usize {
        self.episode.steps.len()
    }

    /// Never true: the position itself is one.
    pub fn is_empty(&self) -> bool {
        self.episode.steps.is_empty()
    }

    /// Whether no step will follow the last one.
    pub fn ended(&self) -> bool {
        self.episode.ended
    }

    /// Whose episode it is.
    pub fn env(&self) -> u32 {
        self.episode.env
    }

    /// The position of a step in the window.
    pub fn get(&self, step: usize) -> Option<u64> {
        self.episode.steps.get(step).copied()
    }

    /// The positions of all steps in the window.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.episode.steps.iter().copied()
    }

    /// The positions of up to `count` steps from a step on.
    pub fn range(&self, from: usize, count: usize) -> impl Iterator<Item = u64> + use<'a> {
        let from = from.min(self.len());
        self.episode.steps.range(from..self.len().min(from.saturating_add(count))).copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Against a list of (environment, episode, position).
        #[test]
        fn episodes_are_what_a_list_says(
            kept in 1u64..20,
            pushes in prop::collection::vec((0u32..3, prop::bool::weighted(0.2), prop::bool::weighted(0.05)), 0..120),
        ) {
            let mut episodes = Episodes::new(kept + 3);
            let mut list: Vec<(u32, u32, u64, bool)> = Vec::new();
            let mut count = [0u32; 3];
            for (position, (env, ended, cut)) in pushes.into_iter().enumerate() {
                let position = position as u64;
                episodes.push(position, env, ended);
                list.push((env, count[env as usize], position, ended));
                if cut {
                    episodes.end(env);
                }
                if ended || cut {
                    count[env as usize] += 1;
                }
                if position >= kept {
                    episodes.evict(position - kept);
                }
                let low = (position + 1).saturating_sub(kept);
                prop_assert!(low == 0 || episodes.of(low - 1).is_none());
                for (env, episode, at, _) in list.iter().filter(|step| step.2 >= low) {
                    let expected: Vec<u64> = list
                        .iter()
                        .filter(|step| (step.0, step.1) == (*env, *episode) && step.2 >= low)
                        .map(|step| step.2)
                        .collect();
                    let steps = episodes.of(*at).unwrap();
                    prop_assert_eq!(steps.iter().collect::<Vec<_>>(), &expected[..]);
                    prop_assert_eq!(steps.get(steps.at()), Some(*at));
                    prop_assert_eq!(steps.ended(), *episode < count[*env as usize]);
                    prop_assert_eq!(steps.env(), *env);
                }
            }
        }
    }
}
