//! Parts of lists. A place is what the order of the list is made of, so no row is skipped or repeated when others come or go, and
//! rows of the same instant keep their order.

/// Which part of a list: `C` says where a row is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window<C> {
    /// The first so many, from the start or after a place.
    First {
        /// How many.
        count: u32,
        /// After this place.
        after: Option<C>,
    },
    /// The last so many, from the end or before a place.
    Last {
        /// How many.
        count: u32,
        /// Before this place.
        before: Option<C>,
    },
}

/// A part of a list, in the list's order.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    /// The rows.
    pub rows: Vec<T>,
    /// Whether others come before it.
    pub has_previous: bool,
    /// Whether others come after it.
    pub has_next: bool,
}

impl<C> Window<C> {
    /// The same part, with its place said otherwise.
    #[must_use]
    pub fn map<D>(self, place: impl FnOnce(C) -> D) -> Window<D> {
        match self {
            Self::First { count, after } => Window::First { count, after: after.map(place) },
            Self::Last { count, before } => Window::Last { count, before: before.map(place) },
        }
    }
}

impl<C: Copy> Window<C> {
    pub(super) const fn is_forward(&self) -> bool {
        matches!(self, Self::First { .. })
    }

    pub(super) const fn place(&self) -> Option<C> {
        match *self {
            Self::First { after: place, .. } | Self::Last { before: place, .. } => place,
        }
    }

    const fn count(&self) -> u32 {
        match *self {
            Self::First { count, .. } | Self::Last { count, .. } => count,
        }
    }

    /// How many rows to read: one more than asked for says whether there is more.
    pub(super) fn limit(&self) -> i64 {
        i64::from(self.count()) + 1
    }

    /// The page, from rows as they were read: away from the place, at most [`Self::limit`].
    pub(super) fn page<T>(&self, mut rows: Vec<T>) -> Page<T> {
        let wanted = usize::try_from(self.count()).unwrap_or(usize::MAX);
        let more = rows.len() > wanted;
        rows.truncate(wanted);
        // The row that a place was made from lies beyond it.
        let beyond = self.place().is_some();
        if self.is_forward() {
            return Page { rows, has_previous: beyond, has_next: more };
        }
        rows.reverse();
        Page { rows, has_previous: more, has_next: beyond }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_row_too_many_says_that_there_is_more() {
        let first = Window::First { count: 2, after: None::<i64> };
        assert_eq!(first.limit(), 3);
        assert_eq!(first.page(vec![1, 2, 3]), Page { rows: vec![1, 2], has_previous: false, has_next: true });
        assert_eq!(first.page(vec![1, 2]), Page { rows: vec![1, 2], has_previous: false, has_next: false });
        let last = Window::Last { count: 2, before: Some(9_i64) };
        assert_eq!(last.page(vec![8, 7, 6]), Page { rows: vec![7, 8], has_previous: true, has_next: true });
    }
}
