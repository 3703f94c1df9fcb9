//! What is wrong with a set of images, collected so that all of it can be mended at once.

use std::path::Path;

use crate::{DataError, ImageSetProblem};

/// Problems that are told one by one.
const MOST: usize = 10;

/// Problems of one list or folder: the first few, and how many there are.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    first: Vec<String>,
    all: usize,
}

impl Problems {
    pub(crate) fn add(&mut self, problem: impl Into<String>) {
        self.all += 1;
        if self.first.len() < MOST {
            self.first.push(problem.into());
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.all
    }

    /// Makes an error of the problems of `path`, if there are any.
    pub(crate) fn check(self, path: &Path) -> Result<(), DataError> {
        let more = self.all - self.first.len();
        match self.first.is_empty() {
            true => Ok(()),
            false => {
                let problems = self.first;
                Err(DataError::image_set(path, ImageSetProblem::Unusable { problems, more }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_ten_are_told_and_the_others_counted() {
        let mut problems = Problems::default();
        (1..=12).for_each(|line| problems.add(format!("line {line}: bad")));
        let error = problems.check(Path::new("a.csv")).unwrap_err().to_string();
        assert!(error.starts_with("a.csv: line 1: bad; line 2: bad; "), "{error}");
        assert!(error.ends_with("line 10: bad; and 2 more"), "{error}");
        assert!(Problems::default().check(Path::new("a.csv")).is_ok());
    }
}
