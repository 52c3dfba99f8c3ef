//! Local buffers: `form` says what a transition looks like and how many become a batch, `rows` puts one into its
//! place, `replay` has the classes. `mmap` has the class with a file, and `written` is what that says of its rows.
//! `surprise` has experiences in two tiers. `offline` has data sets that do not change.

mod form;
pub mod mmap;
pub mod offline;
pub mod replay;
mod rows;
pub mod surprise;
mod written;
