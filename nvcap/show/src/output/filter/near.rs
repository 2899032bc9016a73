//! Proposal of the word that a user may have meant who wrote another.

/// Longest word, in characters, that is compared: the time grows with the square.
const LONGEST: usize = 80;

/// Returns the word nearest to `wanted`: one that differs in case alone or in few letters, or that contains it. Stars of a pattern do not count.
pub(super) fn near<'a>(wanted: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let wanted: Vec<char> = letters(&wanted.replace(['*', '?'], ""));
    if wanted.is_empty() || wanted.len() > LONGEST {
        return None;
    }
    let text: String = wanted.iter().collect();
    let far = |word: &str| {
        let word = letters(word);
        let part = wanted.len() >= 3 && word.iter().collect::<String>().contains(&text);
        if part {
            return Some(0);
        }
        if word.len() > LONGEST {
            return None;
        }
        Some(distance(&wanted, &word)).filter(|d| *d <= (wanted.len().min(word.len()) / 3).max(1))
    };
    words
        .filter_map(|word| far(word).map(|d| (d, word)))
        // Of one letter every other word of one letter would be near.
        .filter(|(d, word)| *d < word.chars().count())
        .min_by_key(|(d, word)| (*d, word.len()))
        .map(|(_, word)| word)
}

fn letters(word: &str) -> Vec<char> {
    word.to_lowercase().chars().collect()
}

/// Returns the number of letters to insert, delete or exchange to make one word of the other; two neighbours that changed places count once.
fn distance(a: &[char], b: &[char]) -> usize {
    let (mut two_before, mut before) = (Vec::new(), (0..=b.len()).collect::<Vec<usize>>());
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let exchanged = before[j] + usize::from(x != y);
            let mut least = exchanged.min(before[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                let turned: &Vec<usize> = &two_before;
                least = least.min(turned[j - 1] + 1);
            }
            row.push(least);
        }
        two_before = std::mem::replace(&mut before, row);
    }
    before[b.len()]
}

#[cfg(test)]
mod tests {
    use super::near;

    #[test]
    fn a_word_that_is_near_is_found() {
        let words = ["launch", "memset", "ampere_sgemm_128x64_tn", "ch2"];
        for (wanted, found) in [
            ("lunch", Some("launch")),
            ("memest", Some("memset")),
            ("MEMSET", Some("memset")),
            ("*sgemm*", Some("ampere_sgemm_128x64_tn")),
            ("ch3", Some("ch2")),
            ("zzzz", None),
            ("x", None),
            ("", None),
            ("**", None),
        ] {
            assert_eq!(near(wanted, words.into_iter()), found, "{wanted}");
        }
        let long = "x".repeat(100_000);
        assert_eq!(near(&long, [long.as_str()].into_iter()), None);
    }
}
