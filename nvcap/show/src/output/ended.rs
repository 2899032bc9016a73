//! Processes and threads that have ended. What is known of them is kept for a while, for something of them may still come; a program may make as many
//! as it likes, so that the oldest are forgotten.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Processes or threads that have ended, in the order of their ends, `KEPT` at most.
#[derive(Debug)]
pub(crate) struct Ended<K, const KEPT: usize = 256> {
    order: VecDeque<(K, u64)>,
    /// Number of the end of each, where no other one with its id has begun since.
    last: HashMap<K, u64>,
    ends: u64,
}

impl<K, const KEPT: usize> Default for Ended<K, KEPT> {
    fn default() -> Self {
        Self {
            order: VecDeque::new(),
            last: HashMap::new(),
            ends: 0,
        }
    }
}

impl<K: Copy + Eq + Hash, const KEPT: usize> Ended<K, KEPT> {
    /// Takes note that one has ended. Returns one that ended so long ago that nothing of it comes any more.
    pub(crate) fn ends(&mut self, one: K) -> Option<K> {
        self.ends += 1;
        self.order.push_back((one, self.ends));
        self.last.insert(one, self.ends);
        if self.order.len() <= KEPT {
            return None;
        }
        let (oldest, number) = self.order.pop_front()?;
        let is_over = self.last.get(&oldest) == Some(&number);
        is_over.then(|| {
            self.last.remove(&oldest);
            oldest
        })
    }

    /// Takes note that one begins. Returns true if another one with its id has ended.
    pub(crate) fn begins(&mut self, one: K) -> bool {
        self.last.remove(&one).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_returned_unless_its_id_is_used_again() {
        const KEPT: usize = 256;
        let mut ended = Ended::<usize>::default();
        assert_eq!(ended.ends(7), None);
        assert_eq!(ended.ends(8), None);
        assert!(ended.begins(7));
        assert!(!ended.begins(7));
        assert!(!ended.begins(9));
        let returned: Vec<usize> = (100..100 + KEPT).filter_map(|n| ended.ends(n)).collect();
        assert_eq!(returned, [8]);
        // One that begins and ends again counts from its last end on.
        assert!(ended.begins(100));
        assert_eq!((ended.ends(100), ended.ends(1)), (None, Some(101)));
        assert!(ended.begins(100));
        assert!(ended.last.len() <= KEPT && ended.order.len() <= KEPT);
    }
}
