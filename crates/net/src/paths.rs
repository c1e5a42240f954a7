//! Table of destinations: assigns the numbers of
//! [`Transport::path_open`](crate::Transport::path_open) and frees them in `path_close`.

use courser_buf::PathId;

use crate::PathError;

/// Most destinations of an endpoint.
const MAX_PATHS: usize = 65_536;

/// Destinations by number; freed numbers are reused.
#[derive(Debug)]
pub struct PathTable<D> {
    slots: Vec<Option<D>>,
    free: Vec<u32>,
}

impl<D> Default for PathTable<D> {
    fn default() -> Self {
        PathTable { slots: Vec::new(), free: Vec::new() }
    }
}

impl<D> PathTable<D> {
    /// Adds a destination.
    ///
    /// # Errors
    /// [`PathError::TooMany`]: there are 65,536.
    pub fn open(&mut self, destination: D) -> Result<PathId, PathError> {
        if self.free.is_empty() && self.slots.len() >= MAX_PATHS {
            return Err(PathError::TooMany(MAX_PATHS));
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.slots[index as usize] = Some(destination);
        Ok(PathId(index))
    }

    /// Removes a destination; a number that is not open is ignored.
    pub fn close(&mut self, path: PathId) {
        if self.slots.get_mut(path.0 as usize).and_then(Option::take).is_some() {
            self.free.push(path.0);
        }
    }

    /// A destination, while it is open.
    #[inline]
    pub fn get_mut(&mut self, path: PathId) -> Option<&mut D> {
        self.slots.get_mut(path.0 as usize).and_then(Option::as_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bounded_and_used_again() {
        let mut paths = PathTable::default();
        for n in 0..MAX_PATHS as u32 {
            assert_eq!(paths.open(n).unwrap(), PathId(n));
        }
        assert!(matches!(paths.open(0), Err(PathError::TooMany(MAX_PATHS))));
        for _ in 0..2 {
            paths.close(PathId(7)); // the second time nothing is there
        }
        assert_eq!(paths.get_mut(PathId(7)), None);
        assert_eq!((paths.open(70).unwrap(), paths.get_mut(PathId(7))), (PathId(7), Some(&mut 70)));
        assert!(paths.open(0).is_err(), "it was given back once");
        paths.close(PathId(u32::MAX));
    }
}
